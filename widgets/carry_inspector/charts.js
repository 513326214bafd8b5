// Drawings of the inspector: lines, points and shaded tables, each in a card with its table behind a button.

const CHANCE_EDGES = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9];
const SHARE_EDGES = [0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 0.95];
const KL_EDGES = [0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 6];
const shadeOf = (value, edges) => (value === null || value === undefined ? 0 : edges.filter((edge) => value >= edge).length);

// A token with its probability, as dark as it is likely.
function lensCell([label, p]) {
  const word = h("span", { class: "wb-word" }, labelNodes(label));
  return h("span", { class: `wb-lens wb-s${shadeOf(p, CHANCE_EDGES)}`, title: `${plainLabel(label)}: ${num(p)}` }, word, h("small", {}, num(p)));
}

const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// A card: what it shows, its takeaway in words, and all of its numbers as a table on demand.
function figure(frame, { title, tools, content, caption, rows, wide }) {
  const body = h("div", { hidden: true });
  const toggle = rows ? frame.button("Show as table", () => {
    body.hidden = !body.hidden;
    toggle.setAttribute("aria-expanded", String(!body.hidden));
    if (!body.hidden) body.replaceChildren(table(`${title}: all numbers`, ...rows()));
  }, { "aria-expanded": "false" }) : null;
  const bar = toggle || tools ? h("div", { class: "wb-tools" }, tools ?? [], toggle) : null;
  const made = card(title, ...[content, note(caption), bar, body].flat().filter(Boolean));
  if (wide) made.classList.add("wb-wide");
  return made;
}

// Where a value lies on an axis; on a logarithmic one what is not above zero lies at the bottom.
function scaleOf(values, { low, high, log }) {
  const known = values.filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0));
  const by = log ? Math.log10 : (value) => value;
  let first = low ?? Math.min(...known, log ? 1 : 0), last = high ?? Math.max(...known, first);
  if (!known.length) [first, last] = [low ?? (log ? 0.1 : 0), high ?? 1];
  if (first === last) last = log ? first * 10 : first + 1;
  const place = (value) => (log && value <= 0 ? 0 : (by(value) - by(first)) / (by(last) - by(first)));
  return { first, last, log, place: (value) => Math.min(Math.max(place(value), 0), 1), ticks: ticksOf(first, last, log) };
}
function ticksOf(first, last, log) {
  if (log) {
    const low = Math.ceil(Math.log10(first) - 1e-9), high = Math.floor(Math.log10(last) + 1e-9), every = Math.max(Math.ceil((high - low) / 4), 1);
    const found = [];
    for (let power = low; power <= high; power += every) found.push(10 ** power);
    return found;
  }
  const raw = (last - first) / 4, size = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find((nice) => nice * size >= raw) * size;
  const found = [];
  for (let at = Math.ceil(first / step - 1e-9) * step; at <= last + step * 1e-9; at += step) found.push(Math.round(at / step) * step);
  return found.map((value) => Number(value.toPrecision(6)));
}

const MARKERS = [
  (x, y) => svg("circle", { cx: x, cy: y, r: 2.8 }), (x, y) => svg("rect", { x: x - 2.5, y: y - 2.5, width: 5, height: 5 }),
  (x, y) => svg("path", { d: `M${x} ${y - 3.4}l3.2 5.6h-6.4z` }), (x, y) => svg("path", { d: `M${x} ${y - 3.6}l3.6 3.6-3.6 3.6-3.6-3.6z` }),
];

