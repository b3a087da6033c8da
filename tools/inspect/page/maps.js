// ---- Heat maps: blue upwards from nothing, and orange below zero

const dark = () => getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (getComputedStyle(document.documentElement).colorScheme !== "light" &&
     matchMedia("(prefers-color-scheme: dark)").matches);

const stops = {
  light:
      {up: ["#f3f5f7", "#a9cbe6", "#3f86bf", "#0b3866"], down: ["#f3f5f7", "#f3bf8a", "#cf6f1c", "#6e2f00"]},
  dark:
      {up: ["#1d242c", "#1f4f7d", "#4f9bd9", "#d6ebff"], down: ["#1d242c", "#6b3a10", "#d9822b", "#ffe3c4"]},
};
const notFinite = [214, 40, 140];

const channels = (colour) => [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));

// The colour of t in [-1, 1].
function colourOf(t) {
  if (!Number.isFinite(t)) return notFinite;
  const list = stops[dark() ? "dark" : "light"][t < 0 ? "down" : "up"];
  const at = clamp(Math.abs(t), 0, 1) * (list.length - 1), k = Math.min(Math.floor(at), list.length - 2);
  const from = channels(list[k]), to = channels(list[k + 1]);
  return from.map((c, i) => Math.round(c + (to[i] - c) * (at - k)));
}

function extentOf(cells) {
  let least = Infinity, largest = -Infinity;
  for (const x of cells)
    if (Number.isFinite(x)) least = Math.min(least, x), largest = Math.max(largest, x);
  return least > largest ? [0, 0] : [least, largest];
}

