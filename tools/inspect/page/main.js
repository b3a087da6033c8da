// ---- Tabs

const views = {
  graph: mark,
  attention: showAttention,
  time: showTime,
  table: showTable
};

function openTab(name) {
  for (const other of Object.keys(views)) {
    const tab = byId(`tab-${other}`), chosen = other === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    byId(`view-${other}`).hidden = !chosen;
  }
  views[name]();
}

function startTabs() {
  const names = Object.keys(views);
  names.forEach((name, k) => {
    const tab = byId(`tab-${name}`);
    tab.onclick = () => openTab(name);
    tab.onkeydown = (event) => {
      const to = {ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: names.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = names[(to + names.length) % names.length];
      openTab(next);
      byId(`tab-${next}`).focus();
    };
  });
  document.querySelector(".skip").onclick = (event) => {
    event.preventDefault();
    openTab("table");
    byId("view-table").focus();
  };
  openTab("graph");
}

// ---- Search

const search = {
  list: [],
  at: -1
};

function matches(row, words) {
  const text = `%${row.number} ${row.op} ${row.label} ${shapeText(row.shape)}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function runSearch() {
  const words = byId("search").value.toLowerCase().trim();
  const list = words ? rows.filter((row) => matches(row, words.match(/\([^)]*\)?|\S+/g))) : [];
  state.found = new Set(list.map((row) => row.index));
  Object.assign(search, {list: list.slice(0, 12), at: -1});
  byId("found").replaceChildren(
      ...search.list.map(
          (row, k) => html(
              "li", {
                role: "option",
                id: `found-${k}`,
                "aria-selected": "false",
                pointerdown(event) {
                  event.preventDefault();
                  takeFound(k);
                }
              },
              html("strong", {}, nodeText(row.index)), " ",
              html("span", {class: "note"}, row.label || shapeText(row.shape)))),
      ...(words && list.length !== search.list.length ? [html(
                                                            "li", {class: "note", role: "presentation"},
                                                            `and ${list.length - search.list.length} more`)] :
                                                        []),
      ...(words && !list.length ?
              [html("li", {class: "note", role: "presentation"}, "No node is like that.")] :
              []));
  showFound(Boolean(words));
  mark();
  page.start = 0;
  if (!byId("view-table").hidden) showTable();
  if (words) announce(`${list.length} ${list.length === 1 ? "node" : "nodes"} found`);
}

function showFound(open) {
  byId("found").hidden = !open;
  byId("search").setAttribute("aria-expanded", String(open));
}

function pointAt(k) {
  search.at = k;
  [...byId("found").querySelectorAll("[role=option]")].forEach(
      (option, i) => option.setAttribute("aria-selected", String(i === k)));
  byId("search").setAttribute("aria-activedescendant", k < 0 ? "" : `found-${k}`);
}

function takeFound(k) {
  showFound(false);
  goTo(search.list[k].index);
}

function onSearchKey(event) {
  const count = search.list.length;
  if (event.key === "ArrowDown" && count)
    pointAt((search.at + 1) % count);
  else if (event.key === "ArrowUp" && count)
    pointAt((search.at - 1 + count) % count);
  else if (event.key === "Enter" && count)
    takeFound(Math.max(search.at, 0));
  else if (event.key === "Escape") {
    byId("search").value = "";
    runSearch();
  } else
    return;
  event.preventDefault();
}

// ---- Light and dark

function startTheme() {
  const button = byId("theme");
  const say = () => button.setAttribute("aria-pressed", String(dark()));
  button.onclick = () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    say();
    repaintAll();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    say();
    repaintAll();
  });
  say();
}

// ---- Start

function start() {
  document.title = tape.title ? `${tape.title} \u2013 tapehead` : "tapehead";
  byId("title").textContent = tape.title || "tapehead";
  byId("summary").textContent = `${rows.length} nodes, ${bytesText(sum(rows, (row) => row.bytes))}, ${
      countText(sum(rows, (row) => row.flops))} FLOPs forward`;
  startTheme();
  startGraph();
  startPaths();
  startTabs();
  showPanel();
  byId("search").addEventListener("input", runSearch);
  byId("search").addEventListener("keydown", onSearchKey);
  byId("search").addEventListener("blur", () => showFound(false));
  byId("search").addEventListener("focus", () => showFound(search.list.length > 0));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.matches("input, select")) {
      event.preventDefault();
      byId("search").focus();
    }
    if (event.key === "Escape" && byId("panel").contains(event.target)) {
      select(undefined);
      graph.items.find((place) => same(place.item, graph.focus))?.element.focus();
    }
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    fit(readable);
    showPanel();
    if (!byId("view-attention").hidden) showAttention();
  });
}

start();
