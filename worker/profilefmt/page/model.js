"use strict";

// model.js: the profile, and what is computed from it. Nothing here knows the document.

// grown returns a longer copy of a typed array.
function grown(array) {
  const longer = new array.constructor(2 * array.length + 64);
  longer.set(array);
  return longer;
}

// The parts of a server's time. Idle time is the wait for the client's next command, and the wait of a background
// process for work.
const DATABASE = 0;
const BACKGROUND = 1;
const IDLE = 2;
const partNames = ["database time", "background processes", "idle"];

const sessionTypes = new Set(["", "client backend", "parallel worker"]);
const timeUnits = new Map([
  ["nanoseconds", 1], ["ns", 1], ["microseconds", 1e3], ["us", 1e3], ["milliseconds", 1e6], ["ms", 1e6],
  ["seconds", 1e9], ["s", 1e9], ["minutes", 60e9], ["hours", 3600e9],
]);
const byteUnits = new Map([
  ["bytes", 1], ["byte", 1], ["B", 1], ["kilobytes", 1024], ["kB", 1024], ["KB", 1024], ["megabytes", 1 << 20], ["MB", 1 << 20],
]);

// A Profile is the decoded data of the page.
class Profile {
  constructor(data) {
    this.title = data.title;
    this.noun = data.noun; // of a frame
    this.subtitle = data.subtitle;
    this.notes = data.notes;
    this.time = data.time;
    this.duration = data.duration;
    this.types = data.types.map(([name, unit]) => ({ name, unit }));
    this.type = data.type;
    this.root = data.root;
    this.strings = data.strings;
    this.modules = data.modules;
    this.functions = Int32Array.from(data.functions);
    this.frames = Int32Array.from(data.frames);
    this.parents = Int32Array.from(data.parents, (back, i) => i - back);
    this.keys = data.keys;
    this.sets = Int32Array.from(data.sets);
    this.nodes = Int32Array.from(data.nodes);
    this.labels = Int32Array.from(data.labels);
    this.values = data.values.map((list) => Float64Array.from(list));
    this.functionCount = this.functions.length / 4;
    this.hasUnnamed = this.functions.some((n, i) => i % 4 === 3 && n >= 0);
    this.classify();
  }

  functionName(fn) { return this.strings[this.functions[4 * fn]]; }
  functionFile(fn) { return this.strings[this.functions[4 * fn + 1]]; }
  functionModule(fn) { return this.strings[this.modules[3 * this.functions[4 * fn + 2]]]; }
  functionModulePath(fn) { return this.strings[this.modules[3 * this.functions[4 * fn + 2] + 1]]; }
  functionBuildID(fn) { return this.strings[this.modules[3 * this.functions[4 * fn + 2] + 2]]; }

  // mergedFunction is the function that stands for frames of one module without a symbol, fn itself for others.
  mergedFunction(fn) {
    const merged = this.functions[4 * fn + 3];
    return merged < 0 ? fn : merged;
  }

  keyIndex(name) { return this.keys.indexOf(name); }

  // labelString returns the number of the text that a label has in a label set, 0 for none.
  labelString(set, key) { return key < 0 ? 0 : this.sets[set * this.keys.length + key]; }
  label(set, name) { return this.strings[this.labelString(set, this.keyIndex(name))]; }

  // classify finds the part of time and the wait of each label set.
  classify() {
    const count = this.keys.length ? this.sets.length / this.keys.length : 1;
    this.setCount = count;
    this.part = new Uint8Array(count);
    this.wait = new Int32Array(count); // index of this.waits
    this.waits = [{ class: "", event: "", name: "no wait event" }];
    const seen = new Map([["\0", 0]]);
    for (let set = 0; set < count; set++) {
      const kind = this.keys.length ? this.label(set, "wait_event_type") : "";
      const event = this.keys.length ? this.label(set, "wait_event") : "";
      const backend = this.keys.length ? this.label(set, "backend_type") : "";
      if (event === "ClientRead" || kind === "Activity") this.part[set] = IDLE;
      else this.part[set] = sessionTypes.has(backend) ? DATABASE : BACKGROUND;
      const key = kind + "\0" + event;
      if (!seen.has(key)) {
        seen.set(key, this.waits.length);
        const name = kind && event ? kind + ": " + event : kind || event;
        this.waits.push({ class: kind || "other", event, name });
      }
      this.wait[set] = seen.get(key);
    }
    this.classes = [...new Set(this.waits.map((w) => w.class))];
    this.waitClass = Int32Array.from(this.waits, (w) => this.classes.indexOf(w.class));
    this.hasParts = this.keyIndex("wait_event") >= 0 || this.keyIndex("backend_type") >= 0;
  }

