// Layers by positions: one column of cells per position, of which only those in sight are drawn.

const CELL_EDGES = { lens: CHANCE_EDGES, direction: [-0.5, -0.25, -0.1, -0.03, 0.03, 0.1, 0.25, 0.5] };

class Grid {
  constructor(frame, { labels, layers, begin, onmove, onneed }) {
    Object.assign(this, { frame, labels, layers, onmove, onneed });
    this.place = begin;
    this.layer = layers.length - 1;
    this.cells = new Map(); // place -> { values, texts, follow }
    this.asked = new Set();
    this.drawn = new Map();
    this.wide = 84;
    this.names = h("div", { class: "wb-gridnames", "aria-hidden": "true" }, h("span", {}, "layer"), [...layers].reverse().map((layer) => h("span", {}, String(layer))));
    this.body = h("div", { class: "wb-gridbody" });
    this.scroll = h("div", { class: "wb-gridscroll", tabindex: "0", role: "application", "aria-roledescription": "grid of layers and positions", "aria-label": "Layers by positions; arrow keys move" }, this.body);
    this.root = h("div", { class: "wb-grid" }, this.names, this.scroll);
    frame.listen(this.scroll, "scroll", () => this.draw(), { passive: true });
    frame.listen(this.body, "click", (event) => {
      const cell = event.target.closest("[data-place]");
      if (cell) this.move(Number(cell.dataset.place), cell.dataset.layer === undefined ? this.layer : Number(cell.dataset.layer));
    });
    frame.listen(this.scroll, "keydown", (event) => this.#key(event));
    const observer = new ResizeObserver(() => this.draw());
    observer.observe(this.scroll);
    frame.closers.push(() => observer.disconnect());
  }

  // Another mode: nothing of the old one is kept.
  use(mode, measure) {
    this.mode = mode;
    this.measure = measure;
    this.cells.clear();
    this.asked.clear();
    this.body.style.width = `${this.labels.length * this.wide}px`;
    this.body.style.height = `${24 + this.layers.length * 20}px`;
    this.#forget();
    this.draw();
  }
  add({ start, count, texts }, values, follow) {
    const deep = this.layers.length;
    for (let i = 0; i < count; i++) {
      const cut = (array) => array.subarray(i * deep, (i + 1) * deep);
      this.cells.set(start + i, { values: cut(values), texts: texts?.[i], follow: follow?.length ? cut(follow) : null });
      this.drawn.get(start + i)?.remove();
      this.drawn.delete(start + i);
    }
    this.asked.delete(start);
    this.draw();
  }
  setMeasure(measure) {
    this.measure = measure;
    this.#forget();
    this.draw();
  }
  #forget() {
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
  }

  draw() {
    if (!this.scroll.clientWidth || !this.mode) return;
    const first = Math.max(Math.floor(this.scroll.scrollLeft / this.wide) - 4, 0);
    const last = Math.min(Math.ceil((this.scroll.scrollLeft + this.scroll.clientWidth) / this.wide) + 4, this.labels.length);
    for (const [place, element] of this.drawn) {
      if (place < first || place >= last) {
        element.remove();
        this.drawn.delete(place);
      }
    }
    for (let place = first; place < last; place++) {
      if (!this.drawn.has(place)) {
        const column = this.#column(place);
        this.drawn.set(place, column);
        this.body.append(column);
      }
      if (!this.cells.has(place)) this.onneed(place);
    }
    this.#mark();
  }

