// graph.js: the flame graph on a canvas. It draws a tree, and finds the frame below the pointer.

const rowHeight = 20;
const motionTime = 180; // milliseconds
const smallest = 0.5; // a frame of fewer pixels is drawn together with its neighbours

// waitColours are hue, saturation and lightness of the wait classes.
const waitColours = new Map([
  ["", [130, 45, 66]], ["IO", [212, 75, 70]], ["Lock", [2, 72, 68]], ["LWLock", [330, 55, 66]],
  ["Buffer", [345, 40, 68]], ["Client", [28, 60, 74]],
  ["IPC", [275, 50, 74]], ["BufferPin", [190, 60, 62]], ["Timeout", [45, 70, 64]], ["Extension", [20, 35, 60]],
  ["Activity", [220, 8, 74]], ["InjectionPoint", [300, 40, 70]], ["other", [60, 20, 66]],
]);

const languageFrame = /^(plpgsql|sql|plperl|plpython\w*|pltcl|statement|copy|vacuum|tuple):/;
const moduleHues = [150, 190, 95, 320, 60, 255, 345, 170, 75, 235];

// Colours gives each frame its colour.
class Colours {
  constructor(profile) {
    this.profile = profile;
    this.groups = new Map(); // legend: name -> [hue, saturation, lightness]
    this.ofFunction = new Map();
    this.modules = new Map();
    this.dark = false;
  }

  css([h, s, l], shift) {
    if (!this.dark) return `hsl(${h} ${s}% ${l + 6 + shift}%)`;
    const bright = h > 45 && h < 200 ? 9 : 0; // these hues look lighter than others of the same lightness
    return `hsl(${h} ${s * 0.75}% ${l - 37 - bright + shift}%)`;
  }

  // module returns the name in the legend, and the colour of a function by its module.
  module(fn) {
    let entry = this.ofFunction.get(fn);
    if (entry) return entry;
    const name = this.profile.functionName(fn);
    const module = this.profile.functionModule(fn);
    const shift = (hashText(name) % 9) - 4;
    if (languageFrame.test(name)) entry = { name: "procedural language", colour: [265, 55, 76], shift };
    else if (module === "postgres") entry = { name: module, colour: [30, 82, 68], shift };
    else if (/^(lib(c|m|pthread|dl|rt)[-.]|ld-|ld\.|\[vdso)/.test(module)) {
      entry = { name: "C library", colour: [212, 62, 74], shift };
    } else if (/kernel|vmlinux/.test(module)) entry = { name: "kernel", colour: [0, 58, 72], shift };
    else if (module === "" && name.startsWith("[")) entry = { name: "other", colour: [220, 8, 72], shift };
    else if (module === "") entry = { name: "no module", colour: [18 + (hashText(name) % 34), 70, 70], shift };
    else {
      if (!this.modules.has(module)) this.modules.set(module, moduleHues[this.modules.size % moduleHues.length]);
      entry = { name: module, colour: [this.modules.get(module), 48, 68], shift };
    }
    this.ofFunction.set(fn, entry);
    return entry;
  }

  wait(number) {
    const name = this.profile.classes[number];
    return { name: name || "no wait event", colour: waitColours.get(name) || waitColours.get("other"), shift: 0 };
  }
}

function hashText(text) {
  let h = 7;
  for (let i = 0; i < text.length; i++) h = (Math.imul(h, 31) + text.charCodeAt(i)) >>> 0;
  return h;
}

class Graph {
  // box is the element that scrolls, canvas the one in it, room the element that gives the box its height.
  constructor(box, canvas, room, profile) {
    this.box = box;
    this.canvas = canvas;
    this.room = room;
    this.profile = profile;
    this.colours = new Colours(profile);
    this.widths = new Map();
    this.rows = [];
    this.height = 0;
    this.zoom = 0;
    this.selected = 0;
    this.hovered = -1;
    this.icicle = false;
    this.name = () => "";
    this.pending = false;
    this.motion = null;
    box.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.layout()).observe(box);
  }

  // show draws another tree. classes finds the heaviest wait class of a node; null means colours by module.
  show(tree, classes, search, icicle) {
    const turned = icicle !== this.icicle || !this.tree;
    this.tree = tree;
    this.classes = classes;
    this.search = search;
    this.icicle = icicle;
    this.hovered = -1;
    this.layout();
    if (turned) this.toStart();
  }

