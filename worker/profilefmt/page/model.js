"use strict";

// model.js: the profile, and what is computed from it. Nothing here knows the document.

// PairMap maps pairs of integers from 0 to integers from 0.
class PairMap {
  constructor() {
    this.resize(1 << 12);
  }

  resize(capacity) {
    const [a, b, v] = [this.a, this.b, this.v];
    this.mask = capacity - 1;
    this.a = new Int32Array(capacity);
    this.b = new Int32Array(capacity);
    this.v = new Int32Array(capacity).fill(-1);
    this.size = 0;
    for (let i = 0; v && i < v.length; i++) {
      if (v[i] >= 0) this.set(a[i], b[i], v[i]);
    }
  }

  slot(a, b) {
    let i = (Math.imul(a, 0x9e3779b1) ^ Math.imul(b, 0x85ebca6b)) >>> 0;
    i = (i ^ (i >>> 15)) & this.mask;
    while (this.v[i] >= 0 && (this.a[i] !== a || this.b[i] !== b)) i = (i + 1) & this.mask;
    return i;
  }

  // get returns -1 for a pair that is not there.
  get(a, b) {
    return this.v[this.slot(a, b)];
  }

  set(a, b, v) {
    if (2 * this.size > this.mask) this.resize(4 * (this.mask + 1));
    const i = this.slot(a, b);
    if (this.v[i] < 0) this.size++;
    this.a[i] = a;
    this.b[i] = b;
    this.v[i] = v;
  }
}

// Ints is a growing list of integers.
class Ints {
  constructor() {
    this.list = new Int32Array(1 << 12);
    this.length = 0;
  }

  push(n) {
    if (this.length === this.list.length) {
      const list = new Int32Array(2 * this.length);
      list.set(this.list);
      this.list = list;
    }
    this.list[this.length++] = n;
  }
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

// A Tree has the frames of samples, each with what the samples below it add up to. Node 0 is the root. The frame of a
// node is twice a function plus 1 if it was inlined, or -2 minus the number of a text: the value of a label.
class Tree {
  constructor() {
    this.parents = new Ints();
    this.frames = new Ints();
    this.children = new PairMap();
    this.parents.push(-1);
    this.frames.push(-1);
  }

  child(parent, frame) {
    // Frames of labels are negative. PairMap takes any integer in its second place.
    let node = this.children.get(parent, frame);
    if (node < 0) {
      node = this.frames.length;
      this.parents.push(parent);
      this.frames.push(frame);
      this.children.set(parent, frame, node);
    }
    return node;
  }

  find(path) {
    let node = 0;
    for (const frame of path) {
      node = this.children.get(node, frame);
      if (node < 0) return -1;
    }
    return node;
  }

  path(node) {
    const path = [];
    for (; node > 0; node = this.parent[node]) path.push(this.frame[node]);
    return path.reverse();
  }

  // finish adds up, and links the nodes with their children. leaves has the node of each sample, -1 for none.
  finish(leaves, weights) {
    const n = this.frames.length;
    this.size = n;
    this.parent = this.parents.list.subarray(0, n);
    this.frame = this.frames.list.subarray(0, n);
    this.leaves = leaves;
    this.self = new Float64Array(n);
    this.total = new Float64Array(n);
    this.depth = new Int32Array(n);
    this.first = new Int32Array(n);
    this.next = new Int32Array(n);
    for (let i = 0; i < leaves.length; i++) {
      if (leaves[i] >= 0) this.self[leaves[i]] += weights[i];
    }
    this.total.set(this.self);
    for (let i = n - 1; i > 0; i--) {
      const parent = this.parent[i];
      this.total[parent] += this.total[i];
      this.next[i] = this.first[parent];
      this.first[parent] = i;
    }
    for (let i = 1; i < n; i++) this.depth[i] = this.depth[this.parent[i]] + 1;
    this.sorted = new Map();
    return this;
  }