  // isTime reports whether the values of a type are time, or samples that stand for time.
  isTime(type) {
    const { name, unit } = this.types[type];
    return timeUnits.has(unit) || (name === "samples" && this.types.some((t) => timeUnits.has(t.unit)));
  }
}

// select weighs the samples. Of the result, weights has 0 for each sample that the filters or the scope leave out.
//   filters: Map from the number of a label to a Set of numbers of texts; scope: three booleans, one for each part.
function select(p, type, filters, scope) {
  const n = p.nodes.length;
  const weights = new Float64Array(n);
  const partial = p.hasParts && p.isTime(type);
  const parts = [0, 0, 0];
  const keep = new Uint8Array(p.setCount).fill(1);
  for (let set = 0; set < p.setCount; set++) {
    for (const [key, texts] of filters) {
      if (!texts.has(p.labelString(set, key))) keep[set] = 0;
    }
  }
  let total = 0;
  let all = 0;
  let negative = 0;
  for (let i = 0; i < n; i++) {
    const v = p.values[type][i];
    if (v < 0) negative++;
    if (v <= 0) continue;
    all += v;
    const set = p.labels[i];
    if (!keep[set]) continue;
    parts[p.part[set]] += v;
    if (partial && !scope[p.part[set]]) continue;
    weights[i] = v;
    total += v;
  }
  return { weights, total, all, parts, partial, negative };
}

// The frame of a node of a tree is twice a function, plus 1 if it was inlined; or -2 minus the number of a text, for the
// value of a label; or -1 for the root. Node 0 is the root.

const manyChildren = 24; // from so many children on, a node has an index of them

// A Tree starts with the outermost frames. Its form depends on no weights, so that another filter or sample type only
// adds up again. Parents stand before their children.
class Tree {
  constructor(capacity) {
    this.parent = new Int32Array(capacity);
    this.frame = new Int32Array(capacity);
    this.first = new Int32Array(capacity); // the newest child
    this.next = new Int32Array(capacity); // the sibling before it
    this.parent[0] = -1;
    this.frame[0] = -1;
    this.size = 1;
    this.indexes = new Map();
  }

  append(parent, frame) {
    if (this.size === this.parent.length) {
      for (const name of ["parent", "frame", "first", "next"]) this[name] = grown(this[name]);
    }
    const node = this.size++;
    this.parent[node] = parent;
    this.frame[node] = frame;
    this.next[node] = this.first[parent];
    this.first[parent] = node;
    return node;
  }

  // lookup returns the child with a frame, -1 if there is none.
  lookup(parent, frame) {
    const index = this.indexes.get(parent);
    if (index) return index.has(frame) ? index.get(frame) : -1;
    let seen = 0;
    for (let c = this.first[parent]; c; c = this.next[c]) {
      if (this.frame[c] === frame) return c;
      seen++;
    }
    if (seen >= manyChildren) {
      const all = new Map();
      for (let c = this.first[parent]; c; c = this.next[c]) all.set(this.frame[c], c);
      this.indexes.set(parent, all);
    }
    return -1;
  }

  // child returns the child with a frame, and makes it if there is none.
  child(parent, frame) {
    const known = this.lookup(parent, frame);
    if (known >= 0) return known;
    const node = this.append(parent, frame);
    const index = this.indexes.get(parent);
    if (index) index.set(frame, node);
    return node;
  }

  find(path) {
    let node = 0;
    for (const frame of path) {
      node = this.lookup(node, frame);
      if (node < 0) return -1;
    }
    return this.total[node] > 0 ? node : -1;
  }

  path(node) {
    const path = [];
    for (; node > 0; node = this.parent[node]) path.push(this.frame[node]);
    return path.reverse();
  }

  // weigh adds up. leaves has the node of each sample, -1 for none.
  weigh(weights) {
    const n = this.size;
    this.self = new Float64Array(n);
    for (let i = 0; i < weights.length; i++) {
      if (this.leaves[i] >= 0) this.self[this.leaves[i]] += weights[i];
    }
    this.total = this.self.slice();
    for (let i = n - 1; i > 0; i--) this.total[this.parent[i]] += this.total[i];
    if (!this.depth) {
      this.depth = new Int32Array(n);
      for (let i = 1; i < n; i++) this.depth[i] = this.depth[this.parent[i]] + 1;
    }
    this.sorted = new Map();
    return this;
  }

