// page.js: the controls, the tables, and the address of the page. Texts go into the document as text only.

const $ = (id) => document.getElementById(id);
const profile = new Profile(JSON.parse($("data").textContent));
const graph = new Graph($("box"), $("canvas"), $("room"), profile);

// state is what the address of the page holds.
const state = {};
// now is what was computed from it.
const now = {};

function initialState() {
  return {
    type: profile.type, icicle: false, invert: false, merge: true, colour: "module", group: profile.keyIndex(profile.root[0]),
    search: "", zoom: [], focus: -1, filters: new Map(), scope: null, tab: "functions", label: -1,
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

// ---- The address

const scopeName = ["database", "background", "idle"];

function address() {
  const first = initialState();
  const q = new URLSearchParams();
  if (state.type !== first.type) q.set("type", profile.types[state.type].name);
  if (state.icicle) q.set("view", "icicle");
  if (state.invert) q.set("invert", "1");
  if (!state.merge) q.set("merge", "0");
  if (state.colour !== first.colour) q.set("colour", state.colour);
  if (state.group !== first.group) q.set("group", state.group < 0 ? "" : profile.keys[state.group]);
  if (state.search) q.set("search", state.search);
  if (state.focus >= 0) q.set("focus", String(state.focus));
  if (state.zoom.length) q.set("zoom", state.zoom.join("."));
  if (state.scope) q.set("time", scopeName.filter((_, i) => state.scope[i]).join("."));
  if (state.tab !== first.tab) q.set("tab", state.tab);
  if (state.label >= 0) q.set("label", profile.keys[state.label]);
  for (const [key, texts] of state.filters) {
    for (const text of texts) q.append("is." + profile.keys[key], profile.strings[text]);
  }
  return q.toString();
}

function readAddress() {
  const q = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, initialState());
  const type = profile.types.findIndex((t) => t.name === q.get("type"));
  if (type >= 0) state.type = type;
  state.icicle = q.get("view") === "icicle";
  state.invert = q.get("invert") === "1";
  state.merge = q.get("merge") !== "0";
  if (q.get("colour") === "wait" && hasWaits()) state.colour = "wait";
  if (q.has("group")) state.group = profile.keyIndex(q.get("group"));
  state.search = q.get("search") || "";
  const focus = q.get("focus");
  if (focus && /^\d+$/.test(focus) && Number(focus) < profile.functionCount) state.focus = Number(focus);
  const zoom = q.get("zoom");
  if (zoom && /^-?\d+(\.-?\d+)*$/.test(zoom)) state.zoom = zoom.split(".").map(Number);
  if (q.has("time")) state.scope = scopeName.map((name) => q.get("time").split(".").includes(name));
  if ($("tab-" + q.get("tab"))) state.tab = q.get("tab");
  state.label = profile.keyIndex(q.get("label"));
  const numbers = new Map();
  for (const [name, value] of q) {
    const key = name.startsWith("is.") ? profile.keyIndex(name.slice(3)) : -1;
    if (key < 0) continue;
    if (!numbers.size) profile.strings.forEach((text, i) => numbers.set(text, i));
    if (!state.filters.has(key)) state.filters.set(key, new Set());
    state.filters.get(key).add(numbers.has(value) ? numbers.get(value) : -1);
  }
}

// remember puts the state into the address. A step is one that the browser's Back undoes.
function remember(step) {
  const hash = "#" + address();
  if (hash === (location.hash || "#")) return;
  try {
    if (step) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  } catch {
    location.replace(hash); // the browser limits how often the history changes
  }
}

// ---- What is computed

function hasWaits() {
  return profile.keyIndex("wait_event") >= 0 || profile.keyIndex("wait_event_type") >= 0;
}

// compute weighs the samples and makes the tree, then shows everything.
function compute() {
  const chosen = state.scope || [true, false, false];
  now.selected = select(profile, state.type, state.filters, chosen);
  if (!state.scope && now.selected.partial && now.selected.parts[DATABASE] === 0) {
    now.selected = select(profile, state.type, state.filters, [true, true, true]);
    now.scope = [true, true, true];
  } else now.scope = now.selected.partial ? chosen : [true, true, true];
  const o = { invert: state.invert, merge: state.merge, focus: state.focus, group: state.group };
  now.tree = buildTree(profile, now.selected.weights, o);
  now.tableTree = state.invert ? null : now.tree;
  now.classes = state.colour === "wait" ? heaviestClass(profile, now.selected.weights, now.tree) : null;
  now.node = 0;
  findMatches();
  const zoom = now.tree.find(state.zoom);
  graph.zoom = Math.max(zoom, 0);
  if (zoom < 0) state.zoom = [];
  graph.selected = graph.zoom;
  graph.name = nodeName;
  showGraph();
  showControls();
  showDetail();
  showTable();
}

// tableTree is the tree for tables: never inverted.
function tableTree() {
  if (!now.tableTree) {
    const o = { invert: false, merge: state.merge, focus: state.focus, group: -1 };
    now.tableTree = buildTree(profile, now.selected.weights, o);
  }
  return now.tableTree;
}

function findMatches() {
  now.search = null;
  now.searchError = "";
  if (!state.search) return;
  try {
    const flags = /[A-Z]/.test(state.search.replace(/\\./g, "")) ? "u" : "iu";
    now.search = searchTree(profile, now.tree, new RegExp(state.search, flags));
  } catch (e) {
    now.searchError = e.message;
  }
}

const unit = () => profile.types[state.type].unit;
const amount = (v) => quantity(v, unit());
const shareOf = (v) => percent(v, now.selected.total);

// whole says what percentages are of.
function whole() {
  if (now.selected.partial && now.scope[0] && !now.scope[1] && !now.scope[2]) return "database time";
  return now.selected.partial && now.scope.includes(false) ? "the time shown" : "the total";
}

function textName(text, key) {
  return text ? profile.strings[text] : "(no " + profile.keys[key] + ")";
}

function frameName(frame) {
  if (frame === -1) return "";
  return frame < 0 ? textName(-2 - frame, state.group) : profile.functionName(frame >> 1);
}

function nodeName(node) {
  if (node > 0) return frameName(now.tree.frame[node]);
  const all = now.tree.total[0];
  const of = state.focus >= 0 ? (state.invert ? "callers of " : "") + profile.functionName(state.focus) : "all";
  return `${of}: ${amount(all)}, ${shareOf(all)} of ${whole()}`;
}

// ---- The graph

function showGraph() {
  graph.show(now.tree, now.classes, now.search, state.icicle);
  $("box").setAttribute("aria-label", `${state.icicle ? "Icicle" : "Flame graph"} of ${profile.types[state.type].name}`);
  $("box").setAttribute("aria-roledescription", state.icicle ? "icicle graph" : "flame graph");
  const list = graph.legend();
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
  graph.zoom = node;
  state.zoom = now.tree.path(node);
  choose(node, false);
  showGraph();
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
  what.push(children === 1 ? "1 frame above it" : `${children} frames above it`);
  return what.filter(Boolean).join(", ").replace("above it", state.invert ? "call it" : "called by it");
}

function showDetail() {
  const t = now.tree;
  const node = graph.selected;
  const parts = [element("bdi", {}, element("b", {}, nodeName(node)))];
  if (node > 0) {
    parts.push(` ${amount(t.total[node])}, ${shareOf(t.total[node])} of ${whole()}`);
    if (!state.invert) parts.push(`, self ${amount(t.self[node])}`);
    const frame = t.frame[node];
    if (frame >= 0) parts.push(element("span", { class: "more" }, describe(frame)));
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
      if (now.classes) lines.push(element("span", {}, "mostly " + (profile.classes[now.classes[node]] || "no wait event")));
    }
    tip.replaceChildren(...lines);
  }
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6)) + "px";
  tip.style.top = Math.max(4, event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18) + "px";
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

