"use strict";
// The view Blocking: the forest, and a panel about the selected process.

let chosenNode = ""; // the key of the selected row
let levels = { key: "" }; // the stack of the selected process: {key, at, phrase, lines, error}
const levelsEvery = 5000; // ms
const nodeKey = (n) => String(n.pid || n.gid || n.xid || "prepared");
const nodeName = (n) => n.pid ? "PID " + n.pid : "prepared " + (n.gid ?? n.xid ?? "transaction");

function lock(w) {
  const place = (w.object ?? "").split(" ").slice(1).join(" ");
  const object = w.relation ? ({ tuple: "row " + place + " of ", page: place + " of ", extend: "extension of " }[w.lock] ?? "relation ") + w.relation
    : w.lock === "advisory" ? "advisory lock " + (w.object ?? "").replace(/^(\d+ keys? |advisory lock )/, "") : w.lock + " " + (w.object ?? "");
  return "waits for " + object + (w.mode ? " in " + w.mode : "") + (w.row ? ", " + w.row : "") +
    (w.holders_unknown ? ", holders not known: " + w.holders_unknown : "");
}
function blocking(b) {
  if (!b.nodes?.length) return panel("Blocking", el("p", "dim", "No session waits for a lock."), ...missing(b));
  if (!b.nodes.some((n) => nodeKey(n) === chosenNode)) chosenNode = nodeKey(b.nodes[0]);
  const rows = table([["process", ""], ["blocks", "n"], ["lock", ""], ["for", "n"]], b.nodes.map((n) => ({
    key: nodeKey(n), act: n.pid ? () => openSession(n.pid) : () => chooseNode(b, n), select: () => chooseNode(b, n), chosen: nodeKey(n) === chosenNode,
    cells: ["\u00a0\u00a0".repeat(Math.min(n.depth, 12)) + (n.depth ? "└ " : "") + nodeName(n) +
      (n.session?.application_name ? " " + n.session.application_name : "") + (n.deadlock ? " (deadlock)" : ""),
    n.blocks ? String(n.blocks) : "",
    el("div", "", ...(n.waits?.length ? n.waits.map((w) => el("div", "", lock(w))) : [n.session?.state ?? ""]),
      names && n.session?.query ? text(n.session.query) : ""),
    n.waits?.length ? age(n.waits[0].since, b.time) : age(n.session?.state_change, b.time)],
  })));
  askLevels(b); // before the panel: it forgets the levels of another process or time
  const about = el("div", "about");
  about.id = "node";
  about.append(...nodePanel(b, b.nodes.find((n) => nodeKey(n) === chosenNode)));
  const forest = panel(b.waiting + " waiting, " + b.trees + (b.trees === 1 ? " root" : " roots"), rows, ...missing(b));
  return el("div", "beside", forest, about);
}
// chooseNode shows a process in the panel. It leaves the table alone, so that the focus and the pointer stay at their row.
function chooseNode(b, n) {
  if (nodeKey(n) === chosenNode) return;
  chosenNode = nodeKey(n);
  for (const tr of document.querySelectorAll("#main tr[data-key]")) tr.setAttribute("aria-selected", String(tr.dataset.key === chosenNode));
  askLevels(b); // before the panel, as above
  drawNode(b);
}
function drawNode(b) {
  const n = b.nodes.find((x) => nodeKey(x) === chosenNode);
  if (n && byId("node")) byId("node").replaceChildren(...nodePanel(b, n));
}
// askLevels gets the stack of the selected process, when the reader has stayed at it for a moment.
let levelsTimer = 0;
function askLevels(b) {
  const key = [chosenNode, serverOf(), state().get("from"), state().get("at"), state().get("to")].join();
  if (levels.key !== key) levels = { key, at: 0 };
  clearTimeout(levelsTimer);
  const n = b.nodes.find((x) => nodeKey(x) === chosenNode);
  if (!names || !n?.pid || Date.now() - levels.at < levelsEvery) return;
  levelsTimer = setTimeout(async () => {
    const mine = levels;
    mine.at = Date.now();
    const q = new URLSearchParams({ view: "session", pid: n.pid });
    for (const k of ["seconds", "from", "to", "at"]) if (state().get(k)) q.set(k, state().get(k));
    const x = await get(below(serverOf()) + "data?" + q);
    if (mine !== levels) return;
    const d = x.body ?? {};
    mine.error = x.error ?? d.errors?.stack ?? "";
    mine.phrase = d.stack?.phrase ?? "";
    mine.lines = (d.stack?.frames ?? []).flatMap((f) => f.levels ?? []);
    mine.none = Boolean(d.stack);
    if (view() === "blocking" && last?.blocking) drawNode(last.blocking);
  }, 300);
}
// nodePanel has all about a process: its waits, its state, its phrase, its PL/pgSQL levels and its text.
function nodePanel(b, n) {
  const s = n.session, parts = [];
  if (n.blocks) parts.push("Blocks " + n.blocks + (n.blocks === 1 ? " session, " : " sessions, ") + n.directly + " directly.");
  if (n.more_blockers) parts.push("Waits for " + n.more_blockers + " beside the process above it.");
  for (const w of n.waits ?? []) {
    parts.push((w.pid === n.pid ? "It " : "Process " + w.pid + " ") + lock(w) + after(", for ", w.since, b.time) + ".");
  }
  if (s?.state) parts.push(s.state + after(" for ", s.state_change, b.time) + after(", transaction open for ", s.xact_start, b.time) + ".");
  const who = s ? [s.application_name, s.user && s.user + (s.database ? "@" + s.database : ""), s.client].filter(Boolean).join(" · ") : "";
  const phrase = levels.phrase || s?.phrase || "", stack = [];
  if (!names) stack.push(el("p", "dim", "The text, the phrase and the levels need an operator token."));
  else if (n.pid) {
    if (phrase) stack.push(el("p", "", el("b", "", phrase)));
    if (levels.lines?.length) stack.push(el("h3", "", "Levels"), el("pre", "", levels.lines.join("\n")));
    else if (levels.error) stack.push(el("p", "dim", "The levels are not known: " + levels.error));
    else if (levels.none) stack.push(el("p", "dim", "The process is in no PL/pgSQL function."));
    if (s?.query) stack.push(el("h3", "", s.class ? "Statement" : "Last statement"), el("pre", "", s.query));
  }
  return [panel(nodeName(n), who ? el("p", "dim", who) : "", ...parts.map((x) => el("p", "", x)), ...stack)];
}
const missing = (x) => (x.missing ?? []).map((m) => el("p", "dim", "missing: " + m));
