// ---- Tables: all nodes, and where the time went

const page = {
  size: 100,
  start: 0,
  key: "index",
  down: false
};
const columns = [
  {key: "index", name: "Node", of: (row) => row.index, show: (row) => nodeLink(row.index, `%${row.number}`)},
  {key: "op", name: "Op", of: (row) => row.op},
  {key: "label", name: "Label", of: (row) => row.label},
  {
    key: "inputs",
    name: "Inputs",
    of: (row) => row.inputs.length,
    show: (row) => row.inputs.map((i) => i === null ? none : `%${rows[i].number}`).join(", ")
  },
  {
    key: "shape",
    name: "Shape",
    of: (row) => row.shape.reduce((a, b) => a * b, 1),
    show: (row) => shapeText(row.shape)
  },
  {key: "bytes", name: "Bytes", number: true, of: (row) => row.bytes, show: (row) => bytesText(row.bytes)},
  {
    key: "flops",
    name: "FLOPs",
    number: true,
    of: (row) => row.flops,
    show: (row) => row.flops ? countText(row.flops) : none
  },
  {
    key: "forward",
    name: "Forward",
    number: true,
    of: (row) => row.forward ?? -1,
    show: (row) => timeText(row.forward)
  },
  {
    key: "backward",
    name: "Backward",
    number: true,
    of: (row) => row.backward ?? -1,
    show: (row) => timeText(row.backward)
  },
  {
    key: "mean",
    name: "Mean",
    number: true,
    of: (row) => row.value?.mean ?? -Infinity,
    show: (row) => brief(row.value?.mean)
  },
  {
    key: "gradient",
    name: "Gradient norm",
    number: true,
    of: (row) => row.gradient?.norm ?? -1,
    show: (row) => brief(row.gradient?.norm)
  },
];

function sorted() {
  const {of} = columns.find((column) => column.key === page.key), sign = page.down ? -1 : 1;
  const list = byId("search").value.trim() ? rows.filter((row) => state.found.has(row.index)) : [...rows];
  return list.sort((a, b) => sign * (of(a) > of(b) ? 1 : of(a) < of(b) ? -1 : 0) || a.index - b.index);
}

function columnHead(column) {
  const isKey = column.key === page.key;
  return html(
      "th", {
        scope: "col",
        "aria-sort": isKey ? (page.down ? "descending" : "ascending") : "none",
        class: column.number ? "n" : ""
      },
      html(
          "button", {
            type: "button",
            class: "sorter",
            click() {
              Object.assign(
                  page, {key: column.key, down: isKey ? !page.down : Boolean(column.number), start: 0});
              showTable(column.key);
            },
            "data-key": column.key,
          },
          column.name,
          isKey ? html("span", {"aria-hidden": "true"}, page.down ? " \u25be" : " \u25b4") : ""));
}

function showTable(focus) {
  const list = sorted(), part = list.slice(page.start, page.start + page.size);
  const turn = (text, start) => html(
      "button", {
        type: "button",
        disabled: start < 0 || start >= list.length,
        click() {
          page.start = start;
          showTable();
        }
      },
      text);
  byId("view-table")
      .replaceChildren(
          html(
              "div", {class: "bar"},
              html(
                  "span", {class: "note"},
                  list.length === 0 ?
                      "No node is like that." :
                      `Nodes ${page.start + 1} to ${page.start + part.length} of ${list.length}`),
              list.length > page.size ? html(
                                            "span", {class: "group"}, turn("Earlier", page.start - page.size),
                                            turn("Later", page.start + page.size)) :
                                        ""),
          html(
              "div", {class: "scroller", tabindex: 0, role: "region", "aria-label": "Nodes of the tape"},
              html(
                  "table", {class: "nodes"}, html("thead", {}, html("tr", {}, columns.map(columnHead))),
                  html(
                      "tbody", {},
                      part.map(
                          (row) => html(
                              "tr", {},
                              columns.map(
                                  (column) => html(
                                      "td", {class: column.number ? "n" : ""},
                                      column.show ? column.show(row) : column.of(row)))))))));
  if (focus) byId("view-table").querySelector(`[data-key="${focus}"]`)?.focus();
}

let timed = "nodes";

function timeLines() {
  if (timed === "ops") return tape.byOp.map((total) => ({...total, what: total.name}));
  if (timed === "scopes")
    return tape.byLabel.map((total) => ({...total, what: total.name || "the whole tape"}));
  return rows.map((row) => ({forward: row.forward ?? 0, backward: row.backward ?? 0, what: row}));
}

function timeLine({what, forward, backward, nodes}, most) {
  const bar = (seconds, name) =>
      html("span", {class: `bar-fill ${name}`, style: `width:${100 * seconds / most}%`});
  return html(
      "tr", {},
      html(
          "th", {scope: "row"},
          typeof what === "string" ? `${what} (${nodes})` :
                                     [nodeLink(what.index), " ", html("span", {class: "note"}, what.label)]),
      html("td", {class: "n"}, timeText(forward)), html("td", {class: "n"}, timeText(backward)),
      html(
          "td", {class: "wide"},
          html(
              "span", {class: "bar-track", "aria-hidden": "true"}, bar(forward, "forward"),
              bar(backward, "backward"))));
}

function showTime(focus) {
  const view = byId("view-time"), most = 100;
  if (!rows.some((row) => row.forward !== undefined)) {
    view.replaceChildren(
        html("p", {class: "empty"}, "No times were kept: the levels statistics and everything keep them."));
    return;
  }
  const whole = (line) => line.forward + line.backward;
  const lines = timeLines().sort((a, b) => whole(b) - whole(a));
  view.replaceChildren(
      html(
          "div", {class: "bar"},
          choice(
              "Time by", [["nodes", "Nodes"], ["scopes", "Scopes"], ["ops", "Ops"]], timed,
              (kind) => {
                timed = kind;
                showTime(true);
              }),
          html(
              "span", {class: "note"}, html("span", {class: "key forward"}), " forward ",
              html("span", {class: "key backward"}), " backward"),
          lines.length > most && html("span", {class: "note"}, `the slowest ${most} of ${lines.length}`)),
      html(
          "div", {class: "scroller", tabindex: 0, role: "region", "aria-label": "Times"},
          html(
              "table", {class: "times"},
              html(
                  "thead", {},
                  html(
                      "tr", {},
                      html("th", {scope: "col"}, {nodes: "Node", scopes: "Scope", ops: "Op"}[timed]),
                      html("th", {scope: "col", class: "n"}, "Forward"),
                      html("th", {scope: "col", class: "n"}, "Backward"), html("td", {}))),
              html("tbody", {}, lines.slice(0, most).map((line) => timeLine(line, whole(lines[0]) || 1))))));
  if (focus) view.querySelector("[aria-pressed=\"true\"]").focus();
}