  #column(place) {
    const cells = this.cells.get(place);
    const head = h("span", { class: "wb-gridhead wb-word", "data-place": place, title: `position ${this.frame.positions[place]}` }, labelNodes(this.labels[place]));
    const rows = [...this.layers.keys()].reverse().map((layer) => this.#cell(place, layer, cells));
    return h("div", { class: "wb-gridcolumn", style: `left:${place * this.wide}px;width:${this.wide - 2}px` }, head, rows);
  }
  #cell(place, layer, cells) {
    const where = { "data-place": place, "data-layer": layer };
    if (!cells) return h("span", { class: "wb-cell wb-waiting", ...where }, "…");
    const value = this.measure === "follow" ? cells.follow[layer] : cells.values[layer];
    if (this.mode === "lens") {
      const known = value >= 0;
      const shade = known ? CELL_EDGES.lens.filter((edge) => value >= edge).length : 0;
      const text = this.measure === "follow" ? [known ? num(value) : "–"] : labelNodes(cells.texts[layer]);
      return h("span", { class: `wb-cell wb-word wb-s${shade}`, title: `${plainLabel(cells.texts[layer])} ${num(cells.values[layer])}`, ...where }, text);
    }
    if (this.mode === "norm") return h("span", { class: "wb-cell", ...where }, num(value));
    const shade = CELL_EDGES.direction.filter((edge) => value >= edge).length;
    return h("span", { class: `wb-cell wb-d${shade}`, ...where }, num(value));
  }

  #mark() {
    this.body.querySelector(".wb-cursor")?.classList.remove("wb-cursor");
    this.body.querySelector(`[data-place="${this.place}"][data-layer="${this.layer}"]`)?.classList.add("wb-cursor");
  }
  told() {
    const cells = this.cells.get(this.place);
    const where = `position ${this.frame.positions[this.place]} '${plainLabel(this.labels[this.place])}', layer ${this.layers[this.layer]}`;
    if (!cells) return where;
    const value = num(cells.values[this.layer]);
    return this.mode === "lens" ? `${where}: '${plainLabel(cells.texts[this.layer])}', p ${value}` : `${where}: ${value}`;
  }
  move(place, layer) {
    this.place = Math.min(Math.max(place, 0), this.labels.length - 1);
    this.layer = Math.min(Math.max(layer, 0), this.layers.length - 1);
    const left = this.place * this.wide;
    if (left < this.scroll.scrollLeft) this.scroll.scrollLeft = left;
    else if (left + this.wide > this.scroll.scrollLeft + this.scroll.clientWidth) this.scroll.scrollLeft = left + this.wide - this.scroll.clientWidth;
    this.draw();
    const top = 24 + (this.layers.length - 1 - this.layer) * 20; // heights as in style.css
    if (top - 24 < this.root.scrollTop) this.root.scrollTop = top - 24;
    else if (top + 40 > this.root.scrollTop + this.root.clientHeight) this.root.scrollTop = top + 40 - this.root.clientHeight;
    this.onmove(this.place, this.layer);
  }
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { place, layer } = this;
    const moves = {
      ArrowLeft: [place - 1, layer], ArrowRight: [place + 1, layer], ArrowUp: [place, layer + 1], ArrowDown: [place, layer - 1],
      Home: [0, layer], End: [this.labels.length - 1, layer], PageUp: [place - 10, layer], PageDown: [place + 10, layer],
    };
    if (!moves[event.key]) return;
    this.move(...moves[event.key]);
    event.preventDefault();
  }
}

// A square map of one head's weights: queries down, keys to the right.
class AttentionMap {
  constructor(frame, onpick) {
    this.frame = frame;
    this.canvas = h("canvas", { class: "wb-map", role: "img", "aria-label": "Attention map, being computed" });
    frame.listen(this.canvas, "click", (event) => {
      if (!this.size) return;
      const box = this.canvas.getBoundingClientRect();
      onpick((event.clientY - box.top) / box.height);
    });
    frame.themed.push(() => this.draw());
  }
  set({ size, layer, head }, weights) {
    Object.assign(this, { size, weights });
    this.canvas.setAttribute("aria-label", `Attention of layer ${layer}, head ${head}: ${size} by ${size} cells, queries down, keys to the right`);
    this.draw();
  }
  draw() {
    if (!this.size) return;
    const scale = Math.max(Math.floor(420 / this.size), 1), side = this.size * scale;
    this.canvas.width = this.canvas.height = side;
    this.canvas.style.width = `${Math.min(side, 520)}px`;
    const pen = this.canvas.getContext("2d");
    pen.fillStyle = getComputedStyle(this.frame.root).getPropertyValue("--wb-link");
    for (let query = 0; query < this.size; query++) {
      for (let key = 0; key <= query; key++) {
        pen.globalAlpha = Math.sqrt(this.weights[query * this.size + key]);
        pen.fillRect(key * scale, query * scale, scale, scale);
      }
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = getComputedStyle(this.frame.root).getPropertyValue("--wb-soft");
    pen.strokeRect(0.5, 0.5, side - 1, side - 1);
  }
}
