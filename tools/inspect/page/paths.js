// ---- Gradient paths: which nodes and edges the gradient of a shared value came through

const pathColours = {
  query: "var(--path-1)",
  key: "var(--path-2)",
  value: "var(--path-3)",
  direct: "var(--path-4)"
};

function colourOfRow(table, k) {
  const name = table.rows[k].name;
  if (pathColours[name]) return pathColours[name];
  const others = [...new Set(table.rows.map((row) => row.name))].filter((other) => !pathColours[other]);
  return `var(--path-${4 + (others.indexOf(name) % 2) + 1})`;
}

// All nodes that can be reached from `start`; a step into a node is taken when enter(node) holds.
function reach(start, next, enter = () => true) {
  const seen = new Set([start]), waiting = [start];
  while (waiting.length) {
    for (const i of next(rows[waiting.pop()])) {
      if (i !== null && !seen.has(i) && enter(i)) seen.add(i), waiting.push(i);
    }
  }
  return seen;
}
const readers = (row) => row.consumers, arguments_ = (row) => row.inputs;
const both = (a, b) => new Set([...a].filter((i) => b.has(i)));

// A path of a port goes from the value to that port by no other port, and from there to the output. A direct
// one starts at the node that reads the value and meets no port.
function nodesOfPath(table, row, toOutput) {
  const noPort = (i) => rows[i].named !== "port";
  if (rows[row.node].named !== "port") {
    return new Set([table.node, ...both(reach(row.node, readers, noPort), toOutput)]);
  }
  const before = both(reach(row.node, arguments_, noPort), reach(table.node, readers));
  return new Set([table.node, ...before, ...both(reach(row.node, readers), toOutput)]);
}

function choosePaths(index) {
  state.paths = tape.paths[index];
  state.pathRow = undefined;
  byId("path-choice").value = state.paths ? String(index) : "";
  const table = state.paths;
  if (table) {
    if (!table.nodes) {
      let output = rows.length - 1;
      while (output > table.node && rows.some((row) => row.gradient) && !rows[output].gradient) --output;
      const toOutput = reach(output, arguments_);
      table.nodes = table.rows.map((row) => nodesOfPath(table, row, toOutput));
    }
    state.selected = undefined;
    openAround(table.node);
    announce(`${table.rows.length} gradient paths of ${table.name || nodeText(table.node)} are lit`);
  } else {
    announce("No paths are lit");
  }
  mark();
  showPanel();
}

function chooseRow(k) {
  state.pathRow = state.pathRow === k ? undefined : k;
  mark();
  document.querySelectorAll(".path-row").forEach((button) => {
    button.setAttribute("aria-pressed", String(Number(button.dataset.row) === state.pathRow));
  });
  showContribution();
  const row = state.paths.rows[state.pathRow];
  announce(row ? `Lit alone: ${row.label || row.name}, norm ${brief(row.norm)}` : "All paths are lit");
}

// The colour in which some of the nodes are lit: that of their path, another one where several meet.
function lights(nodes) { return litBy((set) => nodes.some((i) => set.has(i))); }
function lightsOfUses(uses) {
  return litBy((set) => {
    for (let k = 0; k < uses.length; k += 2)
      if (set.has(uses[k]) && set.has(uses[k + 1])) return true;
    return false;
  });
}
function litBy(holds) {
  const table = state.paths;
  if (!table) return undefined;
  const colours = new Set();
  table.nodes.forEach((set, k) => {
    if ((state.pathRow === undefined || state.pathRow === k) && holds(set))
      colours.add(colourOfRow(table, k));
  });
  return colours.size === 0 ? undefined : colours.size === 1 ? [...colours][0] : "var(--path-several)";
}

const percent = (share) => `${(100 * share).toFixed(2).replace(/^-0\.00$/, "0.00")} %`;

function pathLine(table, k, widest) {
  const row = table.rows[k];
  return html(
      "button", {
        type: "button",
        class: "path-row",
        "data-row": k,
        "aria-pressed": String(state.pathRow === k),
        style: `--lit:${colourOfRow(table, k)}`,
        click: () => chooseRow(k),
      },
      html("span", {class: "path-name"}, row.label || row.name),
      html("span", {class: "path-share"}, percent(row.share)),
      html("span", {class: "bar-track"}, html("span", {
             class: `bar-fill ${row.share < 0 ? "minus" : ""}`,
             style: `width:${100 * Math.abs(row.share) / widest}%`
           })),
      html(
          "span", {class: "path-more"},
          `norm ${brief(row.norm)}, cosine ${brief(row.cosine)}, largest ${brief(row.largest)}` +
              (row.at.length ? ` at (${row.at.join(", ")})` : "")));
}

// Rows of one outer scope together when there are many.
function pathLines(table) {
  const widest = Math.max(...table.rows.map((row) => Math.abs(row.share)), Number.MIN_VALUE);
  const line = (k) => html("li", {}, pathLine(table, k, widest));
  const all = table.rows.map((_, k) => k);
  if (all.length <= 12) return html("ul", {class: "path-list"}, all.map(line));
  const groups = new Map();
  for (const k of all) {
    const label = table.rows[k].label || table.rows[k].name, group = label.split("/")[0];
    groups.set(group, [...groups.get(group) ?? [], k]);
  }
  return html(
      "div", {},
      [...groups].map(
          ([group, list]) => html(
              "details", {},
              html(
                  "summary", {},
                  `${group}: ${list.length} ${list.length === 1 ? "path" : "paths"}, ${
                      percent(sum(list, (k) => table.rows[k].share))}`),
              html("ul", {class: "path-list"}, list.map(line)))));
}

function pathsPanel() {
  const table = state.paths;
  if (!table) return [];
  return [section(
      "Gradient paths",
      html(
          "p", {}, "The gradient of ", nodeLink(table.node, table.name || nodeText(table.node)),
          ", taken apart by the ways in which it came. " +
              "Its norm is ",
          html("strong", {}, brief(table.norm)), "; the shares sum to 100 %."),
      pathLines(table),
      html(
          "p", {class: "note"},
          `The paths sum to the gradient to ${Number(table.error.toPrecision(2))} of its largest element.`),
      html(
          "p", {class: "actions"},
          html("button", {type: "button", click: () => choosePaths(undefined)}, "Put the lights out")),
      html("div", {id: "contribution"}))];
}

function showContribution() {
  const row = state.paths.rows[state.pathRow], place = byId("contribution");
  if (!place) return;
  const map = row?.gradients;
  place.replaceChildren(
      ...(map ?
              [
                html("h3", {}, `By ${row.label || row.name}`),
                arrayMap(map, rows[state.paths.node], `gradient by ${row.label || row.name}`, panelWidth())
              ] :
              []));
}

function startPaths() {
  if (tape.paths.length === 0) return;
  byId("paths-of").hidden = false;
  const menu = byId("path-choice");
  menu.append(
      html("option", {value: ""}, "none"),
      ...tape.paths.map((table, k) => html("option", {value: k}, table.name || nodeText(table.node))));
  menu.onchange = () => choosePaths(menu.value === "" ? undefined : Number(menu.value));
}
