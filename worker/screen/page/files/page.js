"use strict";
// The incident screen in a browser. Each text of the server becomes a text node, never HTML.

const views = ["load", "who", "blocking", "session", "flame"];
const properties = ["query", "event", "user", "application", "database", "phrase", "session", "type"];
const withoutNames = ["query", "event", "session", "type"];
const colours = { CPU: "#2f8f3f", IO: "#2372cc", LWLock: "#c83f94", Lock: "#d92b23", BufferPin: "#8a6bd1", IPC: "#16858f",
  Client: "#7a8694", Timeout: "#a8820f", Extension: "#a0633a", InjectionPoint: "#5b6ee0", Other: "#767676" };
const longest = 2000; // characters of a text on the page
const byId = (id) => document.getElementById(id);
let names = false, stopped = false, asked = 0, last = null, failed = "", timer = 0;
let answered = 0; // when the last answer came, in ms
let pending = false; // the data of another view is on the page
let search = ""; // the text of the last search
let held = null; // stack, plan and memory of one process, which stay on the page
let measured = null; // the profile or the waits of one process: {of, kind, time, text, command}
let measuring = ""; // what is measured now

// state is in the address: view, by, pid, seconds, filter; from, to and at for an earlier time.
const state = () => new URLSearchParams(location.hash.slice(1));
const view = () => [...views, "servers"].includes(state().get("view")) ? state().get("view") : "load";
function change(update) {
  const s = state();
  update(s);
  location.hash = s.toString();
}
const open = (name) => change((s) => {
  if (name === "flame" && view() === "session" && s.get("pid")) { // only the stacks of this process
    s.delete("filter");
    s.append("filter", "session=" + s.get("pid"));
  }
  s.set("view", name);
});
const openSession = (pid) => change((s) => { s.set("view", "session"); s.set("pid", pid); });
const addFilter = (by, key) => change((s) => {
  const filter = by + "=" + key;
  s.set("view", "who");
  if (!s.getAll("filter").includes(filter)) s.append("filter", filter);
});

