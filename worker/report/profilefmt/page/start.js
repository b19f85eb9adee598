// start.js: runs last.

makeControls();
readAddress();
compute();
addEventListener("hashchange", () => {
  if (location.hash.slice(1) === address()) return;
  readAddress();
  compute();
});
addEventListener("popstate", () => {
  readAddress();
  compute();
});
document.body.dataset.ready = "true";