// ---- Controls

// change changes the state and computes again.
function change(what) {
  Object.assign(state, what);
  compute();
  remember(true);
}

function setFilter(key, texts) {
  const filters = new Map(state.filters);
  if (texts.length) filters.set(key, new Set(texts));
  else filters.delete(key);
  change({ filters, zoom: [] });
}

function toggleFilter(key, text) {
  const texts = new Set(state.filters.get(key) || []);
  if (!texts.delete(text)) texts.add(text);
  setFilter(key, [...texts]);
}

function makeControls() {
  document.title = profile.title;
  $("title").textContent = profile.title;
  const about = [profile.subtitle];
  const taken = [];
  if (profile.time) taken.push("taken " + new Date(profile.time / 1e6).toISOString().slice(0, 19).replace("T", " ") + " UTC");
  if (profile.duration) taken.push("for " + quantity(profile.duration, "ns"));
  about.push(taken.join(" "), ...profile.notes);
  $("subtitle").replaceChildren(...about.filter(Boolean).map((text) => element("span", {}, text)));
  profile.types.forEach((type, i) => {
    const title = type.unit === "count" ? "number of " + type.name : type.name + " in " + type.unit;
    const input = element("input", { type: "radio", name: "type", value: i, onchange: () => change({ type: i }) });
    $("types").append(element("label", { title }, input, element("span", {}, type.name)));
  });
  for (const input of document.getElementsByName("view")) {
    input.addEventListener("change", () => change({ icicle: input.value === "icicle" }));
  }
  $("invert").addEventListener("change", () => change({ invert: $("invert").checked, zoom: [] }));
  $("merge").addEventListener("change", () => change({ merge: $("merge").checked, zoom: [], focus: -1 }));
  $("merge-label").hidden = !profile.functions.some((n, i) => i % 4 === 3 && n >= 0);
  $("colour").addEventListener("change", () => change({ colour: $("colour").value }));
  $("colour").parentNode.hidden = !hasWaits();
  $("group").append(element("option", { value: -1 }, "nothing"));
  profile.keys.forEach((key, i) => $("group").append(element("option", { value: i }, key)));
  $("group").parentNode.hidden = !profile.keys.length;
  $("group").addEventListener("change", () => change({ group: Number($("group").value), zoom: [] }));
  $("search").addEventListener("input", () => {
    state.search = $("search").value;
    findMatches();
    showGraph();
    showMatches();
    if (state.tab === "functions") showTable();
    remember(false);
  });
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") $("box").focus();
  });
  $("reset").addEventListener("click", () => {
    Object.assign(state, initialState(), { tab: state.tab });
    compute();
    remember(true);
  });
  $("help").addEventListener("click", () => $("keys").showModal());
  makeFilters();
  makeGraphEvents();
  makeTabs();
  makeTheme();
}

