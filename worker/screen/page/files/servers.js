"use strict";
// The list of the servers whose workers are on this host. This page's own worker asks the others with the reader's token, so each
// worker decides what the reader sees.

const orders = ["findings", "load", "age", "name"];
const serverEvery = 2000, listEvery = 10000; // ms between two requests for a server, and for the list
const manyServers = 8; // with more servers, each is asked less often
let servers = []; // {port, own, data, error, got}
let many = false; // there is a list
let known = false; // whether there is a list has been asked

// serverOf is the port of the other worker whose server the page shows; empty: this worker's.
const serverOf = () => {
  const port = state().get("server") ?? "";
  return /^[1-9]\d{0,4}$/.test(port) && port !== location.port ? port : "";
};
const below = (port) => port ? "at/" + port + "/" : "";
const showServers = () => { location.hash = "view=servers"; };
const isList = () => view() === "servers";

// learnServers asks once whether this host has several workers.
async function learnServers() {
  if (known) return;
  known = true;
  const x = await get("servers");
  if (x.status !== 200) return;
  many = (x.body.servers ?? []).length > 1;
  header();
}
// askServers keeps the list and the data of each server fresh until the page shows another view.
async function askServers(mine) {
  const asking = new Set(); // ports
  while (mine === asked) {
    const x = await get("servers");
    if (mine !== asked) return;
    byId("login").hidden = x.status !== 401;
    failed = x.status === 200 || x.status === 404 ? "" : x.error;
    if (x.status === 401) servers = [];
    else if (!failed) {
      const before = new Map(servers.map((s) => [s.port, s]));
      // A worker without this list has its own server only.
      servers = (x.status === 404 ? [{ port: 0, own: true }] : x.body.servers ?? []).map((s) => Object.assign(before.get(s.port) ?? {}, s));
      known = true;
      many = servers.length > 1;
    }
    show();
    if (x.status === 401) return;
    for (const s of servers) if (!asking.has(s.port)) { asking.add(s.port); keepServer(s, mine).finally(() => asking.delete(s.port)); }
    await sleep(listEvery);
  }
}
async function keepServer(s, mine) {
  while (mine === asked && servers.includes(s)) {
    const x = await get(below(s.own ? 0 : s.port) + "data?view=load&seconds=60");
    if (mine !== asked) return;
    if (x.status === 200) Object.assign(s, { data: x.body, error: "", got: Date.now() });
    else s.error = x.error;
    show();
    await sleep(serverEvery * Math.ceil(servers.length / manyServers));
  }
}
const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });
// request has the options of a request with the token.
function request() {
  const token = sessionStorage.getItem("token");
  return { headers: token ? { Authorization: "Bearer " + token } : {}, credentials: "omit", cache: "no-store" };
}
// get requests JSON. Status is 0 if there is no answer.
async function get(url) {
  try {
    const r = await fetch(url, request());
    return r.ok ? { status: r.status, body: await r.json() } : { status: r.status, error: (await r.text()).slice(0, longest).trim() };
  } catch (e) {
    return { status: 0, error: "The worker does not answer: " + e.message };
  }
}

const ended = (s) => Boolean(s.data?.info?.ended); // the figures of such a server are old
const findingsOf = (s) => ended(s) ? [] : s.data?.findings?.findings ?? [];
const critical = (s) => findingsOf(s).filter((f) => f.severity === "critical").length;
const loadOf = (s) => !ended(s) && s.data?.load?.sampled_seconds ? s.data.load.active_sessions?.reduce((a, b) => a + b, 0) ?? 0 : null;
const serverName = (s) => s.data?.info?.data_directory || "server of port " + (s.port || location.port);
function ageOf(s) { // seconds
  const last = s.data?.info?.last;
  return last ? Math.max(0, (Date.parse(s.data.time) - Date.parse(last) + Date.now() - s.got) / 1000) : null;
}
function sorted(list, order) {
  const down = (f) => (a, b) => (f(b) ?? 1e9) - (f(a) ?? 1e9), load = (s) => loadOf(s) ?? 0;
  const name = (a, b) => serverName(a).localeCompare(serverName(b)) || a.port - b.port;
  const worst = (a, b) => down(critical)(a, b) || down((s) => findingsOf(s).length)(a, b);
  const by = {
    findings: (a, b) => worst(a, b) || down(load)(a, b) || name(a, b), load: (a, b) => down(load)(a, b) || worst(a, b) || name(a, b),
    age: (a, b) => down(ageOf)(a, b) || name(a, b), name,
  };
  return [...list].sort((a, b) => ended(a) - ended(b) || by[order](a, b));
}
function openServer(s) {
  location.hash = new URLSearchParams(s.own ? { view: "load" } : { server: s.port, view: "load" }).toString();
}
function serverList() {
  const order = orders.includes(state().get("sort")) ? state().get("sort") : orders[0], choose = el("select", "");
  choose.setAttribute("aria-label", "order");
  choose.dataset.key = "order";
  for (const o of orders) choose.append(new Option("by " + o, o, false, o === order));
  choose.addEventListener("change", () => change((s) => s.set("sort", choose.value)));
  const rows = sorted(servers, order).map((s) => {
    const i = s.data?.info, all = findingsOf(s), worst = all[0], a = ageOf(s), load = loadOf(s);
    const error = s.error || (ended(s) ? "the server does not run: " : "") + (i?.error ?? "");
    return {
      key: "server" + s.port, act: () => openServer(s),
      cells: [
        el("div", "", el("b", "text", serverName(s)), el("div", "dim", [i?.server_version ? "PostgreSQL " + i.server_version +
          (i.port ? ", port " + i.port : "") : "", i?.standby ? "standby" : "", "worker at port " + (s.port || location.port)]
          .filter(Boolean).join(" · ")), error ? el("div", "error", "✗ " + error) : ""),
        load == null ? "" : number(load), i && !ended(s) ? String(i.sessions.waiting_for_locks) : "",
        i && !ended(s) ? i.sessions.client_backends + (i.max_connections ? "/" + i.max_connections : "") : "",
        a == null ? "" : Math.floor(a) + " s",
        worst ? el("div", worst.severity, (worst.severity === "critical" ? "▲ " : "△ ") + worst.text +
          after(worst.at_least ? ", for ≥ " : ", for ", worst.since, s.data.findings.time) + (all.length > 1 ? ", and " + (all.length - 1) + " more" : ""))
          : el("span", "dim", ended(s) ? "ended" : s.data ? s.data.errors?.findings ?? "no findings" : error ? "" : "reading …"),
      ],
    };
  });
  return panel("Servers ", choose, table([["server", ""], ["active", "n"], ["waiting", "n wide"], ["clients", "n wide"], ["age", "n wide"],
    ["worst finding", ""]], rows), servers.length === 1 ? el("p", "dim", "This worker serves one server. A worker with --all and --listen lists all servers of its host.") : "");
}
