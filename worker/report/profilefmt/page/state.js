// state.js: what the page shows, and helpers for the document. Texts go into the document as text only.

const $ = (id) => document.getElementById(id);
const profile = new Profile(JSON.parse($("data").textContent));
const forest = new Forest(profile);
const graph = new Graph($("box"), $("canvas"), $("room"), profile);

// state is what the address of the page holds.
const state = {};
// now is what was computed from it.
const now = {};

function initialState() {
  return {
    type: profile.type, icicle: false, invert: false, merge: true, colour: "module",
    group: profile.keyIndex(profile.root[0]),
    search: "", zoom: [], focus: -1, filters: new Map(), scope: null, tab: "functions", label: -1,
    others: [], // names and values in the address of what this profile lacks
    sort: { functions: ["self", -1], labels: ["value", -1] },
  };
}

// element makes an element. Strings among the children become text.
function element(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") e.className = value;
    else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (value !== false) e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}