function makeGraphEvents() {
  const { box, canvas } = graph;
  box.addEventListener("keydown", graphKey);
  box.addEventListener("focus", () => graph.draw());
  box.addEventListener("blur", () => graph.draw());
  canvas.addEventListener("mousemove", showTip);
  canvas.addEventListener("mouseleave", () => {
    graph.hovered = -1;
    $("tip").hidden = true;
    graph.draw();
  });
  canvas.addEventListener("click", (event) => {
    const node = graph.at(event.offsetX, event.offsetY);
    $("tip").hidden = true;
    if (node === null || node < 0) return;
    if (event.shiftKey) focusOn(node);
    else if (node === graph.zoom) choose(node, true);
    else zoomTo(node);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = document.querySelector("details[open]");
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  });
  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll("details[open]")) {
      if (!open.contains(event.target)) open.open = false;
    }
  });
}

function makeTheme() {
  const media = matchMedia("(prefers-color-scheme: dark)");
  let own = "";
  const set = () => {
    const theme = own || (media.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = theme === "dark" ? "Light" : "Dark";
    if (now.tree) {
      graph.colours.dark = theme === "dark";
      graph.draw();
      showGraph();
    }
  };
  $("theme").addEventListener("click", () => {
    own = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    set();
  });
  media.addEventListener("change", set);
  set();
  graph.colours.dark = document.documentElement.dataset.theme === "dark";
}

// showControls shows the state in the controls.
function showControls() {
  document.getElementsByName("type")[state.type].checked = true;
  for (const input of document.getElementsByName("view")) input.checked = (input.value === "icicle") === state.icicle;
  $("invert").checked = state.invert;
  $("merge").checked = state.merge;
  $("colour").value = state.colour;
  $("group").value = String(state.group);
  if ($("search").value !== state.search) $("search").value = state.search;
  showMatches();
  showFilters();
  showParts();
  const chips = [];
  if (state.focus >= 0) {
    const what = state.invert ? "Callers of " : "Focus: ";
    chips.push(element("button", { type: "button", onclick: () => change({ focus: -1, zoom: [] }), title: "Remove the focus" },
      what + profile.functionName(state.focus) + " ✕"));
  }
  if (graph.zoom > 0) {
    chips.push(element("button", { type: "button", onclick: () => zoomTo(0), title: "Zoom out" },
      "Zoom: " + nodeName(graph.zoom) + " ✕"));
  }
  $("chips").replaceChildren(...chips);
}

function showMatches() {
  const out = $("matches");
  $("search").setAttribute("aria-invalid", String(Boolean(now.searchError)));
  out.className = now.searchError ? "bad" : "";
  if (now.searchError) out.textContent = now.searchError;
  else if (now.search) {
    out.textContent = `${shareOf(now.search.value) || "0.0\u00a0%"} match, ${amount(now.search.value)}`;
  } else out.textContent = "";
}

// showParts shows the parts of time, with a check box for each.
function showParts() {
  const { parts, partial } = now.selected;
  const box = $("parts");
  if (!partial) {
    box.replaceChildren();
    return;
  }
  if (!box.children.length) {
    partNames.forEach((name, i) => {
      const input = element("input", { type: "checkbox", onchange: () => {
        const scope = now.scope.slice();
        scope[i] = input.checked;
        change({ scope, zoom: [] });
      } });
      box.append(element("label", {}, input, element("span", {}, name + " "), element("b", {})));
    });
  }
  const sum = parts[0] + parts[1] + parts[2];
  partNames.forEach((name, i) => {
    const label = box.children[i];
    label.className = now.scope[i] ? "on" : "off";
    label.style.flexGrow = String(sum ? Math.max(parts[i] / sum, 0.02) * 100 : 1);
    label.querySelector("input").checked = now.scope[i];
    label.querySelector("b").textContent = sum ? `${amount(parts[i])} (${percent(parts[i], sum)})` : amount(0);
  });
}

const mostValues = 200; // values that a filter lists

function makeFilters() {
  profile.keys.forEach((name, key) => {
    const menu = element("details", { class: "menu", ontoggle: () => menu.open && fillFilter(menu, key) });
    menu.append(element("summary", {}, name + " ", element("b", {})),
      element("div", { class: "list", role: "group", "aria-label": name }));
    $("filters").append(menu);
  });
}

function showFilters() {
  profile.keys.forEach((name, key) => {
    const menu = $("filters").children[key];
    const texts = state.filters.get(key);
    menu.classList.toggle("set", Boolean(texts));
    let what = "";
    if (texts && texts.size === 1) {
      const [text] = texts;
      what = text < 0 ? "(not in this profile)" : textName(text, key);
    } else if (texts) what = texts.size + " values";
    menu.querySelector("b").textContent = what;
    if (menu.open) fillFilter(menu, key);
  });
}

// fillFilter lists the values of a label, with what they add up to under the other filters.
function fillFilter(menu, key) {
  const others = new Map(state.filters);
  others.delete(key);
  const { weights, total } = select(profile, state.type, others, now.scope);
  const sums = new Map();
  for (let i = 0; i < weights.length; i++) {
    const text = profile.labelString(profile.labels[i], key);
    sums.set(text, (sums.get(text) || 0) + weights[i]);
  }
  const chosen = state.filters.get(key) || new Set();
  const rows = [...sums].filter(([text, v]) => v > 0 || chosen.has(text)).sort((a, b) => b[1] - a[1]);
  const list = menu.querySelector(".list");
  const active = document.activeElement && list.contains(document.activeElement) ? document.activeElement.value : null;
  const items = rows.slice(0, mostValues).map(([text, v]) => {
    const input = element("input", { type: "checkbox", value: text, onchange: () => toggleFilter(key, text) });
    input.checked = chosen.has(text);
    return element("label", {}, input, element("span", {}, element("bdi", {}, textName(text, key))),
      element("span", { class: "amount" }, `${amount(v)} ${percent(v, total)}`));
  });
  if (rows.length > mostValues) items.push(element("p", {}, `${rows.length - mostValues} other values are not listed`));
  if (chosen.size) {
    items.unshift(element("button", { type: "button", onclick: () => {
      setFilter(key, []);
      menu.querySelector("summary").focus();
    } }, "Show all"));
  }
  list.replaceChildren(...items);
  if (active !== null) {
    const again = [...list.querySelectorAll("input")].find((i) => i.value === active);
    if (again) again.focus();
  }
}

// ---- Tables

const mostRows = 300;

function makeTabs() {
  const tabs = [...$("tabs").children];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => {
      state.tab = tab.id.slice(4);
      showTable();
      remember(false);
    });
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const other = tabs[(i + by + tabs.length) % tabs.length];
      other.focus();
      other.click();
    });
  });
}

