// ---- Attention, a head at a time

const looking = {
  table: 0,
  sample: 0,
  head: 0,
  kind: "weights"
};
const kinds = {
  weights: "Weights",
  scores: "Scores",
  mask: "Mask",
  gradient: "Gradient"
};
const titles = {
  ...kinds,
  gradient: "Gradient of the weights"
};

// The matrices of a table, one after another by sample and head.
function matrices(table, kind) {
  const packed = table[kind === "mask" ? "scores" : kind];
  if (packed === undefined) return undefined;
  table.numbers ??= {};
  return table.numbers[kind === "mask" ? "scores" : kind] ??= unpacked(packed, Float32Array);
}

function headCells(table, kind, sample, head) {
  const all = matrices(table, kind), size = table.rows * table.columns,
        start = (sample * table.heads + head) * size;
  const cells = all.subarray(start, start + size);
  return kind === "mask" ? Float32Array.from(cells, (x) => x === -Infinity ? 0 : 1) : cells;
}

function tokensOf(table, list, k, block, length) {
  const at = block === 1 ? `${k}` : `${k * block}\u2013${Math.min((k + 1) * block, length) - 1}`;
  const token = block === 1 && looking.sample === 0 ? list?.[k] : undefined;
  return {at, token, label: token ?? at, words: token === undefined ? at : `${at} \u201c${token}\u201d`};
}
const queryAt = (table, i) => tokensOf(table, table.queries, i, table.block[0], table.array[0]);
const keyAt = (table, j) => tokensOf(table, table.keys, j, table.block[1], table.array[1]);

// What has the full colour: the same for all heads where they are to be compared.
function scaleOf(table, kind) {
  if (kind === "mask") return 1;
  if (kind !== "weights") return undefined;
  return table.darkest ??= Math.max(extentOf(matrices(table, "weights"))[1], Number.MIN_VALUE);
}

function excludedIn(table) {
  if (!table.scores) return undefined;
  const cells = headCells(table, "scores", looking.sample, looking.head);
  return (k) => cells[k] === -Infinity;
}

// All that is known of a cell, whichever of it is drawn.
function cellText(table, i, j) {
  const k = i * table.columns + j, at = (kind) => headCells(table, kind, looking.sample, looking.head)[k];
  const parts =
      [`query ${queryAt(table, i).words}, key ${keyAt(table, j).words}: weight ${brief(at("weights"))}`];
  if (table.scores)
    parts.push(at("scores") === -Infinity ? "not allowed by the mask" : `score ${brief(at("scores"))}`);
  if (table.gradient) parts.push(`gradient ${brief(at("gradient"))}`);
  return parts.join(", ");
}

function headButtons(table) {
  return html(
      "div", {class: "heads", role: "group", "aria-label": "Heads"},
      Array.from({length: table.heads}, (_, head) => {
        const kind = looking.kind === "mask" && !table.scores ? "weights" : looking.kind,
              cells = headCells(table, kind, looking.sample, head);
        const [least, largest] = extentOf(cells),
                      scale = scaleOf(table, kind) ?? Math.max(-least, largest, Number.MIN_VALUE);
        const scores = table.scores && headCells(table, "scores", looking.sample, head);
        return html(
            "button", {
              type: "button",
              "aria-pressed": String(head === looking.head),
              click() {
                looking.head = head;
                showAttention(`.heads button:nth-child(${head + 1})`);
                announce(`Head ${head}`);
              },
            },
            painted(table, cells, scale, scores && ((k) => scores[k] === -Infinity), {"aria-hidden": "true"}),
            html("span", {}, `head ${head}`));
      }));
}