// clean cuts a text, and shows control and direction characters as codes.
function clean(value) {
  let text = String(value ?? "");
  if (text.length > longest) text = text.slice(0, longest) + " … (cut)";
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => "<U+" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + ">");
}
// el makes an element with a class and children, which are elements or texts.
function el(tag, kind, ...children) {
  const e = document.createElement(tag);
  if (kind) e.className = kind;
  for (const c of children) e.append(c instanceof Node ? c : clean(c));
  return e;
}
const number = (n) => n > 0 && n < 0.05 ? "< 0.1" : n.toFixed(1);
const percent = (n) => n == null ? "" : number(n) + " %";
// age is empty for a time that is more than a second in the future: then the clock was set back, or the clocks differ.
function age(since, at) {
  const ms = Date.parse(at) - Date.parse(since), s = Math.max(0, ms / 1000);
  if (!since || ms < -1000) return "";
  if (s < 60) return Math.floor(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
}
// after is a text and an age, or empty without an age.
function after(text, since, at) {
  const a = age(since, at);
  return a && text + a;
}
function bytes(n) {
  return n == null ? "not known" : n < 1 << 20 ? (n / 1024).toFixed(1) + " kB" : (n / (1 << 20)).toFixed(1) + " MB";
}
function panel(title, ...children) { return el("section", "", el("h2", "", title), ...children); }
// part shows data, or the error in its place.
function part(d, name, title, show) {
  const error = d.errors?.[name];
  if (error) return panel(title, el("p", "error", error));
  return d[name] ? show(d[name]) : panel(title, el("p", "dim", "no data"));
}
// table has columns [name, class] and rows {cells, act, key}, and select and chosen if a row can be selected.
function table(columns, rows) {
  const head = el("tr", "", ...columns.map(([name, kind]) => { const th = el("th", kind, name); th.scope = "col"; return th; }));
  const body = el("tbody", "");
  for (const r of rows) {
    const tr = el("tr", "", ...r.cells.map((c, i) => el("td", columns[i][1], c)));
    if (r.act) {
      tr.tabIndex = 0;
      tr.dataset.key = r.key;
      tr.addEventListener("click", r.act);
      tr.addEventListener("keydown", (e) => { if (e.key === "Enter") r.act(); });
      if (r.select) {
        tr.setAttribute("aria-selected", String(r.chosen));
        tr.select = r.select;
        tr.addEventListener("focus", r.select);
        // A row that is drawn below a pointer at rest gets an event too, without a movement.
        tr.addEventListener("pointermove", (e) => { if (e.movementX || e.movementY) r.select(); });
      }
    }
    body.append(tr);
  }
  return el("div", "scroll", el("table", "", el("thead", "", head), body));
}
const text = (value) => el("span", "text", value ?? "");

function chart(l, processors) {
  const canvas = el("canvas", "chart"), pick = el("div", "pick"), plot = new Plot(canvas, l, 34);
  pick.hidden = true;
  canvas.setAttribute("role", "img");
  const list = (l.classes ?? []).map((c, i) => [c, l.active_sessions[i]]);
  canvas.setAttribute("aria-label", "active sessions: " + list.map(([c, n]) => c + " " + number(n)).join(", "));
  const legend = el("ul", "legend", ...list.map(([c, n]) => {
    const mark = el("span", "mark");
    mark.style.background = colours[c] ?? colours.Other;
    return el("li", "", mark, c + " " + number(n));
  }));
  const kinds = [...new Set((l.columns ?? []).map((c) => c.kind).filter(Boolean))].map((k) => kindNames[k] ?? k).join(", ");
  const note = el("p", "dim", "Click: the sessions of a moment. Drag: a span. " + kinds);
  plot.listen(note, pick);
  requestAnimationFrame(() => {
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const g = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    g.scale(ratio, ratio);
    g.font = "12px system-ui, sans-serif";
    const left = plot.left, bottom = height - 24;
    let most = Math.max(1, processors || 0);
    for (const c of l.columns ?? []) most = Math.max(most, (c.active_sessions ?? []).reduce((a, b) => a + b, 0));
    most *= 1.1;
    const y = (n) => bottom - n / most * (bottom - 6);
    for (const c of l.columns ?? []) {
      if (!c.active_sessions) continue;
      const at = Date.parse(c.time), x0 = Math.round(Math.max(left, plot.x(at))), x1 = Math.round(Math.min(width, plot.x(at + l.column_seconds * 1000)));
      let sum = 0;
      c.active_sessions.forEach((n, i) => {
        g.fillStyle = colours[l.classes[i]] ?? colours.Other;
        g.fillRect(x0, y(sum + n), Math.max(1, x1 - x0), y(sum) - y(sum + n));
        sum += n;
      });
    }
    g.strokeStyle = g.fillStyle = style.getPropertyValue("--dim");
    drawGaps(g, plot, 6, bottom);
    g.strokeRect(left, bottom, width - left, 0);
    drawKinds(g, plot, bottom);
    g.fillText("0", 20, bottom);
    g.fillText(String(Number((most / 1.1).toFixed(most < 11 ? 1 : 0))), 8, y(most / 1.1) + 4);
    g.fillText(clock(plot.from), left, height - 3);
    const end = clock(plot.to);
    g.fillText(end, width - g.measureText(end).width, height - 3);
    if (processors) {
      g.setLineDash([5, 4]);
      g.beginPath();
      g.moveTo(left, y(processors));
      g.lineTo(width, y(processors));
      g.stroke();
      g.setLineDash([]);
      g.fillText(processors + " CPUs", left + 6, y(processors) - 4);
    }
    if (!isLive()) {
      const at = plot.x(shown().at ?? plot.to);
      g.strokeStyle = g.fillStyle = style.getPropertyValue("--accent");
      g.fillRect(Math.min(at, width - 1) - 1, 0, 2, bottom);
    }
  });
  return panel("Active sessions", el("div", "room", canvas, pick), legend, note,
    l.gaps?.length ? el("p", "dim", "No data: " + l.gaps.slice(0, 5).map((x) =>
      clock(Date.parse(x.from)) + " to " + clock(Date.parse(x.to)) + ", " + x.reason).join("; ") +
      (l.gaps.length > 5 ? "; and " + (l.gaps.length - 5) + " more" : "")) : "");
}
function findings(f) {
  if (!f.findings?.length) return panel("Findings", el("p", "dim", "The rules find nothing in the newest sample."), ...unknown(f));
  return panel("Findings", table([["", ""], ["the worst first", ""], ["for", "n"], ["% of DB time", "n"]], f.findings.map((x) => ({
    key: x.key,
    act: x.pid ? () => openSession(x.pid) : x.filter?.length ? () => addFilter(x.filter[0].by, x.filter[0].key) : null,
    cells: [el("span", x.severity, x.severity === "critical" ? "▲ critical" : "△ warning"),
      el("div", "", el("b", "", x.text), x.detail ? text(x.detail) : ""),
      after(x.at_least ? "≥ " : "", x.since, f.time), percent(x.percent)],
  }))), ...unknown(f));
}
const unknown = (f) => (f.unknown ?? []).map((u) => el("p", "dim", "not known: " + u));
// replay describes the replay of a standby.
function replay(i) {
  const r = i?.replay;
  if (!r) return [];
  const lag = r.lag_bytes, since = after(", and has not advanced for ", r.stands_since, i.last);
  return [panel("Replay on this standby", el("p", r.paused || r.stands_since ? "warning" : "", (lag == null ? "It has received no WAL since its start" :
    lag === 0 ? "All received WAL is replayed" : "Replay is " + bytes(lag) + " behind the received WAL") + since + (r.paused ? "; it is paused" : "")))];
}
function sessions(s) {
  const rows = (s.sessions ?? []).map((x) => ({
    key: x.server_pid, act: () => openSession(x.server_pid),
    cells: [String(x.server_pid), x.class || x.state || x.backend_type, x.wait ? x.wait.wait_event : "",
      age(x.class ? x.query_start : x.state_change, s.time), text((x.own ? "(of pg_stat_backtrace, by its name) " : "") + (names ? (x.phrase || x.query || "") : x.backend_type))],
  }));
  return panel("Sessions", table([["PID", "n"], ["state", ""], ["event", "wide"], ["for", "n"], [names ? "statement" : "type", ""]], rows),
    s.more ? el("p", "dim", "and " + s.more + " more") : "");
}
function propertyChoice(by) {
  const choose = el("select", "");
  choose.setAttribute("aria-label", "count by");
  choose.dataset.key = "count by"; // keeps the focus when the page is drawn again
  for (const p of names ? properties : withoutNames) choose.append(new Option(p, p, false, p === by));
  choose.addEventListener("change", () => change((s) => s.set("by", choose.value)));
  return choose;
}
function who(w) {
  return panel("Share of database time by ", propertyChoice(w.by),
    table([["%", "n"], ["sessions", "n"], ["mostly", "wide"], [w.by, ""]], (w.rows ?? []).map((r) => ({
      key: r.key, act: () => addFilter(w.by, r.key),
      cells: [percent(r.percent), number(r.active_sessions),
        Object.entries(r.by_class ?? {}).sort((a, b) => b[1] - a[1])[0]?.[0] ?? "", text(r.name || "(none)")],
    }))), w.others ? el("p", "dim", "others: " + percent(w.others.percent)) : "");
}
// lines makes a line for each line of a text. The search can focus a line.
function lines(name, text) {
  return el("pre", "", ...text.slice(0, 60000).split("\n").map((t, n) => {
    const line = el("span", "line", t + "\n");
    line.tabIndex = -1;
    line.dataset.key = name + n;
    return line;
  }));
}
function captureButton() {
  const b = el("button", "act", "Capture now (c)");
  b.type = "button";
  b.dataset.key = "capture"; // keeps the focus when the page is drawn again
  b.addEventListener("click", capture);
  return b;
}
function session(d) {
  const pid = state().get("pid");
  const note = held && isLive() ? [panel("Captured at " + new Date(held.time).toLocaleTimeString(),
    el("p", "dim", "Stack, plan and memory stay until Esc. The rest of the page is live."))] : [];
  if (held && isLive()) d = { ...d, stack: held.stack, plan: held.plan, memory: held.memory, errors: { ...d.errors, stack: undefined,
    plan: undefined, memory: undefined, ...held.errors } };
  if (measured?.of === measuredOf()) {
    const close = el("button", "act", "Close (Esc)");
    close.type = "button";
    close.dataset.key = "close";
    close.addEventListener("click", endMeasured);
    const result = lines("measured", measured.text);
    result.className = "columns";
    note.unshift(panel(measured.kind + ", " + new Date(measured.time).toLocaleTimeString() + " ", close, result));
  }
  return [...note,
    part(d, "session", "Process " + pid, (s) => panel("Process " + pid, ...(names && isLive() ? measureButtons() : []),
      el("p", "", s.now ? [s.now.pid !== s.now.server_pid && "host_pid " + s.now.pid, s.now.application_name, s.now.user, s.now.database, s.now.state || s.now.backend_type,
        s.now.wait && s.now.wait.wait_event_type + ":" + s.now.wait.wait_event].filter(Boolean).join(" · ") : "The process has ended."),
      s.used ? el("p", "dim", [s.used.percent_of_a_processor != null && s.used.percent_of_a_processor.toFixed(0) + " % of a processor",
        s.used.disk_read_bytes_per_second != null && "disk: reads " + bytes(s.used.disk_read_bytes_per_second) + "/s, writes " +
        bytes(s.used.disk_written_bytes_per_second) + "/s"].filter(Boolean).join(" · ")) : "",
      s.blocker ? el("p", "critical", "▲ blocked by " + s.blocker) : "",
      names && s.now?.query ? el("pre", "", s.now.query) : "",
      table([["from", "n"], ["for", "n"], ["state", ""]], (s.waits ?? []).slice(-20).reverse().map((w) => ({
        cells: [new Date(w.from).toLocaleTimeString(), age(w.from, w.to), w.event || w.class || "not active"] }))))),
    part(d, "stack", "Stack", (s) => panel("Stack", captureButton(), s.phrase ? el("p", "", el("b", "", s.phrase)) : "",
      el("p", "dim", s.engine + (s.stop ? "; the stack ends early: " + s.stop : "")),
      lines("stack", (s.frames ?? []).map((f) => [f.function, f.place].filter(Boolean).join("  ") +
        (f.levels ?? []).map((x) => "\n    " + x).join("")).join("\n")))),
    part(d, "plan", "Plan", (p) => panel("Plan", p.levels?.length || p.progress ? "" : el("p", "dim", "The process runs no plan."),
      p.progress ? el("p", "", el("b", "", p.progress.text)) : "",
      p.progress ? lines("progress", p.progress.view + "\n" + (p.progress.columns ?? []).map((c) => "  " + c.name + ": " + c.value).join("\n")) : "",
      p.phrase ? el("p", "", p.phrase) : "", p.unproven && p.engine && p.levels?.length ? el("p", "dim", "The layout of this build is unproven.") : "",
      ...(p.levels ?? []).flatMap((x, n) => [lines("plan" + n + "-", x.text || ""), x.reason ? el("p", "dim", x.reason) : ""]))),
    part(d, "memory", "Memory", (m) => panel("Memory " + bytes(m.total_bytes) + ", resident " + bytes(m.resident_bytes),
      m.inexact ? el("p", "dim", "not exact: " + m.inexact) : "",
      table([["total", "n"], ["free", "n"], ["contexts", "n"], ["name", ""]], (m.contexts ?? []).slice(0, 20).map((c) => ({
        cells: [bytes(c.total_bytes), bytes(c.free_bytes), String(c.contexts), c.name] }))))),
  ];
}

let headed = 0; // when the header was drawn
function header() {
  const list = isList(), i = list ? null : last?.info;
  headed = Date.now();
  document.body.dataset.view = view();
  byId("server").textContent = i ? clean("PostgreSQL " + i.server_version + (i.port ? ", port " + i.port : "") +
    (i.standby ? ", standby" : "") + (i.own_process_ids ? ", own process ids" : "") + " · " + i.sessions.active + " active · " + i.sessions.idle_in_transaction +
    " idle in transaction" + (i.past ? "" : " · " + i.sessions.idle + " idle")) : list && servers.length ?
    servers.length + (servers.length === 1 ? " server" : " servers") : "";
  // The clocks of the server and of the browser may differ.
  const sample = i?.last ? age(i.last, new Date(Date.parse(last.time) + Date.now() - answered).toISOString()) : "";
  const old = sample && " · sample " + sample + " old";
  byId("age").textContent = list ? (stopped ? "stopped" : failed ? "no answer" : "live") : isLive() ? (stopped ? "stopped" : failed ? "no answer" : "live") + old :
    failed ? "no answer" : i?.past && i.last ? "sessions of " + clock(Date.parse(i.last)) : "no sessions at this moment";
  byId("age").classList.toggle("past", !list && !isLive());
  timeHeader();
  byId("cost").textContent = i?.cost_percent_of_a_processor != null ?
    "Cost: the worker uses " + number(i.cost_percent_of_a_processor) + " % of a processor." : "";
  const error = failed || i?.error || "";
  byId("failure").hidden = !error;
  byId("failure").className = "error";
  if (byId("failure").textContent !== clean(error)) byId("failure").textContent = clean(error);
  byId("take-incident").hidden = !names;
  byId("stop").setAttribute("aria-pressed", String(stopped));
  const buttons = JSON.stringify([view(), list, many, state().getAll("filter")]);
  if (buttons !== drawnButtons) headerButtons(list);
  drawnButtons = buttons;
}
let drawnButtons = ""; // a button that stays keeps the focus
function headerButtons(list) {
  const focus = document.activeElement;
  byId("views").replaceChildren(...(list || many ? ["servers"] : []).concat(list ? [] : views).map((v) => {
    const b = el("button", "", v[0].toUpperCase() + v.slice(1));
    b.type = "button";
    b.title = "key " + (v === "servers" ? "s" : views.indexOf(v) + 1);
    if (v === view()) b.setAttribute("aria-current", "page");
    b.addEventListener("click", v === "servers" ? showServers : () => open(v));
    return b;
  }));
  byId("filters").replaceChildren(...(list ? [] : state().getAll("filter")).map((f) => {
    const b = el("button", "", f + " ×");
    b.setAttribute("aria-label", clean("remove the filter " + f));
    b.addEventListener("click", () => change((s) => {
      const rest = s.getAll("filter").filter((x) => x !== f);
      s.delete("filter");
      rest.forEach((x) => s.append("filter", x));
    }));
    return b;
  }));
  if (focus?.isConnected === false) { // it was one of these buttons
    [...document.querySelectorAll("#views button, #filters button")].find((b) => b.textContent === focus.textContent)?.focus();
  }
}
// listIsOpen reports whether a list of the view is open: to draw again would close it. A browser without :open cannot tell such a list
// from one with the focus.
const tellsOpen = CSS.supports("selector(:open)");
function listIsOpen() {
  const e = document.activeElement;
  return e?.tagName === "SELECT" && byId("main").contains(e) && (!tellsOpen || e.matches(":open"));
}
// pressed: the main button of the pointer, or the space bar on a button, is down. The click comes only if the element stays until the
// release.
let pressed = false;
let late = false; // the view has not been drawn because of that
function endPress() {
  if (!pressed) return;
  setTimeout(() => { // the click comes first
    pressed = false;
    if (!late) return;
    draw();
    header();
  });
}
// A list takes the release for itself.
addEventListener("pointerdown", (e) => { pressed = e.button === 0 && e.target.tagName !== "SELECT"; }, true);
addEventListener("pointermove", (e) => { if (!e.buttons) endPress(); }, true); // released outside of the window
addEventListener("keydown", (e) => { if (e.key === " " && e.target.tagName === "BUTTON") pressed = true; }, true);
for (const end of ["pointerup", "pointercancel", "keyup"]) addEventListener(end, endPress, true);
let lostFocus; // the key of the element that had the focus when a choice emptied the view
function draw() {
  const d = last, v = view(), main = byId("main"), active = document.activeElement;
  late = pressed;
  if (drag || pressed || listIsOpen()) return;
  const focus = active?.dataset?.key ?? (active === document.body ? lostFocus : undefined);
  lostFocus = pending ? focus : undefined;
  if (v === "servers") main.replaceChildren(...(servers.length ? [serverList()] : []));
  else if (v === "session" && !state().get("pid")) {
    main.replaceChildren(panel("Session", el("p", "dim", "Choose a session in another view.")));
  } else if (!d || pending) {
    main.replaceChildren();
  } else if (v === "load") {
    main.replaceChildren(part(d, "load", "Active sessions", (l) => chart(l, d.info?.processors)), ...replay(d.info),
      part(d, "findings", "Findings", findings), part(d, "sessions", "Sessions", sessions));
  } else if (v === "who") main.replaceChildren(state().get("compare") ? part(d, "comparison", "Comparison", comparison) : part(d, "who", "Who", who));
  else if (v === "blocking") main.replaceChildren(part(d, "blocking", "Blocking", blocking));
  else if (v === "flame") {
    const p = part(d, "flame", "Flame graph", (f) => flameView.update(f));
    if (main.firstElementChild !== p) main.replaceChildren(p); // else it keeps its place and the focus
  } else main.replaceChildren(...session(d));
  if (focus) [...main.querySelectorAll("[data-key]")].find((e) => e.dataset.key === focus)?.focus();
  document.body.dataset.ready = v;
}
// ask gets the data of the view: for the live server by a stream, of which each line is drawn, else by a request.
let streaming = null; // ends the stream
let streams = true; // false: a stream has not worked, perhaps because of a proxy
const silence = 10000; // ms without a byte after which a stream is broken
async function ask() {
  clearTimeout(timer);
  streaming?.abort();
  const mine = ++asked;
  if (isList()) { askServers(mine); return; }
  const s = state(), base = below(serverOf()), q = new URLSearchParams({ view: view() });
  for (const k of ["seconds", "by", "side", "from", "to", "at"]) if (s.get(k)) q.set(k, s.get(k));
  if (view() === "who" && s.get("compare")) q.set("compare", s.get("compare"));
  if (view() === "session") {
    if (!s.get("pid")) { header(); draw(); return; }
    q.set("pid", s.get("pid"));
  }
  for (const f of s.getAll("filter")) q.append("filter", f);
  const options = request();
  if (isLive() && !stopped && !document.hidden && streams && await follow(base + "events?" + q, options, mine)) return;
  if (mine !== asked) return;
  try {
    const r = await fetch(base + "data?" + q, options);
    const body = r.ok ? await r.json() : await r.text();
    if (mine !== asked) return;
    byId("login").hidden = r.status !== 401;
    failed = r.ok ? "" : body.slice(0, longest);
    if (r.ok) take(body);
    if (r.status === 401) { last = null; header(); draw(); return; }
  } catch (e) {
    if (mine !== asked) return;
    failed = "The worker does not answer: " + e.message;
  }
  show();
  again();
}
// follow draws each line of a stream. It returns false if there is no stream, so that a request has to say why.
async function follow(url, options, mine) {
  const end = new AbortController();
  let got = false, silent = false, quiet = 0;
  const heard = () => { clearTimeout(quiet); quiet = setTimeout(() => { silent = true; end.abort(); }, silence); };
  streaming = end;
  heard();
  try {
    const r = await fetch(url, { ...options, signal: end.signal });
    if (r.status === 404) streams = false; // a worker without streams
    if (!r.ok) return mine !== asked;
    const reader = r.body.getReader(), decoder = new TextDecoder();
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (mine !== asked) return true;
      if (done) break;
      heard();
      const all = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = all.pop();
      if (!all.length) continue;
      take(JSON.parse(all[all.length - 1])); // an older one is out of date
      got = true;
      failed = "";
      byId("login").hidden = true;
      show();
    }
  } catch {
    if (mine !== asked) return true;
    if (silent && !got) streams = false; // something between holds the lines back
  } finally {
    clearTimeout(quiet);
    end.abort();
  }
  return false;
}
function take(body) {
  last = body;
  answered = Date.now();
  names = body.names;
  pending = false;
  learnServers();
}
function show() {
  try {
    if (!failed) draw();
  } catch (e) {
    failed = "The page cannot show the data: " + e.message;
  }
  header();
}
// again asks later. An earlier time changes only while the recorder may still write it.
function again() {
  const fresh = isLive() || now() - shown().to < 60000;
  if (!stopped && !document.hidden && (fresh || failed)) timer = setTimeout(ask, isLive() ? 1000 : 5000);
}
// The age of the data grows while no answer comes.
setInterval(() => { if (last && isLive() && !stopped && Date.now() - headed > 2500) header(); }, 1000);
function stop() {
  stopped = !stopped;
  header();
  if (stopped) halt();
  else ask();
}
// halt ends the stream and the requests.
function halt() {
  clearTimeout(timer);
  asked++;
  streaming?.abort();
}
byId("stop").addEventListener("click", stop);
byId("seconds").addEventListener("change", (e) => zoomTo(Number(e.target.value)));
byId("login").addEventListener("submit", (e) => {
  e.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  ask();
});
let drawnFor = "";
let shownServer = serverOf();
addEventListener("hashchange", () => {
  if (listIsOpen()) document.activeElement.blur(); // the reader has chosen
  if (view() !== "session" || held && String(held.pid) !== state().get("pid")) held = null;
  if (!isList() && serverOf() !== shownServer) { // nothing of another server may stay on the page
    shownServer = serverOf();
    last = held = measured = null;
    names = false;
    streams = true;
    levels = { key: "" };
  }
  const s = state(), page = [view(), serverOf(), s.get("pid"), s.get("by"), s.get("compare"), s.getAll("filter")].join();
  if (page !== drawnFor) pending = true; // another time keeps the picture until the answer
  drawnFor = page;
  failed = "";
  header();
  draw();
  ask();
});