  // place is the rectangle of a node, undefined if it is not drawn by itself.
  place(node) {
    return (this.rows[this.tree.depth[node]] || []).find((r) => r.node === node);
  }

  // glide lets the frames move from where they were. before is the place that the zoomed frame had, if it was drawn;
  // old is the frame that was zoomed.
  glide(before, old) {
    const after = this.place(old);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    if (before && before.w < this.width) this.motion = { shift: before.x, scale: before.w / this.width };
    else if (after && after.w < this.width) {
      this.motion = { shift: (-after.x * this.width) / after.w, scale: this.width / after.w };
    }
    if (this.motion) this.motion.start = performance.now();
    this.draw();
  }

  // moved is where a rectangle is at this moment of a motion.
  moved(rect, depth) {
    if (!this.motion || depth < this.tree.depth[this.zoom]) return rect;
    const { shift, scale, rest } = this.motion;
    const factor = 1 + (scale - 1) * rest;
    return { node: rect.node, x: shift * rest + rect.x * factor, w: rect.w * factor };
  }

  // toStart scrolls to the outermost frames.
  toStart() {
    this.box.scrollTop = this.icicle ? 0 : this.room.offsetHeight;
  }

  // layout finds the frames that are wide enough to see, row by row.
  layout() {
    const tree = this.tree;
    const below = this.room.offsetHeight - this.box.scrollTop - this.height; // what is out of sight at the bottom
    this.width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    if (!tree || !this.width) return;
    this.rows = [];
    const put = (depth, x, w, node) => {
      (this.rows[depth] ||= []).push({ x, w, node });
    };
    for (let n = this.zoom; n > 0; ) {
      n = tree.parent[n];
      put(tree.depth[n], 0, this.width, n);
    }
    const total = tree.total[this.zoom];
    const scale = total > 0 ? this.width / total : 0;
    const work = [[this.zoom, 0]];
    while (work.length) {
      const [node, x] = work.pop();
      put(tree.depth[node], x, node === this.zoom ? this.width : tree.total[node] * scale, node);
      let at = x;
      let rest = 0;
      const waiting = [];
      for (const child of tree.childrenOf(node)) {
        const w = tree.total[child] * scale;
        if (w < smallest) rest += w;
        else {
          waiting.push([child, at]);
          at += w;
        }
      }
      while (waiting.length) work.push(waiting.pop());
      if (rest >= smallest) put(tree.depth[node] + 1, at, rest, -1);
    }
    for (const row of this.rows) row.sort((a, b) => a.x - b.x);
    this.box.style.setProperty("--rows", this.rows.length * rowHeight + 6 + "px"); // for narrow windows
    this.room.style.height = Math.max(this.rows.length * rowHeight + 2, this.height) + "px";
    if (!this.icicle) this.box.scrollTop = this.room.offsetHeight - this.height - Math.max(below, 0);
    this.draw();
  }