  // childrenOf lists the children that weigh something, the heaviest first.
  childrenOf(node) {
    let list = this.sorted.get(node);
    if (!list) {
      list = [];
      for (let c = this.first[node]; c; c = this.next[c]) if (this.total[c] > 0) list.push(c);
      list.sort((a, b) => this.total[b] - this.total[a] || this.frame[a] - this.frame[b]);
      this.sorted.set(node, list);
    }
    return list;
  }
}

// A CallerTree starts with the innermost frames and leads to their callers. Its nodes are made when they are asked for,
// since there are many more of them than in a Tree.
class CallerTree {
  // starts has, for each sample, the node of the profile to start from, -1 for none.
  constructor(p, frames, starts, weights, group) {
    Object.assign(this, { p, frames, weights, leaves: starts, parent: [-1], frame: [-1], depth: [0], total: [0], self: [0] });
    this.lists = new Map(); // node -> [samples, nodes of the profile]
    this.children = new Map();
    const samples = [];
    const groups = new Map();
    for (let i = 0; i < starts.length; i++) {
      if (starts[i] < 0 || weights[i] === 0) continue;
      this.total[0] += weights[i];
      if (group < 0) samples.push(i);
      else {
        const text = p.labelString(p.labels[i], group);
        if (!groups.has(text)) groups.set(text, []);
        groups.get(text).push(i);
      }
    }
    const list = (of) => [Int32Array.from(of), Int32Array.from(of, (i) => starts[i])];
    if (group < 0) this.lists.set(0, list(samples));
    else this.children.set(0, this.ordered([...groups].map(([text, of]) => this.append(0, -2 - text, ...list(of)))));
  }

  append(parent, frame, samples, nodes) {
    const node = this.frame.length;
    let total = 0;
    for (const i of samples) total += this.weights[i];
    this.parent.push(parent);
    this.frame.push(frame);
    this.depth.push(this.depth[parent] + 1);
    this.total.push(total);
    this.self.push(0);
    this.lists.set(node, [samples, nodes]);
    return node;
  }

  ordered(list) {
    return list.sort((a, b) => this.total[b] - this.total[a] || this.frame[a] - this.frame[b]);
  }

  childrenOf(node) {
    const known = this.children.get(node);
    if (known) return known;
    const [samples, nodes] = this.lists.get(node);
    const byFrame = new Map();
    for (let i = 0; i < samples.length; i++) {
      if (nodes[i] === 0) continue;
      const frame = this.frames[nodes[i]];
      let list = byFrame.get(frame);
      if (!list) {
        list = [];
        byFrame.set(frame, list);
      }
      list.push(i);
    }
    const children = [];
    for (const [frame, list] of byFrame) {
      const parents = Int32Array.from(list, (i) => this.p.parents[nodes[i]]);
      children.push(this.append(node, frame, Int32Array.from(list, (i) => samples[i]), parents));
    }
    this.children.set(node, this.ordered(children));
    return children;
  }

  find(path) {
    let node = 0;
    for (const frame of path) {
      node = this.childrenOf(node).find((c) => this.frame[c] === frame);
      if (node === undefined) return -1;
    }
    return node;
  }

  path(node) {
    return Tree.prototype.path.call(this, node);
  }
}

// A Forest makes trees, and keeps the forms of the last ones.
//   invert: from the innermost frame to its callers; merge: add up frames without a symbol by module;
//   focus: a function that becomes the root, -1 for none; group: the number of a label whose values are the
//   outermost frames, -1 for none.
class Forest {
  constructor(p) {
    this.p = p;
    this.kept = new Map();
  }

  tree(weights, o) {
    if (o.invert) {
      const frames = this.frames(o.merge);
      const focused = o.focus >= 0 ? focusOf(this.p, frames, o.focus) : null;
      const starts = focused ? this.p.nodes.map((node) => focused[node]) : this.p.nodes;
      return new CallerTree(this.p, frames, starts, weights, o.group);
    }
    const key = [o.merge, o.focus, o.group].join();
    const tree = this.kept.get(key) || this.form(o);
    this.kept.delete(key);
    this.kept.set(key, tree); // the newest is last
    if (this.kept.size > 3) this.kept.delete(this.kept.keys().next().value);
    return tree.weigh(weights);
  }