function showTable() {
  for (const tab of $("tabs").children) {
    const on = tab.id === "tab-" + state.tab;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    if (on) $("panel").setAttribute("aria-labelledby", tab.id);
  }
  const make = { functions: functionTable, queries: queryTable, waits: waitTable, labels: labelTable, frame: frameTable };
  $("panel").replaceChildren(...make[state.tab]().filter(Boolean));
}

// table makes a sortable table. columns: {key, name, kind, cell}. Rows stand in the order of sort, a pair of a column's
// key and a direction.
function table(name, caption, columns, rows, sorts, rest) {
  const [by, direction] = state.sort[sorts];
  const column = columns.find((c) => c.key === by) || columns[columns.length - 1];
  rows.sort((a, b) => direction * (column.kind === "text" ? (column.sort(a) < column.sort(b) ? -1 : 1)
    : column.sort(a) - column.sort(b)));
  const head = columns.map((c) => {
    const sorted = c === column ? (direction < 0 ? "descending" : "ascending") : "none";
    const onclick = () => {
      state.sort[sorts] = [c.key, c === column ? -direction : c.kind === "text" ? 1 : -1];
      showTable();
      for (const button of $("panel").querySelectorAll("thead button")) if (button.dataset.key === c.key) button.focus();
    };
    return element("th", { scope: "col", "aria-sort": sorted }, c.sort
      ? element("button", { type: "button", "data-key": c.key, onclick }, c.name) : c.name);
  });
  const body = rows.slice(0, mostRows).map((row) => {
    return element("tr", { class: row.on ? "on" : "" }, ...columns.map((c) => c.cell(row)));
  });
  if (rows.length > mostRows) {
    const left = rows.slice(mostRows);
    body.push(element("tr", {}, element("td", { colspan: columns.length }, `${left.length} others`)));
  }
  return element("table", { id: "table-" + name }, element("caption", {}, caption),
    element("colgroup", {}, ...columns.map((c) => element("col", { class: c.kind }))),
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body), ...rest);
}

