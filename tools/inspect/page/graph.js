// ---- The drawing

const scopes =
    tape.scopes.map((scope, index) => ({
                      ...scope,
                      index,
                      items: scope.items.map(([kind, id, x, y, w, h]) => ({kind, id, x, y, w, h})),
                      edges: scope.edges.map(([from, to, curve, uses]) => ({from, to, curve, uses})),
                      nodes: [],  // in it and in the scopes inside
                    }));
const homeOf = [];
for (const scope of scopes)
  for (const item of scope.items)
    if (item.kind === "node") homeOf[item.id] = scope.index;
homeOf.forEach((home, i) => {
  for (let s = home; s !== undefined; s = scopes[s].parent) scopes[s].nodes.push(i);
});

const openScopes = new Set([0]);
const graph = {
  items: [],
  edges: [],
  focus: undefined,
  view: {x: 0, y: 0, k: 1},
  size: {w: 0, h: 0}
};
const readable = 0.7;  // the least scale at which the text can be read
const frame = {
  header: 30,
  side: 14,
  bottom: 14
};

// Opens from outside inwards what a screen has room for; a long tape stays closed.
function openSome() {
  if (rows.length > 1000) return;
  let shown = scopes[0].items.length;
  for (const scope of scopes.slice(1)) {
    const more = scope.items.length;
    if (!openScopes.has(scope.parent) || shown + more > 48) continue;
    openScopes.add(scope.index);
    shown += more;
  }
}

// A map of the line that gives each span the room it needs and shrinks nothing.
function stretched(spans) {
  const steps = [];
  const f = (t) =>
      steps.reduce((sum, [from, to, more]) => sum + more * (clamp(t, from, to) - from) / (to - from), t);
  for (const [from, to, need] of spans.sort((a, b) => a[1] - a[0] - (b[1] - b[0]))) {
    const missing = need - (f(to) - f(from));
    if (missing > 0) steps.push([from, to, missing]);
  }
  return f;
}

// What is open in one rank makes that rank wider and higher; the ranks above and below stay as they are, and
// in the gaps between, edges go from the one to the other.
const gap = 24, openGap = 44;

function bandsOf(scope, inner) {
  const bands = new Map();
  scope.items.forEach((item, k) => {
    if (!inner[k]) return;
    const band = bands.get(item.y) ?? {top: Infinity, bottom: -Infinity, spans: [], centres: []};
    band.top = Math.min(band.top, item.y - item.h / 2);
    band.bottom = Math.max(band.bottom, item.y + item.h / 2);
    band.spans.push([item.x - item.w / 2, item.x + item.w / 2, inner[k].w + 2 * frame.side]);
    band.centres.push(item.x);
    band.height = Math.max(band.height ?? 0, inner[k].h + frame.header + frame.bottom);
    bands.set(item.y, band);
  });
  return [...bands.values()].map((band) => {
    const f = stretched(band.spans), centre = band.centres.reduce((a, b) => a + b) / band.centres.length;
    return {...band, f: (x) => f(x) - f(centre) + centre};
  });
}