// say shows a message until the next key. A command has its own style, so that the reader can select it.
function say(message, command) {
  byId("message").replaceChildren(el("span", "", message), command ? el("code", "", command) : "");
}
// find focuses the next row or line that has the text of the search.
function find(step) {
  if (!search) return say("Search with / first.");
  const all = [...byId("main").querySelectorAll("[data-key]:not(select)")], at = all.indexOf(document.activeElement);
  for (let k = 1; k <= all.length; k++) {
    const i = step > 0 ? (at + k) % all.length : ((at < 0 ? all.length : at) - k + all.length) % all.length;
    if (!all[i].textContent.toLowerCase().includes(search.toLowerCase())) continue;
    all[i].focus();
    all[i].scrollIntoView({ block: "nearest" });
    return say("Found: " + search + ". n: next, N: previous.");
  }
  say("No row of this view has: " + search);
}
// moveRow focuses the next row of the tables. It returns false if the view has none.
function moveRow(step) {
  const rows = [...byId("main").querySelectorAll("tr[data-key]")], at = rows.indexOf(document.activeElement);
  if (!rows.length) return false;
  const row = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)];
  row.focus();
  row.scrollIntoView({ block: "nearest" });
  row.select?.();
  return true;
}
// capture keeps stack, plan and memory of the process as they are now.
async function capture() {
  if (view() !== "session" || !state().get("pid")) return say("c works in the view Session.");
  if (!names) return say("A capture needs an operator token.");
  const pid = state().get("pid");
  const x = await act("capture", { pid: Number(pid) });
  if (x.error || pid !== state().get("pid")) return say("The capture failed: " + (x.error || "the view has changed"));
  held = { pid, time: x.time, stack: x.stack, plan: x.plan, memory: x.memory, errors: {} };
  for (const part of ["stack", "plan", "memory"]) if (x.errors?.[part]) held.errors[part] = x.errors[part];
  draw();
  say("Captured now. Esc shows the live stack again.");
}
// measure takes a profile of the process, or records its waits, for ten seconds.
const measuredOf = () => serverOf() + "/" + state().get("pid");
async function measure(key) {
  const [name, kind] = { p: ["profile", "Profile of 10 s"], w: ["waits", "Waits of 10 s"] }[key];
  if (view() !== "session" || !state().get("pid")) return say(key + " works in the view Session.");
  if (!isLive()) return say("A measurement is of now. 0 shows the live server.");
  if (!names) return say((key === "p" ? "A profile needs" : "Waits need") + " an operator token.");
  if (measuring) return say("This still runs: " + measuring);
  const of = measuredOf(), pid = state().get("pid"), here = last?.session?.now?.pid ?? pid;
  measuring = kind + " of process " + pid;
  const x = await act(name, { pid: Number(pid) }, measuring + " …");
  measuring = "";
  if (x.error) return say(kind + " failed: " + x.error);
  measured = { of, kind, time: x.time, text: x.text.trimEnd(), command: "pg_stat_backtrace " + (key === "p" ?
    "profile --mode wall --duration 10s " + here : "waits --trace " + here + " --duration 10s") };
  draw();
  say(measuredOf() === of && view() === "session" ? "Esc closes it." : kind + ": process " + pid + " has the result in the view Session.");
}
function measureButtons() {
  return [["w", "Waits 10 s (w)"], ["p", "Profile 10 s (p)"]].map(([key, name]) => {
    const b = el("button", "act", name);
    b.type = "button";
    b.dataset.key = "measure" + key;
    b.addEventListener("click", () => measure(key));
    return b;
  });
}
function endMeasured() {
  measured = null;
  draw();
}
// act starts an action of the worker, and returns its answer or an error.
async function act(name, body, message) {
  say(message ?? "Waiting for the worker …");
  try {
    const r = await fetch(below(serverOf()) + name, { method: "POST", body: JSON.stringify(body), credentials: "omit", cache: "no-store",
      headers: { Authorization: "Bearer " + sessionStorage.getItem("token"), "Content-Type": "application/json" } });
    return r.ok ? await r.json() : { error: (await r.text()).slice(0, longest).trim() };
  } catch (e) {
    return { error: "the worker does not answer: " + e.message };
  }
}
function askIncident() {
  if (!names) return say("An incident needs an operator token.");
  byId("incident").showModal();
  byId("note").focus();
}
byId("incident-form").addEventListener("submit", async (e) => {
  e.preventDefault();
  byId("incident").close();
  const x = await act("incident", { note: byId("note").value.trim() });
  byId("note").value = "";
  if (x.error) return say("The worker took no incident: " + x.error);
  say("Incident " + x.id + (x.missing?.length ? ", with " + x.missing.length + " parts missing" : "") + ". This command shows it: ",
    x.command);
});
function release() {
  held = null;
  draw();
}
// copy shows the command that prints the same, and copies it if the browser allows that.
async function copy() {
  if (!isList() && !last?.command) return say("There is no data yet.");
  const origin = serverOf() ? location.protocol + "//" + location.hostname + ":" + serverOf() : location.origin;
  const command = isList() ? "pg_stat_backtrace top --all" : view() === "session" && measured?.of === measuredOf() ? measured.command :
    clean(last.command.replace("--connect URL", "--connect '" + origin + "'"));
  say("", command);
  try {
    await navigator.clipboard.writeText(command);
    say("Copied: ", command);
  } catch {
    say("The browser does not allow the copy. The command is: ", command);
  }
}
byId("find").addEventListener("submit", (e) => {
  e.preventDefault();
  search = byId("search").value;
  byId("find").hidden = true;
  find(1);
});
byId("search").addEventListener("keydown", (e) => {
  if (e.key !== "Escape" && !(e.key === "Backspace" && !e.target.value)) return;
  e.preventDefault();
  byId("find").hidden = true;
});
for (const [id, act] of [["show-help", () => byId("help").showModal()], ["close-help", () => byId("help").close()],
  ["take-incident", askIncident], ["close-incident", () => byId("incident").close()]])
  byId(id).addEventListener("click", act);