// Lines over columns. Each has a dash and a marker of its own and its name at its end; breaks are where a phase ends.
class LineChart {
  constructor({ names, series, label, low, high, log, upsideDown, breaks, axis, pick, high_px }) {
    Object.assign(this, { names, series, breaks: breaks ?? [], pick });
    this.wide = 560;
    this.high = high_px ?? 190;
    this.box = { left: 44, right: 104, top: 10, bottom: 34 };
    this.scale = scaleOf(series.flatMap((line) => line.values), { low, high, log });
    this.upsideDown = upsideDown;
    this.cursor = svg("line", { class: "wb-at", display: "none", y1: this.box.top - 4, y2: this.high - this.box.bottom });
    this.root = svg("svg", { viewBox: `0 0 ${this.wide} ${this.high}`, class: "wb-chart", role: "img", "aria-label": label },
      this.#axes(axis), this.cursor, series.map((line, i) => this.#line(line, i)), this.#ends());
    if (pick) this.root.addEventListener("click", (event) => this.#picked(event));
  }
  x(column) {
    const { left, right } = this.box, count = Math.max(this.names.length - 1, 1);
    return left + 8 + (this.wide - left - right - 16) * column / count;
  }
  y(value) {
    const { top, bottom } = this.box, share = this.scale.place(value);
    return top + (this.high - top - bottom) * (this.upsideDown ? share : 1 - share);
  }
  at(column) {
    for (const name of ["x1", "x2"]) this.cursor.setAttribute(name, this.x(column));
    this.cursor.removeAttribute("display");
  }
  #axes(axis) {
    const { left, right, bottom } = this.box, parts = [];
    for (const tick of this.scale.ticks) {
      const y = this.y(tick);
      parts.push(svg("line", { class: "wb-gridline", x1: left, x2: this.wide - right, y1: y, y2: y }), svg("text", { x: left - 5, y: y + 3.5, class: "wb-tick wb-end" }, num(tick)));
    }
    const every = Math.ceil(this.names.length / 14);
    this.names.forEach((name, i) => {
      if (i % every === 0) parts.push(svg("text", { x: this.x(i), y: this.high - bottom + 14, class: "wb-tick wb-mid" }, name));
    });
    for (const column of this.breaks) {
      const x = (this.x(column) + this.x(column - 1)) / 2;
      parts.push(svg("line", { class: "wb-break", x1: x, x2: x, y1: this.box.top, y2: this.high - bottom }));
    }
    parts.push(svg("text", { x: left, y: this.high - 3, class: "wb-tick" }, axis ?? ""));
    return parts;
  }
  #line(line, i) {
    const points = line.values.map((value, column) => (value === null ? null : [this.x(column), this.y(value)]));
    let path = "", pen = false;
    for (const point of points) {
      if (point) path += `${pen ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      pen = Boolean(point);
    }
    const marks = points.map((point) => (point ? MARKERS[i % 4](...point) : null));
    const rings = (line.rings ?? []).filter((column) => points[column]).map((column) => svg("circle", { class: "wb-ring", cx: points[column][0], cy: points[column][1], r: 6.5 }));
    return svg("g", { class: `wb-line wb-line${i % 8}` }, svg("path", { d: path, class: "wb-stroke" }), marks, rings);
  }
  // Names beside the lines' ends, pushed apart where they would overlap.
  #ends() {
    const ends = this.series.map((line, i) => {
      const column = line.values.findLastIndex((value) => value !== null);
      return column < 0 ? null : { i, line, x: this.x(column), y: this.y(line.values[column]) };
    }).filter(Boolean).sort((a, b) => a.y - b.y);
    let least = 8;
    for (const end of ends) least = (end.at = Math.max(end.y, least)) + 12;
    let most = this.high - this.box.bottom + 2;
    for (const end of [...ends].reverse()) most = (end.at = Math.min(end.at, most)) - 12;
    return ends.map(({ i, line, x, at, y }) => svg("g", { class: `wb-line wb-line${i % 8}` }, svg("path", { d: `M${x + 5} ${y}L${this.wide - this.box.right + 4} ${at}`, class: "wb-lead" }),
      MARKERS[i % 4](this.wide - this.box.right + 8, at), svg("text", { x: this.wide - this.box.right + 15, y: at + 3.5, class: "wb-name" }, line.name)));
  }
  #picked(event) {
    const box = this.root.getBoundingClientRect(), { left, right } = this.box;
    const share = ((event.clientX - box.left) / box.width * this.wide - left - 8) / (this.wide - left - right - 16);
    const column = Math.round(share * (this.names.length - 1));
    this.pick(Math.min(Math.max(column, 0), this.names.length - 1));
  }
}

// Paths in a plane, their steps numbered; units of both axes are equal.
function planeChart({ runs, label, axes }) {
  const wide = 560, high = 360, edge = 46;
  const xs = runs.flatMap((run) => run.x), ys = runs.flatMap((run) => run.y);
  const span = Math.max(Math.max(...xs) - Math.min(...xs), (Math.max(...ys) - Math.min(...ys)) * (wide - 2 * edge - 90) / (high - 2 * edge), 1e-9);
  const unit = (wide - 2 * edge - 90) / span, midX = (Math.max(...xs) + Math.min(...xs)) / 2, midY = (Math.max(...ys) + Math.min(...ys)) / 2;
  const place = (x, y) => [(wide - 90) / 2 + (x - midX) * unit, high / 2 - (y - midY) * unit];
  const parts = runs.map((run, i) => {
    const points = run.x.map((x, step) => place(x, run.y[step]));
    const path = points.map(([x, y], step) => `${step ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    const numbers = points.map(([x, y], step) => svg("text", { x: x + 5, y: y - 5, class: "wb-tick" }, String(step)));
    const y = 16 + 16 * i;
    return svg("g", { class: `wb-line wb-line${i % 8}` }, svg("path", { d: path, class: "wb-stroke wb-thin" }), points.map((point) => MARKERS[i % 4](...point)), i < 3 ? numbers : [],
      svg("path", { d: `M${wide - 118} ${y}h14`, class: "wb-stroke" }), MARKERS[i % 4](wide - 111, y), svg("text", { x: wide - 100, y: y + 3.5, class: "wb-name" }, run.name));
  });
  return svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "wb-chart wb-plane", role: "img", "aria-label": label },
    svg("rect", { x: 30, y: 8, width: wide - 160, height: high - 34, class: "wb-frame" }), parts,
    svg("text", { x: 34, y: high - 10, class: "wb-tick" }, `→ ${axes[0]}`), svg("text", { x: 20, y: high - 30, class: "wb-tick", transform: `rotate(-90 20 ${high - 30})` }, `→ ${axes[1]}`));
}