function shareCell(v) {
  const cell = element("td", { class: "share" }, shareOf(v));
  cell.style.setProperty("--share", (now.selected.total ? Math.min((100 * v) / now.selected.total, 100) : 0) + "%");
  return cell;
}

const amountCell = (v) => element("td", { "data-value": v }, v ? amount(v) : "0");

function nameCell(name, title, onclick, more) {
  const text = onclick ? element("button", { type: "button", title, onclick }, element("bdi", {}, name))
    : element("bdi", {}, name);
  return element("td", {}, text, more ? element("small", {}, more) : null);
}

// valueColumns are the columns of a value and of its share.
function valueColumns(key, name, of) {
  return [
    { key, name, kind: "amount", sort: of, cell: (r) => amountCell(of(r)) },
    { key: key + "-share", name: "%", kind: "share", sort: of, cell: (r) => shareCell(of(r)) },
  ];
}

function functionTable() {
  const { rows, stackless } = functionSums(profile, tableTree());
  let list = rows.map((r) => ({ ...r, name: profile.functionName(r.fn) }));
  if (stackless > 0) list.push({ fn: -1, name: "(no stack)", self: stackless, total: stackless });
  const all = list.length;
  if (now.search) list = list.filter((r) => r.fn >= 0 && now.search.matches(2 * r.fn));
  const sum = list.reduce((s, r) => s + r.self, 0);
  const columns = [
    { key: "name", name: "Function", kind: "text", sort: (r) => r.name, cell: (r) => nameCell(r.name,
      "Focus on this function", r.fn < 0 ? null : () => change({ focus: r.fn, zoom: [] }),
      r.fn < 0 ? "" : profile.functionModule(r.fn)) },
    ...valueColumns("self", "Self", (r) => r.self), ...valueColumns("total", "Total", (r) => r.total),
  ];
  const which = list.length < all ? `${list.length} of ${all} functions match` : `${all} functions`;
  const caption = `${which}, in percent of ${whole()}. Total includes what a function calls.`;
  const foot = element("tfoot", {}, element("tr", {}, element("td", {}, "Sum of self"), amountCell(sum), shareCell(sum),
    element("td", { colspan: 2 })));
  return [table("functions", caption, columns, list, "functions", [foot])];
}