  // frames returns the frame of each node of the profile.
  frames(merge) {
    const { p } = this;
    if (!merge || !p.hasUnnamed) return p.frames;
    this.merged ||= p.frames.map((frame) => (frame < 0 ? frame : 2 * p.mergedFunction(frame >> 1) + (frame & 1)));
    return this.merged;
  }

  form(o) {
    const { p } = this;
    const frames = this.frames(o.merge);
    const tree = new Tree(o.focus < 0 ? frames.length + 16 : 1 << 12);
    tree.leaves = new Int32Array(p.nodes.length).fill(-1);
    const focused = o.focus >= 0 ? focusOf(p, frames, o.focus) : null;
    const distinct = frames === p.frames && !focused; // nodes of the profile with one parent have different frames
    const order = [...p.nodes.keys()];
    const text = (i) => (o.group < 0 ? 0 : p.labelString(p.labels[i], o.group));
    if (o.group >= 0) order.sort((a, b) => text(a) - text(b) || a - b);
    const known = new Int32Array(frames.length); // the node of the tree for a node of the profile, in this group
    const steps = [];
    let group = -1;
    let start = 0;
    for (const i of order) {
      if (text(i) !== group) {
        group = text(i);
        start = o.group < 0 ? 0 : tree.child(0, -2 - group);
        known.fill(0);
      }
      const end = focused ? focused[p.nodes[i]] : 0;
      if (end < 0) continue;
      let at = start;
      for (let n = p.nodes[i]; n > 0; n = n === end ? 0 : p.parents[n]) {
        if (known[n]) {
          at = known[n];
          break;
        }
        steps.push(n);
      }
      while (steps.length) {
        const n = steps.pop();
        at = distinct ? tree.append(at, frames[n]) : tree.child(at, frames[n]);
        known[n] = at;
      }
      tree.leaves[i] = at;
    }
    return tree;
  }
}

// focusOf returns, for each node of the profile, the outermost node on its stack that is of the function; -1 for none.
function focusOf(p, frames, fn) {
  const focused = new Int32Array(frames.length).fill(-1);
  for (let i = 1; i < frames.length; i++) {
    const above = focused[p.parents[i]];
    if (above >= 0) focused[i] = above;
    else if (frames[i] >> 1 === fn) focused[i] = i;
  }
  return focused;
}

// functionSums adds up the tree by function: self, and total, in which a recursive function counts once.
function functionSums(p, tree) {
  const self = new Float64Array(p.functionCount);
  const total = new Float64Array(p.functionCount);
  const active = new Int32Array(p.functionCount);
  let stackless = tree.self[0];
  const enter = (n) => {
    if (tree.frame[n] < 0) {
      stackless += tree.self[n];
      return;
    }
    const fn = tree.frame[n] >> 1;
    self[fn] += tree.self[n];
    if (active[fn]++ === 0) total[fn] += tree.total[n];
  };
  const leave = (n) => {
    if (tree.frame[n] >= 0) active[tree.frame[n] >> 1]--;
  };
  let n = tree.first[0];
  while (n > 0) {
    enter(n);
    if (tree.first[n] && tree.total[n] > 0) {
      n = tree.first[n];
      continue;
    }
    leave(n);
    while (n > 0 && !tree.next[n]) {
      n = tree.parent[n];
      if (n > 0) leave(n);
    }
    n = n > 0 ? tree.next[n] : 0;
  }
  const rows = [];
  for (let fn = 0; fn < total.length; fn++) {
    if (total[fn] > 0) rows.push({ fn, self: self[fn], total: total[fn] });
  }
  return { rows, stackless };
}

// labelSums adds up samples by a number that of(label set) gives. Each row also has the sums by wait class.
function labelSums(p, weights, leaves, of) {
  const rows = new Map();
  for (let i = 0; i < weights.length; i++) {
    if (weights[i] === 0 || leaves[i] < 0) continue;
    const set = p.labels[i];
    const key = of(set);
    let row = rows.get(key);
    if (!row) {
      row = { key, value: 0, classes: new Float64Array(p.classes.length) };
      rows.set(key, row);
    }
    row.value += weights[i];
    row.classes[p.waitClass[p.wait[set]]] += weights[i];
  }
  return [...rows.values()];
}

