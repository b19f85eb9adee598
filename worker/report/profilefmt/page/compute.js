// compute.js: from the state to everything that is shown.

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
  now.form = { invert: state.invert, merge: state.merge, focus: state.focus, group: state.group };
  now.tree = forest.tree(now.selected.weights, now.form);
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
    // With a focus, these are the whole stacks that hold the function.
    const weights = now.selected.weights.map((w, i) => (now.tree.leaves[i] < 0 ? 0 : w));
    now.tableTree = forest.tree(weights, { invert: false, merge: state.merge, focus: -1, group: -1 });
  }
  return now.tableTree;
}

function findMatches() {
  now.search = null;
  now.searchError = "";
  if (!state.search) return;
  try {
    const flags = /[A-Z]/.test(state.search.replace(/\\./g, "")) ? "u" : "iu";
    const regexp = new RegExp(state.search, flags);
    const frames = forest.frames(state.merge);
    now.search = searchFrames(profile, frames, now.selected.weights, now.tree, now.form, regexp);
  } catch (e) {
    now.searchError = e.message;
  }
}

const unit = () => profile.types[state.type].unit;
const amount = (v) => quantity(v, unit());
const shareOf = (v) => percent(v, now.selected.total);

// average says how many processes or processors a time amounts to; "" if the values are no time.
function average(v) {
  const type = profile.types[state.type];
  const nouns = { wall: "processes", cpu: "processors", offcpu: "waiting processes" };
  if (!profile.duration || !nouns[type.name] || !timeUnits.has(type.unit)) return "";
  const sessions = type.name === "wall" && whole() === "database time";
  const n = threeDigits((v * timeUnits.get(type.unit)) / profile.duration);
  return `, on average ${n} ${sessions ? "active sessions" : nouns[type.name]}`;
}

// whole says what percentages are of.
function whole() {
  if (now.selected.partial && now.scope[0] && !now.scope[1] && !now.scope[2]) return "database time";
  return now.selected.partial && now.scope.includes(false) ? "the time shown" : "the total";
}

// count prints a number with a noun.
function count(n, noun) {
  if (n === 1) return "1 " + noun;
  return `${n.toLocaleString("en-US")} ${noun.endsWith("y") ? noun.slice(0, -1) + "ie" : noun}s`;
}

function textName(text, key) {
  if (text) return profile.strings[text];
  return profile.keys[key].startsWith("wait_event") ? "no wait event" : "(no " + profile.keys[key] + ")";
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