// A table whose cells are shaded by what they say in numbers. A cell: { text, shade, title, kind }.
function matrix(caption, corner, columns, rows, { onpick } = {}) {
  const head = h("tr", {}, h("th", { scope: "col" }, corner), columns.map((name) => h("th", { scope: "col" }, name)));
  const body = rows.map(({ name, cells, kind }, row) => h("tr", { class: kind ?? "", "data-row": row },
    h("th", { scope: "row" }, name),
    cells.map((cell) => h("td", { class: `wb-m wb-s${cell.shade ?? 0} ${cell.kind ?? ""}`, title: cell.title }, cell.text))));
  const scroll = h("div", { class: "wb-scroll wb-matrixbox", role: "region", tabindex: "0", "aria-label": caption },
    h("table", { class: "wb-matrix", "aria-label": caption }, h("thead", {}, head), h("tbody", {}, body)));
  if (onpick) scroll.addEventListener("click", (event) => {
    const row = event.target.closest("[data-row]");
    if (row) onpick(Number(row.dataset.row));
  });
  return scroll;
}

// The legend of shades, in numbers.
function shadesLegend(name, edges) {
  const box = (i) => h("span", { class: `wb-m wb-s${i}` }, i ? `≥ ${num(edges[i - 1])}` : `below ${num(edges[0])}`);
  return h("p", { class: "wb-legend wb-shades" }, h("span", {}, name), [...edges.keys(), edges.length].map(box));
}
