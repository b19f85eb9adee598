// sums.js: what the tables and the search add up.

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
