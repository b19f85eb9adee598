"use strict";
// The time that the page shows. Without from in the address, it is the time until now. At is the moment of the sessions, the
// blocked processes and the findings; without it, that is the end of the span.

const spans = [60, 300, 900, 3600, 7200, 21600, 86400, 604800];
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const isLive = () => !state().get("from");
const now = () => last?.time ? Date.parse(last.time) : Date.now();
const iso = (ms) => new Date(Math.floor(ms / 1000) * 1000).toISOString().replace(".000", "");
let drag = null; // the span that the reader chooses in the chart: {a, b, plot}

// shown returns the span on the page, and the moment or null, as milliseconds.
function shown() {
  const s = state();
  if (isLive()) return { from: now() - (Number(s.get("seconds")) || 300) * 1000, to: now(), at: null };
  return { from: Date.parse(s.get("from")), to: Date.parse(s.get("to")), at: s.get("at") ? Date.parse(s.get("at")) : null };
}
const setLive = () => change((s) => ["from", "to", "at"].forEach((k) => s.delete(k)));
function setSpan(from, to, at) {
  to = Math.min(to, now());
  from = Math.min(from, to - 1000);
  change((s) => {
    s.set("from", iso(from));
    s.set("to", iso(to));
    if (at == null) s.delete("at");
    else s.set("at", iso(Math.min(Math.max(at, Math.ceil(from / 1000) * 1000), Math.floor(to / 1000) * 1000)));
  });
}
// shift moves the span by a part of its length. Beyond now, the page is live again.
function shift(part) {
  const { from, to, at } = shown(), by = part * (to - from);
  if (to + by >= now() - 1000) { if (!isLive()) setLive(); return; }
  setSpan(from + by, to + by, at == null ? null : at + by);
}
// stepMoment moves the moment by a hundredth of the span.
function stepMoment(step) {
  const { from, to, at } = shown();
  if (isLive() && step > 0) return;
  setSpan(from, to, (at ?? to) + step * Math.max(1000, (to - from) / 100));
}
// zoomTo shows so many seconds around the moment or the middle of the span.
function zoomTo(seconds) {
  if (isLive()) { change((s) => s.set("seconds", seconds)); return; }
  const { from, to, at } = shown(), middle = at ?? (from + to) / 2, end = Math.min(middle + seconds * 500, now());
  setSpan(end - seconds * 1000, end, at);
}
function zoom(step) {
  const { from, to } = shown(), length = Math.round((to - from) / 1000);
  zoomTo(step < 0 ? spans.filter((x) => x < length).pop() ?? spans[0] : spans.find((x) => x > length) ?? spans[spans.length - 1]);
}
// clock names a time; a day that is not today has its date.
function clock(ms) {
  const d = new Date(ms), today = d.toDateString() === new Date(now()).toDateString();
  return today ? d.toLocaleTimeString() : d.toLocaleString();
}
const spanName = () => { const { from, to } = shown(); return clock(from) + " to " + clock(to); };

// The dialog for a time. Its fields are in the zone of the browser.
function askTime() {
  const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60000).toISOString().slice(0, 19), { from, to } = shown();
  byId("time-from").value = local(from);
  byId("time-to").value = local(to);
  byId("time-zone").textContent = "Times are in the zone " + zone + ". Without an end, the page shows the sessions at the begin, and the time around it.";
  byId("time").showModal();
}
// startTime makes the controls of the time work.
function startTime() {
  byId("time-form").addEventListener("submit", (e) => {
    e.preventDefault();
    byId("time").close();
    const a = Date.parse(byId("time-from").value), b = Date.parse(byId("time-to").value), half = (Number(state().get("seconds")) || 300) * 500;
    if (Number.isNaN(a)) setLive();
    else if (a >= now()) say("This time is in the future.");
    else if (Number.isNaN(b)) setSpan(Math.min(a + half, now()) - 2 * half, a + half, a);
    else if (b <= a) say("The time must end after its begin.");
    else setSpan(a, b, null);
  });
  for (const [id, act] of [["ask-time", askTime], ["earlier", () => shift(-0.5)], ["later", () => shift(0.5)], ["live", setLive],
    ["close-time", () => byId("time").close()]]) byId(id).addEventListener("click", act);
}

