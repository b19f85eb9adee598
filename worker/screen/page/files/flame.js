"use strict";
// The view Flame. The drawing is the one of the reports: graph.js.

const sides = [["both", "on and off CPU"], ["on-cpu", "on CPU"], ["off-cpu", "off CPU"]];
const chain = (n) => n.functions.length ? n.functions.join(" › ") : "all stacks";
const shortChain = (n) => n.functions.length < 3 ? chain(n) :
  n.functions[0] + " › … " + (n.functions.length - 2) + " … › " + n.functions[n.functions.length - 1];

// FlameTree has the nodes in the form that Graph needs.
class FlameTree {
  constructor(nodes) {
    this.nodes = nodes;
    this.depth = nodes.map((n) => n.depth);
    this.total = nodes.map((n) => n.active_sessions);
    this.frame = nodes.map((n, i) => i === 0 ? -1 : 2 * i);
    this.parent = [];
    this.children = nodes.map(() => []);
    this.paths = [];
    const path = [];
    nodes.forEach((n, i) => {
      path.length = n.depth;
      this.parent[i] = n.depth ? path[n.depth - 1] : -1;
      if (n.depth) this.children[this.parent[i]].push(i);
      this.paths[i] = (n.depth ? this.paths[this.parent[i]] : "") + "\u0000" + (n.functions[0] ?? "");
      path.push(i);
    });
  }

  childrenOf(node) { return this.children[node]; }

  // find returns the node with a path, or the nearest node outside of it that is still there.
  find(path) {
    for (; path; path = path.slice(0, path.lastIndexOf("\u0000"))) {
      const node = this.paths.indexOf(path);
      if (node >= 0) return node;
    }
    return 0;
  }
}

