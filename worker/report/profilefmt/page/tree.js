// tree.js: trees of frames, from the outside to the inside and the other way.

// grown returns a longer copy of a typed array.
function grown(array) {
  const longer = new array.constructor(2 * array.length + 64);
  longer.set(array);
  return longer;
}

// Node 0 of a tree is the root. The frame of a node is twice a function, plus 1 if it was inlined. For the value of a
// label, it is -2 minus the number of a text. The root's frame is -1.

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
    Object.assign(this, { p, frames, weights, leaves: starts });
    Object.assign(this, { parent: [-1], frame: [-1], depth: [0], total: [0], self: [0] });
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