// classBar shows the wait classes of a row as a bar.
function classBar(row) {
  const bar = element("div", { class: "stack" });
  const words = [];
  [...row.classes].map((v, i) => [v, i]).filter(([v]) => v > 0).sort((a, b) => b[0] - a[0]).forEach(([v, i]) => {
    const { name, colour } = graph.colours.wait(i);
    const part = element("i", {});
    part.style.width = (100 * v) / row.value + "%";
    part.style.background = graph.colours.css(colour, 0);
    bar.append(part);
    words.push(`${name} ${percent(v, row.value)}`);
  });
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", words.join(", "));
  bar.title = words.join("\n");
  return element("td", {}, bar);
}

// sumTable is a table of values by label.
function sumTable(name, title, rows, caption, apart) {
  const sum = rows.reduce((s, r) => s + r.value, 0);
  const columns = [
    { key: "name", name: title, kind: "text", sort: (r) => r.name,
      cell: (r) => nameCell(r.name, r.onclick && "Filter by this value", r.onclick, r.more) },
    ...(hasWaits() && name !== "waits" ? [{ key: "classes", name: "Waits", kind: "classes", cell: classBar }] : []),
    ...valueColumns("value", profile.types[state.type].name, (r) => r.value),
  ];
  const foot = element("tfoot", {}, element("tr", {}, element("td", { colspan: columns.length - 2 }, "Sum"), amountCell(sum),
    shareCell(sum)));
  return table(name, caption, columns, rows, "labels", [...apart, foot]);
}

function labelRows(key) {
  const rows = labelSums(profile, now.selected.weights, now.tree.leaves, (set) => profile.labelString(set, key));
  const chosen = state.filters.get(key) || new Set();
  return rows.map((r) => ({
    ...r, name: textName(r.key, key), on: chosen.has(r.key), onclick: () => toggleFilter(key, r.key),
  }));
}

function queryTable() {
  const key = profile.keyIndex("query_id");
  if (key < 0) return [element("p", {}, "No sample of this profile has a query identifier (query_id).")];
  const rows = labelRows(key);
  const text = profile.keyIndex("query");
  if (text >= 0) {
    const texts = new Map();
    for (let set = 0; set < profile.setCount; set++) {
      const t = profile.labelString(set, text);
      if (t) texts.set(profile.labelString(set, key), profile.strings[t]);
    }
    for (const row of rows) row.more = texts.get(row.key);
  }
  return [sumTable("queries", "Query", rows, `${rows.length} queries, in percent of ${whole()}`, [])];
}

function waitTable() {
  if (!hasWaits()) return [element("p", {}, "No sample of this profile has a wait event.")];
  const event = profile.keyIndex("wait_event");
  const rows = labelSums(profile, now.selected.weights, now.tree.leaves, (set) => profile.wait[set]).map((r) => {
    const set = profile.wait.indexOf(r.key);
    const text = profile.labelString(set, event);
    return {
      ...r, name: profile.waits[r.key].name, on: event >= 0 && (state.filters.get(event) || new Set()).has(text),
      onclick: event < 0 ? null : () => toggleFilter(event, text),
    };
  });
  return [sumTable("waits", "Wait event", rows, `${rows.length} wait events, in percent of ${whole()}`, apartRows())];
}