  // top is the distance of a row from the top of the room.
  top(depth) {
    if (this.icicle) return depth * rowHeight + 1;
    return this.room.offsetHeight - (depth + 1) * rowHeight - 1;
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    if (!this.tree || !this.width) return;
    const ratio = window.devicePixelRatio || 1;
    const { canvas, width, height } = this;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = width + "px";
      canvas.style.height = height + "px";
    }
    const style = getComputedStyle(this.box);
    this.colours.dark = style.getPropertyValue("--dark").trim() === "1";
    const look = {
      ctx: canvas.getContext("2d"),
      text: style.getPropertyValue("--frame-text"),
      dim: style.getPropertyValue("--frame-dim"),
      group: style.getPropertyValue("--frame-group"),
      match: style.getPropertyValue("--frame-match"),
      edge: style.getPropertyValue("--accent"),
      paper: style.getPropertyValue("--paper"),
    };
    const { ctx } = look;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = look.paper;
    ctx.fillRect(0, 0, width, height);
    ctx.font = "12px " + style.fontFamily;
    ctx.textBaseline = "middle";
    const scroll = this.box.scrollTop;
    if (this.motion) {
      const done = Math.min((performance.now() - this.motion.start) / motionTime, 1);
      this.motion.rest = (1 - done) ** 3;
      if (done === 1) this.motion = null;
      else this.draw();
    }
    let selected = null;
    for (let depth = 0; depth < this.rows.length; depth++) {
      const y = this.top(depth) - scroll;
      if (y + rowHeight < 0 || y > height) continue;
      for (const rect of this.rows[depth]) {
        this.paintFrame(look, this.moved(rect, depth), y, depth);
        if (rect.node === this.selected && rect.node > 0) selected = { rect: this.moved(rect, depth), y };
      }
    }
    if (selected) {
      ctx.strokeStyle = look.edge;
      ctx.lineWidth = 2.5;
      ctx.strokeRect(selected.rect.x + 1, selected.y + 1, Math.max(selected.rect.w - 2, 2), rowHeight - 2);
    }
  }

  paintFrame(look, { x, w, node }, y, depth) {
    const { ctx } = look;
    const frame = node >= 0 ? this.tree.frame[node] : 0;
    const found = node >= 0 && this.search && this.search.matches(frame);
    const behind = depth < this.tree.depth[this.zoom];
    if (node < 0) ctx.fillStyle = look.dim;
    else if (found) ctx.fillStyle = look.match;
    else if (node === 0 || frame < 0) ctx.fillStyle = look.group;
    else {
      const entry = this.entry(node);
      ctx.fillStyle = this.colours.css(entry.colour, entry.shift + (node === this.hovered ? 6 : 0));
    }
    ctx.globalAlpha = (this.search && !found && node >= 0) || behind ? 0.45 : 1;
    const gap = w > 3 ? 1 : w > 1.5 ? 0.5 : 0;
    ctx.fillRect(x, y, w - gap, rowHeight - 1);
    ctx.globalAlpha = behind ? 0.75 : 1;
    if (node >= 0 && w > 24) {
      const text = this.fit(ctx, this.name(node), w - 9);
      if (text) {
        ctx.fillStyle = found ? "#1c0018" : look.text;
        ctx.fillText(text, x + 4, y + rowHeight / 2);
      }
    }
    ctx.globalAlpha = 1;
  }

  // entry is the colour of a node and its name in the legend.
  entry(node) {
    if (this.classes) return this.colours.wait(this.classes(node));
    return this.colours.module(this.tree.frame[node] >> 1);
  }

  // fit shortens a text to a width in pixels; "" if not even two characters fit.
  fit(ctx, text, room) {
    if (this.measure(ctx, text) <= room) return text;
    text = shortName(text);
    if (this.measure(ctx, text) <= room) return text;
    let low = 0;
    let high = Math.min(text.length, Math.ceil(room / 3));
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (ctx.measureText(text.slice(0, middle) + "…").width <= room) low = middle;
      else high = middle - 1;
    }
    return low < 2 ? "" : text.slice(0, low) + "…";
  }

  measure(ctx, text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > 20000) this.widths.clear();
      width = ctx.measureText(text).width;
      this.widths.set(text, width);
    }
    return width;
  }

  // at finds the frame at a place of the canvas: its node, -1 for frames that are drawn together, null for none.
  at(x, y) {
    const over = y + this.box.scrollTop;
    const depth = Math.floor(this.icicle ? (over - 1) / rowHeight : (this.room.offsetHeight - 1 - over) / rowHeight);
    const rect = (this.rows[depth] || []).find((r) => x >= r.x && x < r.x + Math.max(r.w, 1));
    return rect ? rect.node : null;
  }

  // reveal scrolls until the row of a node is in sight.
  reveal(node) {
    const y = this.top(this.tree.depth[node]);
    if (y < this.box.scrollTop) this.box.scrollTop = y - rowHeight;
    else if (y + rowHeight > this.box.scrollTop + this.height) this.box.scrollTop = y + 2 * rowHeight - this.height;
  }

  // isShown reports whether a node is drawn with a place of its own.
  isShown(node) {
    return this.place(node) !== undefined;
  }

  // legend lists the names and colours that are drawn, those with the most frames first.
  legend() {
    const seen = new Map();
    for (const row of this.rows) {
      for (const { w, node } of row) {
        if (node <= 0 || this.tree.frame[node] < 0) continue;
        const entry = this.entry(node);
        const old = seen.get(entry.name) || { ...entry, width: 0 };
        old.width += w;
        seen.set(entry.name, old);
      }
    }
    return [...seen.values()].sort((a, b) => b.width - a.width);
  }
}