const flameView = {
  // make makes the elements once: they keep the zoom and the selection while the data changes.
  make() {
    this.side = el("select", "");
    this.side.setAttribute("aria-label", "stacks on or off the CPU");
    for (const [value, name] of sides) this.side.append(new Option(name, value));
    this.side.addEventListener("change", () => change((s) => s.set("side", this.side.value)));
    this.totals = el("p", "dim", "");
    this.detail = el("p", "flame-detail", "");
    this.detail.setAttribute("role", "status");
    this.canvas = el("canvas", "");
    this.canvas.setAttribute("aria-hidden", "true");
    this.room = el("div", "room", this.canvas);
    this.box = el("div", "flame", this.room);
    this.box.tabIndex = 0;
    this.box.dataset.graph = "flame";
    this.box.setAttribute("role", "application");
    this.box.setAttribute("aria-label", "Flame graph. Arrow keys select a function, Enter zooms, Escape zooms out. The table below has the same figures.");
    this.list = el("div", "");
    const legend = el("ul", "legend", ...[["CPU", "mostly on CPU"], ["IPC", "mostly off CPU"]].map(([c, name]) => {
      const mark = el("span", "mark mark-" + c);
      return el("li", "", mark, name);
    }));
    this.panel = panel("Flame graph ", this.side, this.totals, this.box, legend, this.detail, this.list);
    this.profile = { classes: ["", "IPC"], functionName: (i) => this.tree.nodes[i].functions[0] ?? "", functionModule: () => "" };
    this.graph = new flameGraph.Graph(this.box, this.canvas, this.room, this.profile);
    this.graph.name = (i) => shortChain(this.tree.nodes[i]);
    this.box.addEventListener("keydown", (e) => this.key(e));
    this.canvas.addEventListener("click", (e) => {
      const node = this.graph.at(e.offsetX, e.offsetY);
      if (node !== null && node >= 0) this.zoom(node);
    });
    this.canvas.addEventListener("mousemove", (e) => {
      const node = this.graph.at(e.offsetX, e.offsetY);
      this.canvas.title = node !== null && node >= 0 ? clean(this.describe(node)) : "";
    });
  },

  describe(i) {
    const n = this.tree.nodes[i], all = this.tree.total[0];
    return percent(100 * n.active_sessions / all) + ", " + number(n.active_sessions) + " sessions, self " +
      percent(100 * n.self_sessions / all) + ": " + chain(n);
  },

  choose(node) {
    this.graph.selected = node;
    this.graph.reveal(node);
    this.graph.draw();
    this.detail.textContent = clean(this.describe(node));
  },

  zoom(node) {
    this.graph.zoom = node;
    this.show();
    this.choose(node);
  },

  show() {
    this.graph.show(this.tree, (i) => this.tree.nodes[i].on_cpu_sessions * 2 >= this.tree.nodes[i].active_sessions ? 0 : 1, null, true);
  },

  key(e) {
    if (e.ctrlKey || e.altKey || e.metaKey || !this.tree) return;
    const t = this.tree, node = this.graph.selected;
    const beside = (by) => {
      const row = (this.graph.rows[t.depth[node]] ?? []).filter((r) => r.node >= 0);
      const next = row[row.findIndex((r) => r.node === node) + by];
      if (next) this.choose(next.node);
    };
    const act = {
      ArrowUp: () => node > 0 && this.choose(t.parent[node]),
      ArrowDown: () => { const c = t.childrenOf(node)[0]; if (c && this.graph.isShown(c)) this.choose(c); },
      ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
      Enter: () => this.zoom(node), Escape: () => this.zoom(0),
    }[e.key];
    if (!act) return;
    e.preventDefault();
    e.stopPropagation();
    act();
  },

  update(f) {
    if (!this.panel) this.make();
    this.side.value = state().get("side") || "both";
    const from = [[f.sampled_stacks, "sampled"], [f.recorded_stacks, "recorded"]].filter(([n]) => n > 0)
      .map(([n, name]) => n + " " + name + (n === 1 ? " stack" : " stacks"));
    const span = (Date.parse(f.to) - Date.parse(f.from)) / 1000;
    this.totals.textContent = "On CPU " + number(f.on_cpu_sessions) + ", off CPU " + number(f.off_cpu_sessions) + " sessions. " + (from.length ?
      "Estimated from " + from.join(" and ") + ", for " + Math.round(f.stack_seconds) + " s of " + Math.round(span) + " s." :
      f.stack_seconds ? "No stack passes the filter on this side." :
      "No stack has been taken in this time. The worker takes stacks once a second while this view is open.");
    const empty = !f.nodes?.length;
    this.box.hidden = empty;
    if (empty) {
      this.tree = null;
      this.detail.textContent = "";
      this.list.replaceChildren();
      return this.panel;
    }
    const old = this.tree, keep = (node) => old ? old.paths[node] : "";
    const zoomed = keep(this.graph.zoom), selected = keep(this.graph.selected);
    this.tree = new FlameTree(f.nodes);
    this.graph.zoom = this.tree.find(zoomed);
    this.graph.selected = this.tree.find(selected);
    this.graph.hovered = -1;
    if (this.panel.isConnected) this.show();
    else requestAnimationFrame(() => this.tree && this.show());
    this.detail.textContent = clean(this.describe(this.graph.selected));
    const all = this.tree.total[0], sums = new Map();
    for (const n of f.nodes) {
      const name = n.functions.at(-1);
      if (name && n.self_sessions > 0) sums.set(name, (sums.get(name) ?? 0) + n.self_sessions);
    }
    this.list.replaceChildren(table([["self", "n"], ["sessions", "n"], ["innermost function", ""]],
      [...sums].sort((a, b) => b[1] - a[1]).slice(0, 20).map(([name, self]) => ({
        key: "flame" + name, act: () => this.zoom(this.tree.nodes.findIndex((n) => n.functions.at(-1) === name && n.self_sessions > 0)),
        cells: [percent(100 * self / all), number(self), text(name)],
      }))), f.nodes_left_out ? el("p", "dim", f.nodes_left_out + " parts are too small to be shown.") : "");
    return this.panel;
  },
};
