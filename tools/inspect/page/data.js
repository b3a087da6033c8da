// ---- The tape

const tape = JSON.parse(document.getElementById("tape").textContent);
const rows = tape.rows;
rows.forEach((row, index) => Object.assign(row, {
  index,
  label: row.label ?? "",
  inputs: row.inputs ?? [],
  kept: row.kept ?? 0,
  flops: row.flops ?? 0,
  consumers: [],
}));
for (const row of rows) {
  for (const input of new Set(row.inputs))
    if (input !== null) rows[input].consumers.push(row.index);
}

// The numbers of an array, a Float64Array when they are in full; decoded when first asked for.
function numbersOf(map) {
  return map.numbers ??=
             map.f64 !== undefined ? unpacked(map.f64, Float64Array) : unpacked(map.f32, Float32Array);
}
function unpacked(text, Numbers) {
  return new Numbers(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

// ---- Text

const none = "\u2013";

function special(x) { return Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf"; }
// With six digits, as the format %.6g has them.
function brief(x) {
  if (x === undefined || x === null) return none;
  if (!Number.isFinite(x)) return special(x);
  const size = Math.abs(x);
  return size === 0 || (size >= 1e-4 && size < 1e6) ? String(Number(x.toPrecision(6))) :
                                                      x.toExponential(5).replace(/\.?0*e/, "e");
}
// With all the digits that its type has.
function inFull(x, type) {
  if (!Number.isFinite(x)) return special(x);
  return String(type === "f32" ? Number(x.toPrecision(9)) : x);
}
function withUnit(x, units, step) {
  let k = 0;
  while (Math.abs(x) >= step && k + 1 < units.length) x /= step, ++k;
  return `${Number(x.toPrecision(3))} ${units[k]}`.trim();
}
const bytesText = (x) => withUnit(x, ["B", "kB", "MB", "GB", "TB"], 1000);
const countText = (x) => withUnit(x, ["", "k", "M", "G", "T"], 1000);
const timeText = (x) => x === undefined ? none : withUnit(x * 1e9, ["ns", "\u00b5s", "ms", "s"], 1000);
const shapeText = (shape) => `(${shape.join(", ")})`;
const nodeText = (i) => `%${rows[i].number} ${rows[i].op}`;
const absent = tape.partial ? "not on this page" : "a constant";
const lastOf = (label) => label.slice(label.lastIndexOf("/") + 1);
// A node in a few words: what it is and where.
function describe(i) {
  const row = rows[i];
  return `${nodeText(i)}${row.label && `, ${row.label}`}, shape ${shapeText(row.shape)}`;
}

// ---- Elements

const svgNames = "http://www.w3.org/2000/svg";

// A name is never read as HTML: strings become text nodes.
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function")
      element.addEventListener(name, value);
    else if (value === true)
      element.setAttribute(name, "");
    else if (value !== false && value !== undefined)
      element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== false));
  return element;
}
function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}
function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(svgNames, tag), attributes, children);
}
const byId = (id) => document.getElementById(id);
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

function announce(text) { byId("live").textContent = text; }

// One of several buttons is pressed; choose(value) is called with its value.
function choice(label, values, chosen, choose) {
  const buttons = values.map(
      ([value, text]) => html(
          "button", {
            type: "button",
            "aria-pressed": String(value === chosen),
            click() {
              for (const button of buttons) button.setAttribute("aria-pressed", String(button === this));
              choose(value);
            },
          },
          text));
  return html("span", {class: "group", role: "group", "aria-label": label}, buttons);
}

// A button that leads to a node.
function nodeLink(i, text = nodeText(i)) {
  return html(
      "button", {type: "button", class: "link", "data-node": i, title: describe(i), click: () => goTo(i)},
      text);
}
