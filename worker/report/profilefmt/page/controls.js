// controls.js: the controls above the graph.

// change changes the state and computes again.
function change(what) {
  Object.assign(state, what);
  state.others = state.others.filter(([name]) => !(name in what)); // such as a group
  compute();
  remember(true);
}

// setFilters sets the filters of several labels in one step. Each is a pair of a label and a list of texts. An empty
// list removes the filter.
function setFilters(list) {
  const filters = new Map(state.filters);
  for (const [key, texts] of list) {
    if (texts.length) filters.set(key, new Set(texts));
    else filters.delete(key);
  }
  change({ filters, zoom: [] });
}

function setFilter(key, texts) {
  setFilters([[key, texts]]);
}

function toggleFilter(key, text) {
  const texts = new Set(state.filters.get(key) || []);
  if (!texts.delete(text)) texts.add(text);
  setFilter(key, [...texts]);
}

function makeControls() {
  document.title = profile.title;
  $("title").textContent = profile.title;
  const about = [profile.subtitle];
  const taken = [];
  if (profile.time) {
    taken.push("taken " + new Date(profile.time / 1e6).toISOString().slice(0, 19).replace("T", " ") + " UTC");
  }
  if (profile.duration) taken.push("for " + quantity(profile.duration, "ns"));
  about.push(taken.join(" "), ...profile.notes);
  $("subtitle").replaceChildren(...about.filter(Boolean).map((text) => element("span", {}, text)));
  profile.types.forEach((type, i) => {
    const title = type.unit === "count" ? "number of " + type.name : type.name + " in " + type.unit;
    const input = element("input", { type: "radio", name: "type", value: i, onchange: () => change({ type: i }) });
    $("types").append(element("label", { title }, input, element("span", {}, type.name)));
  });
  for (const input of document.getElementsByName("view")) {
    input.addEventListener("change", () => change({ icicle: input.value === "icicle" }));
  }
  $("invert").addEventListener("change", () => change({ invert: $("invert").checked, zoom: [] }));
  $("merge").addEventListener("change", () => change({ merge: $("merge").checked, zoom: [], focus: -1 }));
  $("merge-label").hidden = !profile.hasUnnamed;
  $("colour").addEventListener("change", () => change({ colour: $("colour").value }));
  $("colour").parentNode.hidden = !hasWaits();
  $("group").append(element("option", { value: -1 }, "nothing"));
  profile.keys.forEach((key, i) => $("group").append(element("option", { value: i }, key)));
  $("group").parentNode.hidden = !profile.keys.length;
  $("group").addEventListener("change", () => change({ group: Number($("group").value), zoom: [] }));
  $("search").addEventListener("input", () => {
    state.search = $("search").value;
    findMatches();
    showGraph();
    showMatches();
    if (state.tab === "functions") showTable();
    remember(false);
  });
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") $("box").focus();
  });
  $("reset").addEventListener("click", () => {
    Object.assign(state, initialState(), { tab: state.tab });
    compute();
    remember(true);
  });
  $("help").addEventListener("click", () => $("keys").showModal());
  makeFilters();
  makeGraphEvents();
  makeTabs();
  makeTheme();
}

function makeGraphEvents() {
  const { box, canvas } = graph;
  box.addEventListener("keydown", graphKey);
  box.addEventListener("focus", () => graph.draw());
  box.addEventListener("blur", () => graph.draw());
  canvas.addEventListener("mousemove", showTip);
  canvas.addEventListener("mouseleave", () => {
    graph.hovered = -1;
    $("tip").hidden = true;
    graph.draw();
  });
  canvas.addEventListener("click", (event) => {
    const node = graph.at(event.offsetX, event.offsetY);
    $("tip").hidden = true;
    if (node === null || node < 0) return;
    if (event.shiftKey) focusOn(node);
    else if (node === graph.zoom) choose(node, true);
    else zoomTo(node);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = document.querySelector("details[open]");
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  });
  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll("details[open]")) {
      if (!open.contains(event.target)) open.open = false;
    }
  });
}