// Where all items of a scope are when what is open in it has its room.
function placed(scope) {
  const inner = scope.items.map(
      (item) => item.kind === "scope" && openScopes.has(item.id) ? placed(scopes[item.id]) : undefined);
  const bands = bandsOf(scope, inner);
  const fy = stretched(bands.flatMap(
      ({top,
        bottom,
        height}) => [[top, bottom, height], [top - gap, top, openGap], [bottom, bottom + gap, openGap]]));
  const fx = (x, y) => {
    for (const {top, bottom, f} of bands) {
      const near = 1 - Math.max(top - y, y - bottom, 0) / gap;
      if (near > 0) return x + near * (f(x) - x);
    }
    return x;
  };
  const boxes = scope.items.map((item, k) => {
    const w = inner[k] ? inner[k].w + 2 * frame.side : item.w,
          h = inner[k] ? inner[k].h + frame.header + frame.bottom : item.h;
    const x = (fx(item.x - item.w / 2, item.y) + fx(item.x + item.w / 2, item.y)) / 2;
    const y = (fy(item.y - item.h / 2) + fy(item.y + item.h / 2)) / 2;
    return {item, inner: inner[k], x: x - w / 2, y: y - h / 2, w, h};
  });
  const edges = scope.edges.map((edge) => edgePoints(edge, boxes, fx, fy, bands.length > 0));
  const all =
      [...boxes.flatMap(({x, w}) => [x, x + w]), ...edges.flatMap((points) => points.map(([x]) => x))];
  const left = Math.min(0, ...all), right = Math.max(scope.width, ...all);
  boxes.forEach((box) => {
    box.x -= left;
  });
  edges.forEach((points) => points.forEach((point) => {
    point[0] -= left;
  }));
  return {scope, boxes, edges, smooth: bands.length === 0, w: right - left, h: fy(scope.height)};
}

// A point of a cubic curve.
function onCurve([p, q, r, s], t) {
  const u = 1 - t;
  return [0, 1].map((k) => u * u * u * p[k] + 3 * u * u * t * q[k] + 3 * u * t * t * r[k] + t * t * t * s[k]);
}

// The points of an edge: those of its curve, or many on it where the curve is bent by what is open.
function edgePoints(edge, boxes, fx, fy, bent) {
  const from = boxes[edge.from], to = boxes[edge.to], steps = 8;
  let points = [];
  for (let k = 0; k < edge.curve.length; k += 2) points.push([edge.curve[k], edge.curve[k + 1]]);
  if (points.length < 4) return [[from.x + from.w / 2, from.y + from.h], [to.x + to.w / 2, to.y]];
  if (bent) {
    const many = [points[0]];
    for (let k = 0; k + 3 < points.length; k += 3) {
      for (let t = 1; t <= steps; ++t) many.push(onCurve(points.slice(k, k + 4), t / steps));
    }
    points = many;
  }
  const last = points.length - 1;
  return points.map(
      ([x, y], k) => k === 0 ? atBorder(x, y, from, fx) :
          k === last         ? atBorder(x, y, to, fx) :
                               [fx(x, y), fy(y)]);
}

// The end of an edge, moved with the border of its box.
function atBorder(x, y, box, fx) {
  const {item} = box, inside = (value, low, length) => clamp(value, low + 4, low + length - 4);
  const across = inside(box.inner ? fx(x, item.y) : box.x + box.w / 2 + x - item.x, box.x, box.w);
  if (y >= item.y + item.h / 2 - 3) return [across, box.y + box.h];
  if (y <= item.y - item.h / 2 + 3) return [across, box.y];
  return [x < item.x ? box.x : box.x + box.w, box.y + (box.inner ? frame.header : box.h) / 2];
}

function edgePath(points, smooth) {
  const text = points.map((point) => point.map((c) => c.toFixed(1)).join(","));
  return `M${text[0]}${smooth && points.length > 2 ? "C" : "L"}${text.slice(1).join(" ")}`;
}

function clipped(text, width) {
  const most = Math.floor(width / 6.7);
  return text.length <= most ? text : `${text.slice(0, Math.max(most - 1, 1))}\u2026`;
}