// apartRows are the waits of the parts of time that the page leaves out.
function apartRows() {
  if (!now.selected.partial || !now.scope.includes(false)) return [];
  const { weights } = select(profile, state.type, state.filters, now.scope.map((on) => !on));
  const leaves = new Int32Array(weights.length);
  const rows = labelSums(profile, weights, leaves, (set) => profile.part[set] * profile.waits.length + profile.wait[set]);
  if (!rows.length) return [];
  rows.sort((a, b) => b.value - a.value);
  const shown = rows.slice(0, 50).map((r) => {
    const part = partNames[Math.floor(r.key / profile.waits.length)];
    const name = `${profile.waits[r.key % profile.waits.length].name} (${part})`;
    return element("tr", {}, nameCell(name), element("td", {}, amount(r.value)), element("td", {}, "–"));
  });
  const title = element("tr", {}, element("th", { colspan: 3, scope: "rowgroup" }, "Apart, not counted above"));
  return [element("tbody", { class: "apart" }, title, ...shown)];
}

function labelTable() {
  if (!profile.keys.length) return [element("p", {}, "The samples of this profile have no labels.")];
  const key = state.label >= 0 ? state.label : 0;
  const choice = element("select", { id: "label-key", onchange: () => {
    state.label = Number(choice.value);
    showTable();
    $("label-key").focus();
    remember(false);
  } }, ...profile.keys.map((name, i) => element("option", { value: i, selected: i === key }, name)));
  const rows = labelRows(key);
  const caption = `${rows.length} values, in percent of ${whole()}`;
  return [element("label", { class: "choice" }, "Label ", choice), sumTable("labels", profile.keys[key], rows, caption, [])];
}

// frameTable shows the selected frame, and its neighbours in the graph.
function frameTable() {
  const t = now.tree;
  const node = graph.selected;
  const list = element("dl", {});
  const line = (name, value) => value && list.append(element("dt", {}, name), element("dd", {}, element("bdi", {}, value)));
  const frame = node > 0 ? t.frame[node] : -1;
  line("Frame", nodeName(node));
  line("Total", `${amount(t.total[node])}, ${shareOf(t.total[node])} of ${whole()}`);
  if (!state.invert) line("Self", `${amount(t.self[node])}, ${shareOf(t.self[node]) || "0"}`);
  if (frame >= 0) {
    line("Module", profile.functionModulePath(frame >> 1));
    line("Build-id", profile.functionBuildID(frame >> 1));
    line("File", profile.functionFile(frame >> 1));
    if (frame & 1) line("Inlined", "yes");
  }
  const go = (to) => {
    if (graph.isShown(to)) choose(to, true);
    else zoomTo(to);
    const first = $("panel").querySelector("button");
    if (first) first.focus();
  };
  const buttons = [
    element("button", { type: "button", disabled: node === graph.zoom, onclick: () => zoomTo(node) }, "Zoom"),
    element("button", { type: "button", disabled: frame === -1, onclick: () => focusOn(node) },
      frame < -1 ? "Filter" : "Focus"),
    element("button", { type: "button", disabled: frame < 0,
      onclick: () => change({ focus: frame >> 1, invert: true, zoom: [] }) }, "Callers"),
    node > 0 ? element("button", { type: "button", onclick: () => go(t.parent[node]) }, "Up: " + nodeName(t.parent[node])) : null,
  ].filter(Boolean);
  const rows = t.childrenOf(node).map((child) => ({ node: child, name: nodeName(child), value: t.total[child] }));
  const columns = [
    { key: "name", name: state.invert ? "Called by" : "Calls", kind: "text", sort: (r) => r.name,
      cell: (r) => nameCell(r.name, "Go to this frame", () => go(r.node)) },
    ...valueColumns("value", profile.types[state.type].name, (r) => r.value),
  ];
  const caption = rows.length ? `${rows.length} frames directly ${state.invert ? "outside" : "inside"} of it` : "No frames further in";
  return [element("div", { class: "actions" }, ...buttons), list, table("frame", caption, columns, rows, "labels", [])];
}

// ---- Start

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