// Paints a cell a pixel; what is excluded stays open and shows the hatching behind.
function paint(canvas, cells, scale, excluded) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  cells.forEach(
      (x, i) => image.data.set(excluded?.(i) ? [0, 0, 0, 0] : [...colourOf(x / scale), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

function painted(map, cells, scale, excluded, attributes = {}) {
  const canvas =
      html("canvas", {width: Math.max(map.columns, 1), height: Math.max(map.rows, 1), ...attributes});
  canvas.repaint = () => {
    if (map.rows * map.columns > 0) paint(canvas, cells, scale, excluded);
  };
  canvas.repaint();
  return canvas;
}

function scaleBar(least, largest, scale) {
  const steps = Array.from({length: 17}, (_, k) => least + (largest - least) * k / 16);
  const bar = html("span", {class: "scale-bar"});
  bar.repaint = () => {
    const colours = steps.map((x) => `rgb(${colourOf(x / scale).join(",")})`);
    bar.style.background = `linear-gradient(to right, ${colours.join(", ")})`;
  };
  bar.repaint();
  return html("div", {class: "scale"}, html("span", {}, brief(least)), bar, html("span", {}, brief(largest)));
}

function repaintAll() {
  document.querySelectorAll("canvas, .scale-bar").forEach((element) => element.repaint?.());
}

// Labels beside a map, every so many that each has room.
function edgeLabels(labels, cell, className) {
  const every = Math.ceil((className === "row-labels" ? 13 : 14) / cell);
  return html(
      "div", {class: className, "aria-hidden": "true"},
      labels.map(
          (label, i) => html(
              "span", {style: `flex-basis:${cell}px; line-height:${Math.max(cell, 11)}px`},
              i % every === 0 ? label : "")));
}

// A map that says what is under the pointer, or under a cursor that the arrow keys move.
//   map: rows, columns and block    cells: numbers    text(i, j): what to say of a cell
function heatMap({
  map,
  cells,
  name,
  width,
  text,
  scale,
  excluded,
  rowLabels,
  columnLabels,
  most = 26,
  tall = 400,
  bar = true
}) {
  const [least, largest] = extentOf(cells);
  const size = scale ?? Math.max(Math.abs(least), Math.abs(largest), Number.MIN_VALUE);
  const room = rowLabels ? Math.min(Math.max(...rowLabels.map((label) => 7 * label.length)), 96) + 8 : 0;
  const cell = clamp(Math.floor((width - room) / Math.max(map.columns, 1) * 10) / 10, 1, most);
  const height =
      map.rows === 1 ? Math.max(cell, 14) : Math.max(Math.min(cell, Math.floor(tall / map.rows)), 3);
  const canvas = painted(map, cells, size, excluded, {"aria-hidden": "true"});
  canvas.style.width = `${cell * map.columns}px`;
  canvas.style.height = `${height * map.rows}px`;
  const cursor = html("span", {class: "cursor", hidden: true});
  const readout = html("output", {class: "readout", "aria-live": "polite"}, hint);
  const rowStrip = rowLabels && edgeLabels(rowLabels, height, "row-labels");
  const columnStrip = columnLabels && edgeLabels(columnLabels, cell, "column-labels");
  let at;

  function show(i, j) {
    at = [i, j];
    cursor.hidden = false;
    Object.assign(
        cursor.style,
        {left: `${j * cell}px`, top: `${i * height}px`, width: `${cell}px`, height: `${height}px`});
    readout.textContent = text(i, j);
    for (const [strip, k] of [[rowStrip, i], [columnStrip, j]]) {
      strip?.querySelector(".here")?.classList.remove("here");
      strip?.children[k].classList.add("here");
    }
  }
  const field = html(
      "div", {
        class: "field",
        tabindex: 0,
        role: "img",
        "aria-label": `${name}, ${map.rows} by ${map.columns} cells, ` +
            `from ${brief(least)} to ${brief(largest)}; arrow keys read the cells`,
        pointermove(event) {
          const box = canvas.getBoundingClientRect();
          const i = Math.floor((event.clientY - box.top) / height),
                j = Math.floor((event.clientX - box.left) / cell);
          if (i >= 0 && j >= 0 && i < map.rows && j < map.columns) show(i, j);
        },
        keydown(event) {
          const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [
                          0, 1
                        ]}[event.key];
          if (!step) return;
          event.preventDefault();
          const from = at ?? [step[0] > 0 ? -1 : 0, step[1] > 0 ? -1 : 0];
          show(clamp(from[0] + step[0], 0, map.rows - 1), clamp(from[1] + step[1], 0, map.columns - 1));
        },
      },
      canvas, cursor);
  if (map.rows * map.columns === 0) return html("p", {class: "note"}, "It has no elements.");
  return html(
      "div", {class: "map"}, html("div", {class: "map-grid"}, columnStrip, rowStrip, field),
      bar && scaleBar(Math.min(least, 0), Math.max(largest, 0), size), readout);
}
const hint = "Point at a cell, or step with the arrow keys.";

// The index of a number by its row and column, one an axis of the array.
function indexText(shape, i, j) {
  const index = shape.length ? [j] : [];
  for (let axis = shape.length - 2; axis >= 0; --axis) {
    index.unshift(i % shape[axis]);
    i = Math.floor(i / shape[axis]);
  }
  return shapeText(index);
}

// The map of an array that a node holds, and its numbers when they are few.
function arrayMap(map, {shape, type}, name, width) {
  const cells = numbersOf(map), blocks = map.block ?? [1, 1];
  const range = (k, block, length) =>
      block === 1 ? `${k}` : `${k * block}\u2013${Math.min((k + 1) * block, length) - 1}`;
  const text = (i, j) => {
    const x = cells[i * map.columns + j];
    if (!map.block) return `${indexText(shape, i, j)}: ${map.f64 ? inFull(x, type) : brief(x)}`;
    return `rows ${range(i, blocks[0], map.array[0])}, columns ${range(j, blocks[1], map.array[1])}: mean ${
        brief(x)}`;
  };
  const notes = [];
  if (shape.length > 2) notes.push(`Rows are the axes ${shapeText(shape.slice(0, -1))}, in order.`);
  if (map.block)
    notes.push(
        `A cell is the mean of ${blocks[0]} by ${blocks[1]} numbers of ${map.array[0]} by ${map.array[1]}.`);
  return html(
      "div", {}, heatMap({map, cells, name, width, text}),
      notes.length > 0 && html("p", {class: "note"}, notes.join(" ")),
      map.f64 && cells.length > 0 &&
          html("details", {}, html("summary", {}, "Numbers"), numberTable(map, cells, type, name)));
}

function numberTable(map, cells, type, name) {
  const lines = Array.from(
      {length: map.rows},
      (_, i) =>
          html("tr", {}, html("th", {scope: "row"}, String(i)), Array.from({length: map.columns}, (_, j) => {
            const x = cells[i * map.columns + j];
            return html("td", {title: inFull(x, type)}, brief(x));
          })));
  return html(
      "div", {class: "scroller", tabindex: 0, role: "region", "aria-label": `Numbers of ${name}`},
      html(
          "table", {class: "numbers"},
          html(
              "thead", {},
              html(
                  "tr", {}, html("td", {}),
                  Array.from({length: map.columns}, (_, j) => html("th", {scope: "col"}, String(j))))),
          html("tbody", {}, lines)));
}