function bigMap(table) {
  const {kind, sample, head} = looking, cells = headCells(table, kind, sample, head);
  const view = byId("view-attention"), width = clamp(view.clientWidth - 40, 200, 760);
  const most = clamp(Math.floor((innerHeight - 490) / table.rows), 8, 40);
  return heatMap({
    map: table,
    cells,
    name: `${titles[kind]}, head ${head}`,
    width,
    most,
    tall: Infinity,
    bar: kind !== "mask",
    scale: scaleOf(table, kind),
    excluded: excludedIn(table),
    text: (i, j) => cellText(table, i, j),
    rowLabels: Array.from({length: table.rows}, (_, i) => queryAt(table, i).label),
    columnLabels: Array.from({length: table.columns}, (_, j) => keyAt(table, j).label),
  });
}

function weightTable(table) {
  if (table.rows * table.columns > 1024) return undefined;
  const cells = headCells(table, looking.kind, looking.sample, looking.head);
  return html(
      "details", {}, html("summary", {}, "Numbers"),
      html(
          "div", {class: "scroller", tabindex: 0, role: "region", "aria-label": "Numbers of this head"},
          html(
              "table", {class: "numbers"},
              html("caption", {}, `${titles[looking.kind]}: queries down, keys across`),
              html(
                  "thead", {},
                  html(
                      "tr", {}, html("td", {}),
                      Array.from(
                          {length: table.columns},
                          (_, j) => html("th", {scope: "col"}, keyAt(table, j).label)))),
              html(
                  "tbody", {},
                  Array.from(
                      {length: table.rows},
                      (_, i) => html(
                          "tr", {}, html("th", {scope: "row"}, queryAt(table, i).label),
                          Array.from(
                              {length: table.columns},
                              (_, j) => html("td", {}, brief(cells[i * table.columns + j])))))))));
}

function menu(label, values, chosen, choose) {
  const list = html(
      "select", {change: () => choose(Number(list.value))},
      values.map((text, k) => html("option", {value: k}, text)));
  list.value = chosen;
  return html("label", {}, `${label} `, list);
}

function showAttention(focus) {
  const view = byId("view-attention"), table = tape.attention[looking.table];
  if (!table) {
    view.replaceChildren(html(
        "p", {class: "empty"},
        "There are no weights here: the level everything keeps them, and the fused kernel makes none."));
    return;
  }
  const available = Object.entries(kinds).filter(([kind]) => matrices(table, kind));
  if (!matrices(table, looking.kind)) looking.kind = "weights";
  const bar = html(
      "div", {class: "bar"},
      tape.attention.length > 1 &&
          menu(
              "Attention", tape.attention.map((one) => one.label || nodeText(one.node)), looking.table,
              (k) => {
                Object.assign(looking, {table: k, sample: 0, head: 0});
                showAttention("select");
              }),
      table.samples > 1 &&
          menu(
              "Sample", Array.from({length: table.samples}, (_, k) => String(k)), looking.sample,
              (k) => {
                looking.sample = k;
                showAttention();
              }),
      choice("What is drawn", available, looking.kind, (kind) => {
        looking.kind = kind;
        showAttention(`.bar [aria-pressed="true"]`);
      }));
  view.replaceChildren(
      bar, headButtons(table),
      html(
          "div", {class: "big-map"},
          html("h2", {}, `${table.label || nodeText(table.node)}, head ${looking.head}`),
          html(
              "p", {class: "note"}, `${titles[looking.kind]}. Each row is a query, each column a key. `,
              matrices(table, "scores")?.includes(-Infinity) ? "Hatched: not allowed by the mask. " : "",
              table.onlyFirst ? "Of the first sample; the page has no room for the others. " : "",
              table.block.some((block) => block > 1) ?
                  `A cell is the mean of ${table.block[0]} by ${table.block[1]} numbers. ` :
                  "",
              nodeLink(table.node)),
          bigMap(table), weightTable(table) ?? ""));
  if (focus) view.querySelector(focus)?.focus();
}

function openAttention(k) {
  Object.assign(looking, {table: k, sample: 0, head: 0});
  openTab("attention");
  byId("tab-attention").focus();
}