// compareWith compares the span with another one of the same length. Null ends the comparison.
function compareWith(begin) {
  const { from, to } = shown();
  if (begin != null && begin + (to - from) > now()) { say("The other span must end before now."); return; }
  change((s) => {
    s.delete("compare");
    if (begin == null) return;
    s.set("view", "who");
    s.set("compare", iso(begin));
  });
}
function askCompare() {
  if (state().get("compare")) { compareWith(null); return; }
  byId("versus").showModal();
}
function startCompare() {
  const day = 86400000, choose = (begin) => () => { byId("versus").close(); compareWith(begin()); };
  for (const [id, begin] of [["versus-before", () => 2 * shown().from - shown().to], ["versus-day", () => shown().from - day],
    ["versus-week", () => shown().from - 7 * day]]) byId(id).addEventListener("click", choose(begin));
  byId("compare").addEventListener("click", askCompare);
  byId("close-versus").addEventListener("click", () => byId("versus").close());
  byId("versus-form").addEventListener("submit", (e) => {
    e.preventDefault();
    byId("versus").close();
    const begin = Date.parse(byId("versus-from").value);
    if (!Number.isNaN(begin)) compareWith(begin);
  });
}
// comparison shows two spans beside each other.
function comparison(c) {
  const signed = (n) => (n < 0 ? "−" : "+") + Math.abs(n).toFixed(1), length = (Date.parse(c.before.to) - Date.parse(c.before.from)) / 1000;
  const end = el("button", "act", "End the comparison (v)"), gap = length - c.sampled_seconds_before;
  end.type = "button";
  end.dataset.key = "end comparison";
  end.addEventListener("click", () => compareWith(null));
  return panel("Active sessions by ", propertyChoice(c.by), end,
    el("p", "dim", "Compared with " + clock(Date.parse(c.before.from)) + " to " + clock(Date.parse(c.before.to)) + ". Average " +
      number(c.active_sessions) + ", before " + number(c.active_sessions_before) + "." +
      (gap > 2 ? " " + Math.round(gap) + " s of that time have no data." : "")),
    table([["sessions", "n"], ["before", "n"], ["change", "n"], [c.by, ""]], (c.rows ?? []).map((r) => ({
      key: r.key, act: () => addFilter(c.by, r.key),
      cells: [number(r.active_sessions), number(r.active_sessions_before), el("b", "", signed(r.active_sessions_change)), text(r.name || "(none)")],
    }))), c.more ? el("p", "dim", "and " + c.more + " more") : "");
}

// timeHeader shows the span and its zone.
function timeHeader() {
  const { from, to } = shown(), length = Math.round((to - from) / 1000);
  byId("span").textContent = isLive() ? "" : spanName() + " (" + zone + ")";
  byId("live").hidden = byId("later").hidden = isLive();
  byId("seconds").value = String(length);
  if (byId("seconds").selectedIndex < 0) byId("seconds").value = "";
}
// timeKey handles a key, and returns whether it was one for the time.
function timeKey(e) {
  const step = { "[": -1, "]": 1, ArrowLeft: -1, ArrowRight: 1 }[e.key];
  if (e.key === "0") setLive();
  else if (e.key === "t") { e.preventDefault(); askTime(); }
  else if (e.key === "v") { e.preventDefault(); askCompare(); }
  else if (e.key === "<" || e.key === ",") shift(-0.5);
  else if (e.key === ">" || e.key === ".") shift(0.5);
  else if (e.key === "+" || e.key === "=") zoom(-1);
  else if (e.key === "-") zoom(1);
  else if (step && (e.key.length === 1 || view() === "load" || view() === "blocking")) stepMoment(step);
  else return false;
  return true;
}

// Plot is the area of a chart: it maps times to pixels.
class Plot {
  constructor(canvas, l, left) {
    this.canvas = canvas;
    this.left = left;
    this.from = Date.parse(l.from);
    this.to = Date.parse(l.to);
    this.load = l;
  }

  get width() { return this.canvas.clientWidth - this.left; }
  x(t) { return this.left + (t - this.from) / (this.to - this.from) * this.width; }
  time(e) {
    const x = e.clientX - this.canvas.getBoundingClientRect().left - this.left;
    return this.from + Math.min(1, Math.max(0, x / this.width)) * (this.to - this.from);
  }