function itemElement(box, x, y) {
  const {item, w, h} = box;
  const attributes = {
    class: `item ${item.kind}`,
    tabindex: -1,
    role: "button",
    transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`
  };
  if (item.kind === "scope") return scopeElement(box, attributes);
  const row = rows[item.id];
  if (item.kind !== "node") {
    const where = item.kind === "source" ? "comes from outside" : "is read outside";
    return svg(
        "g", {...attributes, "aria-label": `${describe(item.id)}, ${where}`},
        svg("rect", {width: w, height: h, rx: h / 2}),
        svg("text", {x: w / 2, y: 14, "text-anchor": "middle"}, `%${row.number}`));
  }
  const second = row.named && row.label ? lastOf(row.label) : shapeText(row.shape);
  return svg(
      "g", {
        ...attributes,
        class: `item node ${row.named ?? ""}`,
        "data-node": item.id,
        "aria-label": describe(item.id)
      },
      svg("title", {}, describe(item.id)),
      svg("rect", {width: w, height: h, rx: row.named === "port" ? h / 2 : 6}),
      svg("text", {x: 12, y: 18, class: "op"}, clipped(row.op, w - 50)),
      svg("text", {x: w - 12, y: 18, class: "number", "text-anchor": "end"}, `%${row.number}`),
      svg("text", {x: 12, y: 33, class: "second"}, clipped(second, w - 20)));
}

function scopeElement({item, w, h, inner}, attributes) {
  const scope = scopes[item.id], count = `${scope.nodes.length} nodes`;
  return svg(
      "g", {
        ...attributes,
        class: `item scope ${inner ? "open" : "closed"}`,
        "data-scope": item.id,
        "aria-expanded": String(Boolean(inner)),
        "aria-label": `${scope.name}, scope of ${count}`
      },
      inner ? [] : svg("rect", {class: "behind", x: 4, y: 4, width: w, height: h, rx: 8}),
      svg("rect", {class: "box", width: w, height: h, rx: 8}),
      inner ? svg("rect", {class: "handle", width: w, height: frame.header - 4, rx: 8}) : [],
      svg("text", {x: 12, y: 19, class: "op"}, `${inner ? "\u2212" : "+"} ${clipped(scope.name, w - 30)}`),
      inner && w < 8 * (scope.name.length + count.length + 6) ?
          [] :
          svg("text",
              inner ? {x: w - 12, y: 19, class: "second", "text-anchor": "end"} :
                      {x: 12, y: 35, class: "second"},
              count));
}

// Edges lie below the items of their scope, and a scope below what is in it.
function drawScope(layout, x, y, target) {
  layout.scope.edges.forEach((edge, k) => {
    const path =
        svg("path",
            {class: "edge", d: edgePath(layout.edges[k], layout.smooth), transform: `translate(${x},${y})`});
    target.append(path);
    graph.edges.push({uses: edge.uses, path});
  });
  for (const box of layout.boxes) {
    const left = x + box.x, top = y + box.y, element = itemElement(box, left, top);
    target.append(element);
    const place = {
      ...box,
      x: left,
      y: top,
      element,
      inner: undefined,
      open: Boolean(box.inner),
      scope: layout.scope.index
    };
    element.place = place;
    graph.items.push(place);
    if (box.inner) drawScope(box.inner, left + frame.side, top + frame.header, target);
  }
}

function draw() {
  const layout = placed(scopes[0]), hadFocus = byId("drawing").contains(document.activeElement);
  graph.items = [], graph.edges = [];
  const world = svg("g", {id: "world"});
  drawScope(layout, 0, 0, world);
  graph.size = {w: layout.w, h: layout.h};
  byId("drawing").replaceChildren(
      svg("defs", {},
          svg("marker", {
            id: "arrow",
            viewBox: "0 0 8 8",
            refX: 7,
            refY: 4,
            markerWidth: 7,
            markerHeight: 7,
            orient: "auto",
            markerUnits: "userSpaceOnUse",
          },
              svg("path", {d: "M0,1L8,4L0,7Z"}))),
      world);
  applyView();
  mark();
  setFocus(
      graph.focus && graph.items.find((place) => same(place.item, graph.focus)) || graph.items[0], false);
  if (hadFocus) byId("drawing").querySelector("[tabindex=\"0\"]").focus({preventScroll: true});
}

const same = (a, b) => a.kind === b.kind && a.id === b.id;
const placeOf = (kind, id) => graph.items.find((place) => place.item.kind === kind && place.item.id === id);

// ---- The view

function applyView() {
  const {x, y, k} = graph.view;
  byId("world")?.setAttribute(
      "transform", `translate(${x.toFixed(2)},${y.toFixed(2)}) scale(${k.toFixed(4)})`);
  byId("drawing").classList.toggle("far", k < 0.35);
}

function canvasSize() {
  const {clientWidth, clientHeight} = byId("canvas");
  return {w: clientWidth, h: clientHeight};
}

function fit(least = 0.02) {
  const {w, h} = canvasSize(), margin = 24;
  const k = clamp(Math.min((w - margin) / graph.size.w, (h - margin) / graph.size.h), least, 1);
  graph.view = {k, x: (w - graph.size.w * k) / 2, y: Math.max((h - graph.size.h * k) / 2, 12)};
  applyView();
}

function zoom(factor, cx = canvasSize().w / 2, cy = canvasSize().h / 2) {
  const {x, y, k} = graph.view, next = clamp(k * factor, 0.02, 4);
  graph.view = {k: next, x: cx - (cx - x) * next / k, y: cy - (cy - y) * next / k};
  applyView();
}

// Moves the view as little as shows the place, or to its middle; says whether it had to.
function show(place, middle = false) {
  const {w, h} = canvasSize(), {view} = graph, margin = 30;
  const height = place.open ? frame.header : place.h;
  const centre = [view.x + (place.x + place.w / 2) * view.k, view.y + (place.y + height / 2) * view.k];
  const into = (at, half, length) => {
    const low = Math.min(margin + half, length / 2);
    return middle ? length / 2 - at : clamp(at, low, length - low) - at;
  };
  const dx = into(centre[0], place.w / 2 * view.k, w), dy = into(centre[1], height / 2 * view.k, h);
  view.x += dx;
  view.y += dy;
  applyView();
  return dx !== 0 || dy !== 0;
}

function setFocus(place, byKeys = true) {
  if (!place) return;
  for (const element of byId("drawing").querySelectorAll("[tabindex=\"0\"]"))
    element.setAttribute("tabindex", -1);
  place.element.setAttribute("tabindex", 0);
  graph.focus = place.item;
  if (!byKeys) return;
  place.element.focus({preventScroll: true});
  show(place);
}

// Opens or closes a scope and keeps it where it was on the screen.
function toggleScope(id, open = !openScopes.has(id)) {
  const before = placeOf("scope", id);
  open ? openScopes.add(id) : openScopes.delete(id);
  graph.focus = {kind: "scope", id};
  draw();
  const after = placeOf("scope", id);
  if (before && after) {
    graph.view.x += (before.x + before.w / 2 - after.x - after.w / 2) * graph.view.k;
    graph.view.y += (before.y - after.y) * graph.view.k;
    applyView();
  }
  if (after && byId("drawing").contains(document.activeElement)) show(after);
  announce(`${scopes[id].name} is ${open ? "open" : "closed"}`);
}

function openAround(i) {
  let opened = false;
  for (let s = homeOf[i]; s !== undefined; s = scopes[s].parent) {
    opened ||= !openScopes.has(s);
    openScopes.add(s);
  }
  if (opened) draw();
  return placeOf("node", i);
}

// ---- What is marked: the chosen node with its neighbours, what a search found, the paths

function mark() {
  const chosen = state.selected, row = rows[chosen];
  const near = new Set(row ? [...row.inputs, ...row.consumers] : []);
  for (const {item, element, open} of graph.items) {
    const nodes = item.kind === "scope" ? scopes[item.id].nodes : [item.id];
    const has = (test) => item.kind === "scope" ? !open && nodes.some(test) : test(item.id);
    element.classList.toggle("chosen", item.kind !== "scope" && item.id === chosen);
    element.classList.toggle("near", has((i) => near.has(i)));
    element.classList.toggle("found", has((i) => state.found.has(i)));
    const lit = item.kind === "scope" && open ? undefined : lights(nodes);
    element.classList.toggle("unlit", Boolean(state.paths) && lit === undefined && !open);
    element.style.setProperty("--lit", lit ?? "");
    element.classList.toggle("lit", lit !== undefined);
  }
  for (const {uses, path} of graph.edges) {
    let touches = false;
    for (let k = 0; k < uses.length; k += 2) touches ||= uses[k] === chosen || uses[k + 1] === chosen;
    const lit = lightsOfUses(uses);
    path.classList.toggle("near", touches);
    path.classList.toggle("lit", lit !== undefined);
    path.classList.toggle("unlit", Boolean(state.paths) && lit === undefined);
    path.style.setProperty("--lit", lit ?? "");
  }
}

// ---- Hands

// The nearest item in a direction, straight ahead before aside.
function neighbour(from, [dx, dy]) {
  const centre = (place) => [place.x + place.w / 2, place.y + (place.open ? frame.header : place.h) / 2];
  const [x, y] = centre(from);
  let best, least = Infinity;
  for (const place of graph.items) {
    const [px, py] = centre(place);
    const ahead = (px - x) * dx + (py - y) * dy, aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
    const cost = ahead + 2.5 * aside;
    if (place !== from && ahead > 2 && cost < least) best = place, least = cost;
  }
  return best;
}

function use({item}) { item.kind === "scope" ? toggleScope(item.id) : select(item.id); }

function goBack(place) {
  if (state.selected !== undefined) return select(undefined);
  if (state.paths) return choosePaths(undefined);
  const scope = place.item.kind === "scope" && place.open ? place.item.id : place.scope;
  if (scope > 0) toggleScope(scope, false);
}

function onKey(event) {
  const place = event.target.closest?.(".item")?.place;
  if (!place || event.ctrlKey || event.metaKey || event.altKey) return;
  const ways = {ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0]};
  const acts = {
    Enter: () => use(place),
    " ": () => use(place),
    Escape: () => goBack(place),
    "+": () => zoom(1.25),
    "=": () => zoom(1.25),
    "-": () => zoom(0.8),
    0: () => fit(),
    Home: () => setFocus(graph.items[0]),
    End: () => setFocus(graph.items.at(-1)),
  };
  if (ways[event.key])
    setFocus(neighbour(place, ways[event.key]));
  else if (acts[event.key])
    acts[event.key]();
  else
    return;
  event.preventDefault();
}

// One pointer moves the view, two zoom it; one that has not moved is a click.
function listenToPointers(canvas) {
  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 1) moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY],
          other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    if (moved > 4) canvas.setPointerCapture?.(event.pointerId);
    if (other) {
      const box = canvas.getBoundingClientRect(), away = ([x, y]) => Math.hypot(x - other[0], y - other[1]);
      zoom(
          away(now) / Math.max(away(before), 1), (now[0] + other[0]) / 2 - box.left,
          (now[1] + other[1]) / 2 - box.top);
    } else {
      graph.view.x += now[0] - before[0];
      graph.view.y += now[1] - before[1];
      applyView();
    }
    pointers.set(event.pointerId, now);
  });
  for (const end of ["pointerup", "pointercancel"])
    canvas.addEventListener(end, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("click", (event) => {
    const place = event.target.closest?.(".item")?.place;
    if (!place || moved > 4) return;
    setFocus(place, false);
    place.element.focus({preventScroll: true});
    use(place);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom(
        Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.clientX - box.left,
        event.clientY - box.top);
  }, {passive: false});
}

function startGraph() {
  openSome();
  draw();
  fit(readable);
  listenToPointers(byId("canvas"));
  byId("drawing").addEventListener("keydown", onKey);
  byId("zoom-in").onclick = () => zoom(1.25);
  byId("zoom-out").onclick = () => zoom(0.8);
  byId("fit").onclick = () => fit();
  byId("open-all").onclick = () => {
    scopes.forEach((scope) => openScopes.add(scope.index));
    draw();
    fit();
    announce("All scopes are open");
  };
  byId("close-all").onclick = () => {
    openScopes.clear();
    openScopes.add(0);
    draw();
    fit();
    announce("All scopes are closed");
  };
}