  // childrenOf lists the children, the heaviest first.
  childrenOf(node) {
    let list = this.sorted.get(node);
    if (!list) {
      list = [];
      for (let c = this.first[node]; c; c = this.next[c]) list.push(c);
      list.sort((a, b) => this.total[b] - this.total[a] || this.frame[a] - this.frame[b]);
      this.sorted.set(node, list);
    }
    return list;
  }
}

// buildTree makes the tree of the selected samples.
//   invert: from the innermost frame to its callers; merge: add up frames without a symbol by module;
//   focus: a function that becomes the root, -1 for none; group: the number of a label whose values are the
//   outermost frames, -1 for none.
function buildTree(p, weights, o) {
  const tree = new Tree();
  const frames = p.frames.slice();
  for (let i = 1; o.merge && i < frames.length; i++) {
    frames[i] = 2 * p.mergedFunction(frames[i] >> 1) + (frames[i] & 1);
  }
  const focused = o.focus >= 0 ? focusOf(p, frames, o.focus) : null;
  const leaves = new Int32Array(weights.length).fill(-1);
  const memo = new PairMap();
  const steps = [];
  for (let i = 0; i < weights.length; i++) {
    if (weights[i] === 0) continue;
    const node = p.nodes[i];
    const end = focused ? focused[node] : 0;
    if (focused && end < 0) continue;
    const text = o.group < 0 ? 0 : p.labelString(p.labels[i], o.group);
    let at = memo.get(text, node);
    if (at < 0) {
      const start = o.group < 0 ? 0 : tree.child(0, -2 - text);
      if (o.invert) {
        at = start;
        for (let n = focused ? end : node; n > 0; n = p.parents[n]) at = tree.child(at, frames[n]);
      } else {
        steps.length = 0;
        at = start;
        for (let n = node; n > 0; n = n === end ? 0 : p.parents[n]) {
          const known = memo.get(text, n);
          if (known >= 0) {
            at = known;
            break;
          }
          steps.push(n);
        }
        while (steps.length) {
          const n = steps.pop();
          at = tree.child(at, frames[n]);
          memo.set(text, n, at);
        }
      }
      memo.set(text, node, at);
    }
    leaves[i] = at;
  }
  return tree.finish(leaves, weights);
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
    if (tree.first[n]) {
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

// heaviestClass finds the wait class that most of the weight below each node has.
function heaviestClass(p, weights, tree) {
  const best = new Int8Array(tree.size);
  const most = new Float64Array(tree.size);
  const sums = new Float64Array(tree.size);
  for (let c = 0; c < Math.min(p.classes.length, 127); c++) {
    sums.fill(0);
    for (let i = 0; i < weights.length; i++) {
      if (tree.leaves[i] >= 0 && p.waitClass[p.wait[p.labels[i]]] === c) sums[tree.leaves[i]] += weights[i];
    }
    for (let n = tree.size - 1; n > 0; n--) sums[tree.parent[n]] += sums[n];
    for (let n = 0; n < tree.size; n++) {
      if (sums[n] > most[n]) {
        most[n] = sums[n];
        best[n] = c;
      }
    }
  }
  return best;
}

// searchTree marks the functions whose names match, and adds up the stacks that hold one.
function searchTree(p, tree, regexp) {
  const functions = new Uint8Array(p.functionCount);
  const texts = new Map();
  for (let fn = 0; fn < functions.length; fn++) functions[fn] = regexp.test(p.functionName(fn)) ? 1 : 0;
  const matches = (frame) => {
    if (frame >= 0) return functions[frame >> 1] === 1;
    if (frame === -1) return false;
    if (!texts.has(frame)) texts.set(frame, regexp.test(p.strings[-2 - frame]));
    return texts.get(frame);
  };
  const inside = new Uint8Array(tree.size);
  let value = 0;
  for (let n = 1; n < tree.size; n++) {
    if (inside[tree.parent[n]]) inside[n] = 1;
    else if (matches(tree.frame[n])) {
      inside[n] = 1;
      value += tree.total[n];
    }
  }
  return { matches, value };
}

// threeDigits prints a number with three significant digits, and whole numbers as such.
function threeDigits(x) {
  const a = Math.abs(x);
  if (Number.isInteger(x) || a >= 99.95) return x.toFixed(0);
  return a >= 9.995 ? x.toFixed(1) : x.toFixed(2);
}

// quantity prints a value for people. 1 kB is 1024 bytes, as in PostgreSQL.
function quantity(v, unit) {
  const scale = (x, names, sizes) => {
    let i = 0;
    while (i + 1 < sizes.length && Math.abs(x) >= 0.9995 * sizes[i + 1]) i++;
    return threeDigits(x / sizes[i]) + "\u00a0" + names[i];
  };
  if (timeUnits.has(unit)) {
    return scale(v * timeUnits.get(unit), ["ns", "µs", "ms", "s", "min", "h"], [1, 1e3, 1e6, 1e9, 60e9, 3600e9]);
  }
  if (byteUnits.has(unit)) {
    return scale(v * byteUnits.get(unit), ["B", "kB", "MB", "GB", "TB"], [1, 2 ** 10, 2 ** 20, 2 ** 30, 2 ** 40]);
  }
  const number = v.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return unit === "count" || unit === "" ? number : number + "\u00a0" + unit;
}

// percent prints a share with one digit, and says when it is small but not nothing.
function percent(v, total) {
  if (!total) return "";
  const share = (100 * v) / total;
  if (share > 0 && share < 0.05) return "<0.1\u00a0%";
  return share.toFixed(1) + "\u00a0%";
}