// heaviestClass returns what finds the wait class that most of the weight of a node has.
function heaviestClass(p, weights, tree) {
  const classOf = (i) => p.waitClass[p.wait[p.labels[i]]];
  if (tree instanceof CallerTree) {
    const known = new Map();
    return (node) => {
      if (!known.has(node)) {
        const sums = new Float64Array(p.classes.length);
        for (const i of (tree.lists.get(node) || [[]])[0]) sums[classOf(i)] += weights[i];
        known.set(node, sums.indexOf(Math.max(...sums)));
      }
      return known.get(node);
    };
  }
  const best = new Int32Array(tree.size);
  const most = new Float64Array(tree.size);
  const sums = new Float64Array(tree.size);
  for (let c = 0; c < p.classes.length; c++) {
    sums.fill(0);
    for (let i = 0; i < weights.length; i++) {
      if (tree.leaves[i] >= 0 && classOf(i) === c) sums[tree.leaves[i]] += weights[i];
    }
    for (let n = tree.size - 1; n > 0; n--) sums[tree.parent[n]] += sums[n];
    for (let n = 0; n < tree.size; n++) {
      if (sums[n] > most[n]) {
        most[n] = sums[n];
        best[n] = c;
      }
    }
  }
  return (node) => best[node];
}

// searchFrames marks the functions whose names match, and adds up the samples with such a frame: in the part of the
// stack that the tree shows, or as the value of a label that stands for a frame.
function searchFrames(p, frames, weights, tree, o, regexp) {
  const functions = new Uint8Array(p.functionCount);
  for (let fn = 0; fn < functions.length; fn++) functions[fn] = regexp.test(p.functionName(fn)) ? 1 : 0;
  const texts = new Map();
  const textMatches = (text) => {
    if (!texts.has(text)) texts.set(text, regexp.test(p.strings[text]));
    return texts.get(text);
  };
  const matches = (frame) => (frame >= 0 ? functions[frame >> 1] === 1 : frame < -1 && textMatches(-2 - frame));
  const focused = o.focus >= 0 ? focusOf(p, frames, o.focus) : null;
  const inside = new Uint8Array(frames.length);
  for (let n = 1; n < frames.length; n++) {
    // With a focus only its callees count, in an inverted graph only its callers.
    const counts = !focused || (o.invert ? focused[n] < 0 || focused[n] === n : focused[n] >= 0);
    if (inside[p.parents[n]] || (counts && matches(frames[n]))) inside[n] = 1;
  }
  let value = 0;
  for (let i = 0; i < weights.length; i++) {
    if (weights[i] === 0 || tree.leaves[i] < 0) continue;
    if (inside[p.nodes[i]] || (o.group >= 0 && textMatches(p.labelString(p.labels[i], o.group)))) value += weights[i];
  }
  return { matches, value };
}

// The units in which people read a quantity, with the quantity from which each is used. 100 s read better than 1.67 min.
const durations = [
  { name: "ns", size: 1, from: 0 }, { name: "µs", size: 1e3, from: 999.5 }, { name: "ms", size: 1e6, from: 999.5e3 },
  { name: "s", size: 1e9, from: 999.5e6 }, { name: "min", size: 60e9, from: 120e9 }, { name: "h", size: 3600e9, from: 7200e9 },
];
const sizes = ["B", "kB", "MB", "GB", "TB"].map((name, i) => ({ name, size: 1024 ** i, from: i && 0.9995 * 1024 ** i }));

// threeDigits prints a number with three significant digits, and whole numbers as such.
function threeDigits(x) {
  const a = Math.abs(x);
  if (Number.isInteger(x) || a >= 99.95) return x.toFixed(0);
  return a >= 9.995 ? x.toFixed(1) : x.toFixed(2);
}

// quantity prints a value for people. 1 kB is 1024 bytes, as in PostgreSQL.
function quantity(v, unit) {
  if (v === 0) return "0";
  const scale = (x, units) => {
    const unit = units.findLast(({ from }) => Math.abs(x) >= from) || units[0];
    return threeDigits(x / unit.size) + "\u00a0" + unit.name;
  };
  if (timeUnits.has(unit)) return scale(v * timeUnits.get(unit), durations);
  if (byteUnits.has(unit)) return scale(v * byteUnits.get(unit), sizes);
  const number = v.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return unit === "count" || unit === "" ? number : number + "\u00a0" + unit;
}

// percent prints a share with one digit, and says when it is small but not nothing.
function percent(v, total) {
  if (!total) return "";
  if (v === 0) return "0\u00a0%";
  const share = (100 * v) / total;
  if (share > 0 && share < 0.05) return "<0.1\u00a0%";
  return share.toFixed(1) + "\u00a0%";
}
