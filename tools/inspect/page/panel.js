// ---- What is said of the chosen node

const state = {
  selected: undefined,
  found: new Set(),
  paths: undefined,
  pathRow: undefined
};

function select(i) {
  state.selected = i;
  if (i !== undefined) {
    const place = openAround(i);
    mark();
    if (byId("view-graph").hidden)
      announce(`Chosen: ${describe(i)}`);
    else if (place) {
      setFocus(place, byId("drawing").contains(document.activeElement));
      if (show(place)) show(place, true);
    }
    announce(`Chosen: ${describe(i)}`);
  } else {
    mark();
    announce("Nothing is chosen");
  }
  showPanel();
}

// The same from elsewhere than the drawing: near enough to be read.
function goTo(i) {
  if (graph.view.k < 0.5) zoom(readable / graph.view.k);
  select(i);
}

function panelWidth() { return byId("panel").clientWidth - 40; }

function showPanel() {
  const panel = byId("panel"), row = rows[state.selected];
  panel.replaceChildren(...(row ? nodePanel(row) : state.paths ? [] : overview()), ...pathsPanel());
  panel.scrollTop = 0;
}

function section(title, ...content) { return html("section", {}, html("h3", {}, title), ...content); }

function facts(list) {
  return html(
      "dl", {},
      list.filter(([, value]) => value !== undefined)
          .map(([name, value,
                 full]) => html("div", {}, html("dt", {}, name), html("dd", {title: full}, value))));
}

const exactly = (x, unit) => `${x} ${unit}`;

function nodePanel(row) {
  const formula = tape.formulas[row.op];
  return [
    html(
        "div", {class: "panel-head"},
        html("h2", {id: "chosen"}, html("span", {class: "number"}, `%${row.number}`), ` ${row.op}`),
        html(
            "button", {
              type: "button",
              class: "quiet",
              "aria-label": "Close the details",
              click: () => select(undefined)
            },
            "\u2715")),
    row.label && html("p", {class: "label"}, row.label),
    formula ?
        html(
            "div", {class: "formula"}, html("p", {}, html("code", {}, formula.formula)),
            html("p", {}, html("code", {}, formula.gradient)), html("p", {class: "words"}, formula.words)) :
        html("p", {class: "note"}, "An op of your own: its rule is in your program."),
    facts([
      ["Shape", shapeText(row.shape)],
      ["Type", row.type],
      ["Bytes", bytesText(row.bytes), exactly(row.bytes, "bytes")],
      ["Kept for the rule", row.kept ? bytesText(row.kept) : undefined, exactly(row.kept, "bytes")],
      [
        "FLOPs", row.flops ? countText(row.flops) + (row.assumed ? ", one an element" : "") : undefined,
        exactly(row.flops, "operations")
      ],
      ["Forward", row.forward === undefined ? undefined : timeText(row.forward), exactly(row.forward, "s")],
      [
        "Backward", row.backward === undefined ? undefined : timeText(row.backward),
        exactly(row.backward, "s")
      ],
      ["Kernel", row.remark],
    ]),
    ...actions(row),
    section("Inputs", links(row.inputs, "It has none.")),
    section("Read by", links(row.consumers, "Nothing reads it.")),
    row.value || row.gradient ? section("Statistics", statistics(row)) : [],
    ...arraySection("Value", row.values, row),
    ...arraySection("Gradient", row.gradients, row),
    !row.value && !row.gradient &&
        html(
            "p", {class: "note"},
            "No values were kept. The levels statistics and everything keep something of them."),
    tape.noArrays &&
        html("p", {class: "note"}, "There are too many nodes for their arrays to be in this page."),
  ].flat()
      .filter(Boolean);
}

function links(list, otherwise) {
  if (list.length === 0) return html("p", {class: "note"}, otherwise);
  return html(
      "ul", {class: "links"},
      list.map((i) => html("li", {}, i === null ? absent : [
                 nodeLink(i), " ",
                 html(
                     "span", {class: "note"},
                     rows[i].named && rows[i].label ? lastOf(rows[i].label) : shapeText(rows[i].shape))
               ])));
}

function statistics(row) {
  const line = (name, of) => html(
      "tr", {}, html("th", {scope: "row"}, name), html("td", {}, of(row.value)),
      html("td", {}, of(row.gradient)));
  const number = (key) => (summary) => summary ? brief(summary[key]) : none;
  return html(
      "table", {class: "statistics"},
      html(
          "thead", {},
          html(
              "tr", {}, html("td", {}), html("th", {scope: "col"}, "value"),
              html("th", {scope: "col"}, "gradient"))),
      html(
          "tbody", {}, line("least", number("least")), line("largest", number("largest")),
          line("mean", number("mean")), line("spread", number("spread")), line("norm", number("norm")),
          line("not finite", (of) => of ? String(of.nans + of.infinities) : none)));
}

function arraySection(title, map, row) {
  return map ?
      [section(title, arrayMap(map, row, `${title.toLowerCase()} of %${row.number}`, panelWidth()))] :
      [];
}

function actions(row) {
  const buttons = [];
  const paths = tape.paths.findIndex((table) => table.node === row.index);
  if (paths >= 0)
    buttons.push(
        html("button", {type: "button", click: () => choosePaths(paths)}, "Show its gradient paths"));
  const attention = tape.attention.findIndex((table) => table.node === row.index);
  if (attention >= 0)
    buttons.push(
        html("button", {type: "button", click: () => openAttention(attention)}, "Show as attention"));
  return buttons.length ? [html("p", {class: "actions"}, buttons)] : [];
}

function sum(list, of) { return list.reduce((total, one) => total + (of(one) ?? 0), 0); }

function overview() {
  const inputs = rows.filter((row) => row.named === "input").length;
  return [
    html("h2", {}, "The tape"),
    html("p", {class: "note"}, "Choose a node to see its formula, its numbers and its neighbours."),
    facts([
      ["Nodes", String(rows.length)],
      ["Inputs", String(inputs)],
      ["Ops", String(rows.length - inputs)],
      ["Bytes of outputs", bytesText(sum(rows, (row) => row.bytes))],
      ["Kept for rules", bytesText(sum(rows, (row) => row.kept))],
      ["FLOPs forward", countText(sum(rows, (row) => row.flops))],
      [
        "Time forward",
        rows.some((row) => row.forward !== undefined) ? timeText(sum(rows, (row) => row.forward)) : undefined
      ],
      [
        "Time backward",
        rows.some((row) => row.backward !== undefined) ? timeText(sum(rows, (row) => row.backward)) :
                                                         undefined
      ],
    ]),
    tape.paths.length === 0 &&
        html(
            "p", {class: "note"},
            "Gradient paths of a value are here when they were asked for: --paths NAME."),
    html("h3", {}, "Inputs"),
    links(
        rows.filter((row) => row.named === "input").slice(0, 60).map((row) => row.index), "There are none."),
  ].filter(Boolean);
}