function makeTheme() {
  const media = matchMedia("(prefers-color-scheme: dark)");
  let own = "";
  const set = () => {
    const theme = own || (media.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = theme === "dark" ? "Light" : "Dark";
    if (now.tree) {
      graph.colours.dark = theme === "dark";
      showGraph();
      showTable();
    }
  };
  $("theme").addEventListener("click", () => {
    own = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    set();
  });
  media.addEventListener("change", set);
  set();
  graph.colours.dark = document.documentElement.dataset.theme === "dark";
}

// showControls shows the state in the controls.
function showControls() {
  document.getElementsByName("type")[state.type].checked = true;
  for (const input of document.getElementsByName("view")) input.checked = (input.value === "icicle") === state.icicle;
  $("invert").checked = state.invert;
  $("merge").checked = state.merge;
  $("colour").value = state.colour;
  $("group").value = String(state.group);
  if ($("search").value !== state.search) $("search").value = state.search;
  showMatches();
  showFilters();
  showParts();
  const chips = [];
  if (state.focus >= 0) {
    const what = state.invert ? "Callers of " : "Focus: ";
    const remove = () => change({ focus: -1, zoom: [] });
    chips.push(element("button", { type: "button", onclick: remove, title: "Remove the focus" },
      what + profile.functionName(state.focus) + " ✕"));
  }
  if (graph.zoom > 0) {
    chips.push(element("button", { type: "button", onclick: () => zoomTo(0), title: "Zoom out" },
      "Zoom: " + nodeName(graph.zoom) + " ✕"));
  }
  for (const other of state.others) {
    const [name, value] = other;
    if (!name.startsWith("is.")) continue;
    const remove = () => change({ others: state.others.filter((o) => o !== other) });
    chips.push(element("button", { type: "button", onclick: remove, title: "Remove the filter" },
      `${name.slice(3)} = ${value}: not in this profile ✕`));
  }
  $("chips").replaceChildren(...chips);
}

function showMatches() {
  const out = $("matches");
  $("search").setAttribute("aria-invalid", String(Boolean(now.searchError)));
  out.className = now.searchError ? "bad" : "";
  if (now.searchError) out.textContent = now.searchError;
  else if (now.search) {
    out.textContent = `${shareOf(now.search.value) || "0.0\u00a0%"} match, ${amount(now.search.value)}`;
  } else out.textContent = "";
}

// showParts shows the parts of time, with a check box for each.
function showParts() {
  const { parts, partial } = now.selected;
  const box = $("parts");
  if (!partial) {
    box.replaceChildren();
    return;
  }
  if (!box.children.length) {
    partNames.forEach((name, i) => {
      const input = element("input", { type: "checkbox", onchange: () => {
        const scope = now.scope.slice();
        scope[i] = input.checked;
        change({ scope, zoom: [] });
      } });
      box.append(element("label", {}, input, element("span", {}, name + " "), element("b", {})));
    });
  }
  const sum = parts[0] + parts[1] + parts[2];
  partNames.forEach((name, i) => {
    const label = box.children[i];
    label.className = now.scope[i] ? "on" : "off";
    label.style.flexGrow = String(sum ? Math.max(parts[i] / sum, 0.02) * 100 : 1);
    label.querySelector("input").checked = now.scope[i];
    label.querySelector("b").textContent = sum ? `${amount(parts[i])} (${percent(parts[i], sum)})` : amount(0);
  });
}

const mostValues = 200; // values that a filter lists

function makeFilters() {
  profile.keys.forEach((name, key) => {
    const menu = element("details", { class: "menu", ontoggle: () => menu.open && fillFilter(menu, key) });
    menu.append(element("summary", {}, element("span", {}, name + " "), element("b", {})),
      element("div", { class: "list", role: "group", "aria-label": name }));
    $("filters").append(menu);
  });
}

function showFilters() {
  profile.keys.forEach((name, key) => {
    const menu = $("filters").children[key];
    const texts = state.filters.get(key);
    menu.classList.toggle("set", Boolean(texts));
    let what = "";
    if (texts && texts.size === 1) {
      const [text] = texts;
      what = text >= profile.stringCount ? "(not in this profile)" : textName(text, key);
    } else if (texts) what = texts.size + " values";
    menu.querySelector("b").textContent = what;
    if (menu.open) fillFilter(menu, key);
  });
}

// fillFilter lists the values of a label, with what they add up to under the other filters.
function fillFilter(menu, key) {
  const others = new Map(state.filters);
  others.delete(key);
  const { weights, total } = select(profile, state.type, others, now.scope);
  const sums = new Map();
  for (let i = 0; i < weights.length; i++) {
    const text = profile.labelString(profile.labels[i], key);
    sums.set(text, (sums.get(text) || 0) + weights[i]);
  }
  const chosen = state.filters.get(key) || new Set();
  const rows = [...sums].filter(([text, v]) => v > 0 || chosen.has(text)).sort((a, b) => b[1] - a[1]);
  const list = menu.querySelector(".list");
  const active = document.activeElement && list.contains(document.activeElement) ? document.activeElement.value : null;
  const items = rows.slice(0, mostValues).map(([text, v]) => {
    const input = element("input", { type: "checkbox", value: text, onchange: () => toggleFilter(key, text) });
    input.checked = chosen.has(text);
    return element("label", {}, input, element("span", {}, element("bdi", {}, textName(text, key))),
      element("span", { class: "amount" }, `${amount(v)} ${percent(v, total)}`));
  });
  if (rows.length > mostValues) items.push(element("p", {}, `${rows.length - mostValues} other values are not listed`));
  if (chosen.size) {
    items.unshift(element("button", { type: "button", onclick: () => {
      setFilter(key, []);
      menu.querySelector("summary").focus();
    } }, "Show all"));
  }
  list.replaceChildren(...items);
  if (active !== null) {
    const again = [...list.querySelectorAll("input")].find((i) => i.value === active);
    if (again) again.focus();
  }
}
