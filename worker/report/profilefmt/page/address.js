// address.js: the state of the page in its address.

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
  for (const [name, value] of state.others) q.append(name, value);
  return q.toString();
}

// keep notes a part of the address that this profile lacks, so that the address of the page keeps it for other profiles.
function keep(q, name) {
  if (q.get(name)) state.others.push([name, q.get(name)]);
}

function readAddress() {
  const q = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, initialState());
  const type = profile.types.findIndex((t) => t.name === q.get("type"));
  if (type >= 0) state.type = type;
  else keep(q, "type");
  state.icicle = q.get("view") === "icicle";
  state.invert = q.get("invert") === "1";
  state.merge = q.get("merge") !== "0";
  if (q.get("colour") === "wait" && hasWaits()) state.colour = "wait";
  const group = q.get("group");
  if (group === "" || profile.keyIndex(group) >= 0) state.group = profile.keyIndex(group);
  else keep(q, "group");
  state.search = q.get("search") || "";
  const focus = q.get("focus");
  if (focus && /^\d+$/.test(focus) && Number(focus) < profile.functionCount) state.focus = Number(focus);
  const zoom = q.get("zoom");
  if (zoom && /^-?\d+(\.-?\d+)*$/.test(zoom)) state.zoom = zoom.split(".").map(Number);
  if (q.has("time")) state.scope = scopeName.map((name) => q.get("time").split(".").includes(name));
  const tab = $("tab-" + q.get("tab"));
  if (tab && !tab.hidden) state.tab = q.get("tab");
  state.label = profile.keyIndex(q.get("label"));
  if (state.label < 0) keep(q, "label");
  const numbers = new Map();
  for (const [name, value] of q) {
    const key = name.startsWith("is.") ? profile.keyIndex(name.slice(3)) : -1;
    if (key < 0) {
      if (name.startsWith("is.")) state.others.push([name, value]);
      continue;
    }
    if (!numbers.size) profile.strings.forEach((text, i) => numbers.set(text, i));
    if (!state.filters.has(key)) state.filters.set(key, new Set());
    // A text that no sample has gets a number too, so that the address keeps it.
    if (!numbers.has(value)) numbers.set(value, profile.strings.push(value) - 1);
    state.filters.get(key).add(numbers.get(value));
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
