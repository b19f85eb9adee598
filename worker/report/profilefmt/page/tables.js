// tables.js: the tables beside the graph.

const mostRows = 300;

const capital = (word) => word[0].toUpperCase() + word.slice(1);

// makeTabs makes the tabs work, and hides those that have nothing to show.
function makeTabs() {
  $("tab-functions").textContent = capital(profile.noun) + "s";
  $("tab-queries").hidden = profile.keyIndex("query_id") < 0;
  $("tab-waits").hidden = !hasWaits();
  $("tab-labels").hidden = !profile.keys.length;
  const tabs = [...$("tabs").children].filter((tab) => !tab.hidden);
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
  const make = {
    functions: functionTable, queries: queryTable, waits: waitTable, labels: labelTable, frame: frameTable,
  };
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
      for (const button of $("panel").querySelectorAll("thead button")) {
        if (button.dataset.key === c.key) button.focus();
      }
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

// nameCell is the first cell of a row: a name that acts on a click, below it more, before it a colour.
function nameCell(name, title, onclick, more, colour) {
  let text = element("bdi", {}, shortName(name));
  if (onclick) text = element("button", { type: "button", title: name + "\n" + title, onclick }, text);
  const swatch = colour ? element("span", { class: "swatch" }) : null;
  if (swatch) swatch.style.background = graph.colours.css(colour, 0);
  return element("td", { title: onclick ? false : name }, swatch, text, more ? element("small", {}, more) : null);
}

// valueColumns are the columns of a value and of its share.
function valueColumns(key, name, of) {
  return [
    { key, name, kind: "amount", sort: of, cell: (r) => amountCell(of(r)) },
    { key: key + "-share", name: "%", kind: "share", sort: of, cell: (r) => shareCell(of(r)) },
  ];
}

function functionCell(row) {
  if (row.fn < 0) return nameCell(row.name);
  const title = [profile.functionModulePath(row.fn), profile.functionFile(row.fn), "Click to focus"];
  return nameCell(row.name, title.filter(Boolean).join("\n"), () => change({ focus: row.fn, zoom: [] }), "",
    graph.colours.module(row.fn).colour);
}

function functionTable() {
  const { rows, stackless } = functionSums(profile, tableTree());
  let list = rows.map((r) => ({ ...r, name: profile.functionName(r.fn) }));
  if (stackless > 0) list.push({ fn: -1, name: "(no stack)", self: stackless, total: stackless });
  const all = list.length;
  if (now.search) list = list.filter((r) => r.fn >= 0 && now.search.matches(2 * r.fn));
  const sum = list.reduce((s, r) => s + r.self, 0);
  const columns = [
    { key: "name", name: capital(profile.noun), kind: "text", sort: (r) => r.name, cell: functionCell },
    ...valueColumns("self", "Self", (r) => r.self), ...valueColumns("total", "Total", (r) => r.total),
  ];
  const which = now.search ? `${list.length} of ${count(all, profile.noun)} match` : count(all, profile.noun);
  const caption = `${which}, in percent of ${whole()}. Total includes the frames further in.`;
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
      cell: (r) => nameCell(r.name, "Click to filter", r.onclick, r.more, r.colour) },
    ...(hasWaits() && name !== "waits" ? [{ key: "classes", name: "Waits", kind: "classes", cell: classBar }] : []),
    ...valueColumns("value", profile.types[state.type].name, (r) => r.value),
  ];
  const foot = element("tfoot", {}, element("tr", {}, element("td", { colspan: columns.length - 2 }, "Sum"),
    amountCell(sum), shareCell(sum)));
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
  return [sumTable("queries", "Query", rows, `${count(rows.length, "query")}, in percent of ${whole()}`, [])];
}

// waitFilter makes a click on a wait filter by its event and by its type: events of different types share names, such
// as LWLock: WALWrite and IO: WALWrite. A second click removes both filters.
function waitFilter(set) {
  const keys = ["wait_event_type", "wait_event"].map((name) => profile.keyIndex(name)).filter((key) => key >= 0);
  const on = keys.every((key) => (state.filters.get(key) || new Set()).has(profile.labelString(set, key)));
  const texts = (key) => (on ? [] : [profile.labelString(set, key)]);
  return { on, onclick: () => setFilters(keys.map((key) => [key, texts(key)])) };
}

function waitTable() {
  const rows = labelSums(profile, now.selected.weights, now.tree.leaves, (set) => profile.wait[set]).map((r) => {
    const { colour } = graph.colours.wait(profile.waitClass[r.key]);
    return { ...r, colour, name: profile.waits[r.key].name, ...waitFilter(profile.wait.indexOf(r.key)) };
  });
  const caption = `${count(rows.length, "wait event")}, in percent of ${whole()}`;
  return [sumTable("waits", "Wait event", rows, caption, apartRows())];
}

// apartRows are the waits of the parts of time that the page leaves out.
function apartRows() {
  if (!now.selected.partial || !now.scope.includes(false)) return [];
  const { weights } = select(profile, state.type, state.filters, now.scope.map((on) => !on));
  const leaves = new Int32Array(weights.length);
  const of = (set) => profile.part[set] * profile.waits.length + profile.wait[set];
  const rows = labelSums(profile, weights, leaves, of);
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
  const key = state.label >= 0 ? state.label : 0;
  const choice = element("select", { id: "label-key", onchange: () => {
    state.label = Number(choice.value);
    state.others = state.others.filter(([name]) => name !== "label");
    showTable();
    $("label-key").focus();
    remember(false);
  } }, ...profile.keys.map((name, i) => element("option", { value: i, selected: i === key }, name)));
  const rows = labelRows(key);
  const caption = `${count(rows.length, "value")}, in percent of ${whole()}`;
  const label = element("label", { class: "choice" }, "Label ", choice);
  return [label, sumTable("labels", profile.keys[key], rows, caption, [])];
}

// frameTable shows the selected frame, and its neighbours in the graph.
function frameTable() {
  const t = now.tree;
  const node = graph.selected;
  const list = element("dl", {});
  const line = (name, value) => {
    if (value) list.append(element("dt", {}, name), element("dd", {}, element("bdi", {}, value)));
  };
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
  ];
  if (node > 0) {
    const up = t.parent[node];
    buttons.push(element("button", { type: "button", onclick: () => go(up) }, "Up: " + nodeName(up)));
  }
  const rows = t.childrenOf(node).map((child) => ({ node: child, name: nodeName(child), value: t.total[child] }));
  const columns = [
    { key: "name", name: state.invert ? "Further out" : "Further in", kind: "text", sort: (r) => r.name,
      cell: (r) => nameCell(r.name, "Click to go there", () => go(r.node)) },
    ...valueColumns("value", profile.types[state.type].name, (r) => r.value),
  ];
  const where = state.invert ? "further out" : "further in";
  const caption = rows.length ? `${count(rows.length, "frame")} directly ${where}` : `No frames ${where}`;
  return [element("div", { class: "actions" }, ...buttons), list, table("frame", caption, columns, rows, "labels", [])];
}