  // note describes the column at a time.
  note(t) {
    const l = this.load, c = (l.columns ?? []).findLast((x) => Date.parse(x.time) <= t);
    const gap = (l.gaps ?? []).find((g) => Date.parse(g.from) <= t && t < Date.parse(g.to));
    if (gap) return clock(t) + ": no data: " + gap.reason;
    if (!c?.active_sessions) return clock(t) + ": no data";
    const list = c.active_sessions.map((n, i) => [l.classes[i], n]).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
    return clock(t) + ", " + c.kind + ": " + number(list.reduce((a, [, n]) => a + n, 0)) + " active sessions" +
      (list.length ? ": " + list.map(([k, n]) => k + " " + number(n)).join(", ") : "");
  }

  // listen makes a click choose a moment, and a drag a span.
  listen(note, pick) {
    const still = note.textContent;
    this.canvas.addEventListener("pointermove", (e) => { if (!drag) note.textContent = clean(this.note(this.time(e))); });
    this.canvas.addEventListener("pointerleave", () => { note.textContent = still; });
    this.canvas.addEventListener("pointerdown", (e) => {
      if (e.button !== 0 || e.pointerType === "touch") return;
      e.preventDefault();
      drag = { x: e.clientX, a: this.time(e), b: this.time(e), plot: this, pick };
    });
    this.canvas.addEventListener("click", (e) => { if (e.pointerType === "touch") setSpan(this.from, this.to, this.time(e)); });
  }
}
addEventListener("pointermove", (e) => {
  if (!drag) return;
  drag.b = drag.plot.time(e);
  const a = drag.plot.x(Math.min(drag.a, drag.b)), b = drag.plot.x(Math.max(drag.a, drag.b));
  drag.pick.hidden = b - a < 4;
  drag.pick.style.left = a + "px";
  drag.pick.style.width = b - a + "px";
});
addEventListener("pointerup", (e) => {
  if (!drag) return;
  const { a, plot, x } = drag, b = plot.time(e);
  drag.pick.hidden = true;
  drag = null;
  if (Math.abs(e.clientX - x) < 4) setSpan(plot.from, plot.to, a);
  else setSpan(Math.min(a, b), Math.max(Math.max(a, b), Math.min(a, b) + 1000), null);
});
addEventListener("pointercancel", () => { if (drag) { drag.pick.hidden = true; drag = null; } });

// gaps hatches the parts of a chart without data, and writes the reason where there is room.
function drawGaps(g, plot, top, bottom) {
  for (const x of plot.load.gaps ?? []) {
    const a = Math.max(plot.left, plot.x(Date.parse(x.from))), b = Math.max(a + 2, plot.x(Date.parse(x.to)));
    g.save();
    g.beginPath();
    g.rect(a, top, b - a, bottom - top);
    g.clip();
    g.globalAlpha = 0.35;
    g.beginPath();
    for (let k = a - (bottom - top); k < b; k += 7) { g.moveTo(k, bottom); g.lineTo(k + bottom - top, top); }
    g.stroke();
    g.restore();
    if (g.measureText(x.reason).width < b - a - 12) {
      const middle = (top + bottom) / 2, width = g.measureText(x.reason).width;
      g.clearRect((a + b - width) / 2 - 4, middle - 12, width + 8, 18);
      g.fillText(x.reason, (a + b - width) / 2, middle + 2);
    }
  }
}
// drawKinds draws a line below the columns: dotted for samples, solid for recorded sweeps, double for means over minutes.
function drawKinds(g, plot, y) {
  const step = plot.load.column_seconds * 1000;
  for (const c of plot.load.columns ?? []) {
    if (!c.kind) continue;
    const at = Date.parse(c.time), a = Math.max(plot.left, plot.x(at)), b = Math.min(plot.left + plot.width, plot.x(at + step));
    g.beginPath();
    g.setLineDash(c.kind === "sampled" ? [2, 3] : []);
    for (const dy of c.kind === "minutes" ? [2, 5] : [3]) { g.moveTo(a, y + dy); g.lineTo(b, y + dy); }
    g.stroke();
  }
  g.setLineDash([]);
}
const kindNames = { sampled: "┄ sampled", recorded: "━ recorded", minutes: "═ means over minutes" };
