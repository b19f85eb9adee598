"use strict";

// model.js: the profile, and the choice of its samples. Nothing here knows the document.

// The parts of a server's time. Idle time is the wait for the client's next command, and the wait of a background
// process for work.
const DATABASE = 0;
const BACKGROUND = 1;
const IDLE = 2;
const partNames = ["database time", "background processes", "idle"];

const sessionTypes = new Set(["", "client backend", "parallel worker"]);

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
    this.stringCount = data.strings.length; // later ones are from the address
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
    // Without backend types, the time of sessions cannot be told from the time of background processes.
    this.hasParts = this.keyIndex("backend_type") >= 0;
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