// A chart has pixels of its own, in the colours of the theme.
const redraw = () => { if (view() === "load" && last && !pending) draw(); };
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("visibilitychange", () => { if (document.hidden) halt(); else if (!stopped) ask(); });
addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || ["INPUT", "SELECT"].includes(e.target.tagName)) return;
  if (byId("help").open) {
    if (e.key === "?" || e.key === "q") byId("help").close();
    return;
  }
  if (byId("incident").open || byId("time").open || byId("versus").open) return;
  say("");
  if (isList() && "12345ciprtvw0<>,.+=-[]".includes(e.key)) say("Open a server with Enter first.");
  else if (e.key === "s") { if (many || isList()) showServers(); else say("This worker serves one server."); }
  else if ("12345".includes(e.key)) open(views[e.key - 1]);
  else if (measured?.of === measuredOf() && view() === "session" && (e.key === "Escape" || e.key === "Backspace")) { e.preventDefault(); endMeasured(); }
  else if (held && (e.key === "Escape" || e.key === "Backspace")) { e.preventDefault(); release(); }
  else if (e.key === "Escape" && view() === "load" && !isLive()) setLive();
  else if (e.key === "Backspace") {
    e.preventDefault();
    if (history.length > 1 || !serverOf()) history.back();
    else showServers();
  }
  else if (e.key === "/") {
    e.preventDefault();
    byId("find").hidden = false;
    byId("search").select();
    byId("search").focus();
  } else if (["ArrowUp", "k", "ArrowDown", "j"].includes(e.key) && e.target !== flameView.box) {
    if (moveRow("ArrowUp k".includes(e.key) ? -1 : 1)) e.preventDefault();
  } else if (e.key === "n") find(1);
  else if (e.key === "N") find(-1);
  else if (e.key === "?") byId("help").showModal();
  else if (e.key === "c") capture();
  else if (e.key === "p" || e.key === "w") measure(e.key);
  else if (e.key === "i") { e.preventDefault(); askIncident(); }
  else if (e.key === "y") copy();
  else if (e.key === "r") change((s) => s.delete("filter"));
  else if (e.key === " " && e.target.tagName !== "BUTTON") { e.preventDefault(); stop(); }
  else timeKey(e);
});
startTime();
startCompare();
ask();
