// frames.js: the selected frame, the pointer and the keys of the graph.

function showGraph() {
  graph.show(now.tree, now.classes, now.search, state.icicle);
  const kind = state.icicle ? "Icicle" : "Flame graph";
  $("box").setAttribute("aria-label", `${kind} of ${profile.types[state.type].name}`);
  $("box").setAttribute("aria-roledescription", state.icicle ? "icicle graph" : "flame graph");
  let list = graph.legend();
  if (list.length === 1 && list[0].name === "no module") list = [];
  const items = list.slice(0, 10).map((entry) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = graph.colours.css(entry.colour, 0);
    return element("li", {}, swatch, entry.name);
  });
  if (list.length > 10) items.push(element("li", {}, `and ${list.length - 10} others`));
  $("legend").replaceChildren(...items);
}

function zoomTo(node) {
  if (node < 0 || node === graph.zoom) return;
  const before = graph.place(node);
  const old = graph.zoom;
  graph.zoom = node;
  state.zoom = now.tree.path(node);
  showGraph();
  choose(node, false);
  graph.glide(before, old);
  graph.reveal(node);
  showControls();
  remember(true);
}

// choose selects a frame, and speaks it.
function choose(node, speak) {
  graph.selected = node;
  graph.reveal(node);
  graph.draw();
  showDetail();
  if (state.tab === "frame") showTable();
  if (speak) $("live").textContent = spoken(node);
}

function spoken(node) {
  const t = now.tree;
  const children = t.childrenOf(node).length;
  const what = [nodeName(node)];
  if (node > 0) {
    if (t.frame[node] >= 0) what.push(profile.functionModule(t.frame[node] >> 1));
    what.push(amount(t.total[node]), `${shareOf(t.total[node])} of ${whole()}`, `level ${t.depth[node]}`);
  }
  what.push(count(children, "frame") + (state.invert ? " further out" : " further in"));
  return what.filter(Boolean).join(", ");
}

function showDetail() {
  const t = now.tree;
  const node = graph.selected;
  const parts = [element("bdi", {}, element("b", {}, nodeName(node)))];
  if (node > 0) {
    parts.push(` ${amount(t.total[node])}, ${shareOf(t.total[node])} of ${whole()}`);
    if (!state.invert) parts.push(`, self ${amount(t.self[node])}`);
    parts.push(average(t.total[node]));
    const frame = t.frame[node];
    if (frame >= 0) parts.push(element("span", { class: "more" }, describe(frame)));
  }
  if (t.total[0] === 0) {
    parts.length = 0;
    parts.push(now.selected.all === 0 ? `The profile has no values of the type ${profile.types[state.type].name}.`
      : "No sample passes the filters.");
  } else if (node === 0) {
    const hint = " · click to zoom, Shift+click to focus";
    parts.push(average(t.total[0]), element("span", { class: "more" }, hint));
  }
  if (now.selected.negative) {
    parts.push(element("span", { class: "more" }, ` · ${count(now.selected.negative, "negative value")} not drawn`));
  }
  $("detail").replaceChildren(...parts);
}

// describe says where a function is from.
function describe(frame) {
  const fn = frame >> 1;
  const parts = [profile.functionModulePath(fn), profile.functionFile(fn), frame & 1 ? "inlined" : ""];
  const text = parts.filter(Boolean).join(" · ");
  return text ? " · " + text : "";
}

function showTip(event) {
  const node = graph.at(event.offsetX, event.offsetY);
  if (graph.hovered !== (node === null ? -1 : node)) {
    graph.hovered = node === null ? -1 : node;
    graph.draw();
  }
  const tip = $("tip");
  tip.hidden = node === null;
  if (node === null) return;
  const t = now.tree;
  if (node < 0) tip.replaceChildren(element("b", {}, "many small frames"), element("span", {}, "zoom in to see them"));
  else {
    const lines = [element("b", {}, element("bdi", {}, nodeName(node)))];
    if (node > 0) {
      const self = state.invert ? "" : `, self ${amount(t.self[node])}`;
      lines.push(element("span", {}, `${amount(t.total[node])}, ${shareOf(t.total[node])} of ${whole()}${self}`));
      const frame = t.frame[node];
      if (frame >= 0) lines.push(element("span", {}, describe(frame).replace(" · ", "")));
      if (now.classes) {
        lines.push(element("span", {}, "mostly " + (profile.classes[now.classes(node)] || "no wait event")));
      }
    }
    tip.replaceChildren(...lines);
  }
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6)) + "px";
  const below = event.clientY + 18;
  tip.style.top = Math.max(4, below + height > innerHeight ? event.clientY - height - 12 : below) + "px";
}

function focusOn(node) {
  const frame = node > 0 ? now.tree.frame[node] : -1;
  if (frame === -1) return;
  if (frame < 0) setFilter(state.group, [-2 - frame]);
  else change({ focus: frame >> 1, zoom: [] });
}

// escape undoes one thing, and reports whether there was one.
function escape() {
  if (state.zoom.length) zoomTo(0);
  else if (state.focus >= 0) change({ focus: -1 });
  else if (state.search) change({ search: "" });
  else return false;
  return true;
}

function graphKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const t = now.tree;
  const node = graph.selected;
  const outward = state.icicle ? "ArrowUp" : "ArrowDown";
  const inward = state.icicle ? "ArrowDown" : "ArrowUp";
  const beside = (by) => {
    const row = (graph.rows[t.depth[node]] || []).filter((r) => r.node >= 0);
    const at = row.findIndex((r) => r.node === node) + by;
    if (row[at]) choose(row[at].node, true);
  };
  const keys = {
    [outward]: () => node > 0 && choose(t.parent[node], true),
    [inward]: () => {
      const child = node !== graph.zoom && t.depth[node] < t.depth[graph.zoom]
        ? now.tree.find(state.zoom.slice(0, t.depth[node] + 1)) : t.childrenOf(node)[0];
      if (child > 0 && graph.isShown(child)) choose(child, true);
    },
    ArrowLeft: () => beside(-1),
    ArrowRight: () => beside(1),
    Enter: () => {
      zoomTo(node);
      $("live").textContent = "zoomed into " + spoken(node);
    },
    Backspace: () => graph.zoom > 0 && zoomTo(t.parent[graph.zoom]),
    Escape: () => escape(),
    Home: () => choose(0, true),
    f: () => focusOn(node),
    i: () => change({ invert: !state.invert, zoom: [] }),
    "/": () => $("search").focus(),
    "?": () => $("keys").showModal(),
  };
  const act = keys[event.key] || keys[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  act();
}
