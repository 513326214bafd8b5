// A matrix of tokens by layers on one canvas: long runs share columns. Drawn again when size or theme change.

const HEAT_COLOURS = {
  light: ["#0b559f", "#3a8ac2", "#7db8da", "#c2dbec", "#efedea", "#fbd5ae", "#f0a35e", "#cf6d22", "#8f3f06"],
  dark: ["#8ccbff", "#4f9bd8", "#2f6da3", "#274764", "#33353a", "#5c4023", "#99602a", "#d98a3d", "#ffc583"],
};

class NormHeat {
  constructor(frame, { onpick }) {
    this.frame = frame;
    this.onpick = onpick;
    this.cursor = 0;
    this.canvas = h("canvas", { class: "wb-heat", role: "img", "aria-label": "Residual norms, being fetched" });
    this.legend = h("p", { class: "wb-legend" });
    this.near = h("div", { hidden: true });
    this.toggle = frame.button("Show as table", () => this.#table(), { "aria-expanded": "false" });
    this.root = card("Residual norm of every token and layer", this.canvas, this.legend, this.toggle, this.near);
    frame.listen(this.canvas, "click", (event) => this.#picked(event));
    frame.themed.push(() => this.draw());
    const observer = new ResizeObserver(() => this.draw());
    observer.observe(this.canvas);
    frame.closers.push(() => observer.disconnect());
  }

  // A part of the norms; drawn when all are there.
  add({ start, count, total, layers, medians }, values) {
    if (start === 0) {
      this.layers = layers;
      this.medians = medians;
      this.total = total;
      this.values = new Float32Array(total * layers.length);
      this.have = 0;
    }
    this.values.set(values, start * layers.length);
    this.have += count;
    if (this.have === this.total) this.#ready();
  }

  #ready() {
    const deep = this.layers.length;
    const sizes = [];
    this.ratios = this.values.map((value, i) => Math.log2(value / Math.max(this.medians[i % deep] ?? 1, 1e-30)));
    for (const ratio of this.ratios) if (Number.isFinite(ratio)) sizes.push(Math.abs(ratio));
    sizes.sort((a, b) => a - b);
    const typical = sizes[Math.floor(sizes.length * 0.98)] ?? 0;
    this.limit = [0.1, 0.25, 0.5, 1, 2, 4, 8].find((nice) => nice >= typical) ?? 16;
    const text = `Residual norms of ${this.total} tokens over ${deep} layers, against each layer's median`;
    this.canvas.setAttribute("aria-label", text);
    this.legend.replaceChildren(`Against the median of the layer: blue below (down to ×${num(2 ** -this.limit)}), orange above (up to ×${num(2 ** this.limit)}). Last layer on top, tokens as in the strip.`);
    this.draw();
  }

  draw() {
    if (!this.ratios) return;
    const wide = Math.floor(this.canvas.clientWidth), deep = this.layers.length;
    if (!wide) return;
    const columns = Math.min(wide, this.total), scale = window.devicePixelRatio || 1;
    const high = Math.min(Math.max(deep * 4, 48), 128);
    this.canvas.style.height = `${high}px`;
    this.canvas.width = wide * scale;
    this.canvas.height = high * scale;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const colours = HEAT_COLOURS[this.frame.root.dataset.theme];
    for (let column = 0; column < columns; column++) {
      const from = Math.floor(column * this.total / columns), to = Math.max(Math.floor((column + 1) * this.total / columns), from + 1);
      const x = Math.floor(column * wide / columns), x2 = Math.ceil((column + 1) * wide / columns);
      for (let layer = 0; layer < deep; layer++) {
        let sum = 0, count = 0;
        for (let i = from; i < to; i++) {
          const ratio = this.ratios[i * deep + layer];
          if (Number.isFinite(ratio)) (sum += ratio, count++);
        }
        if (!count) continue;
        const share = Math.min(Math.max((sum / count / this.limit + 1) / 2, 0), 0.999);
        pen.fillStyle = colours[Math.floor(share * 9)];
        const y = high * (deep - 1 - layer) / deep;
        pen.fillRect(x, y, x2 - x, Math.ceil(high / deep));
      }
    }
    pen.strokeStyle = getComputedStyle(this.frame.root).color;
    pen.strokeRect(Math.min(Math.floor((this.cursor + 0.5) * wide / this.total), wide - 2) - 1, 0.5, 3, high - 1);
  }

  move(cursor) {
    this.cursor = cursor;
    this.draw();
    if (!this.near.hidden) this.#fill();
  }

  #picked(event) {
    const box = this.canvas.getBoundingClientRect();
    const layer = this.layers.length - 1 - Math.floor((event.clientY - box.top) / box.height * this.layers.length);
    this.onpick(Math.floor((event.clientX - box.left) / box.width * this.total), Math.min(Math.max(layer, 0), this.layers.length - 1));
  }

  #table() {
    this.near.hidden = !this.near.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.near.hidden));
    if (!this.near.hidden) this.#fill();
  }
  #fill() {
    if (!this.values) return;
    const deep = this.layers.length, from = Math.max(this.cursor - 4, 0), to = Math.min(from + 9, this.total);
    const items = [...Array(to - from).keys()].map((i) => from + i);
    const rows = [...this.layers.keys()].reverse().map((layer) => [String(this.layers[layer]), ...items.map((i) => num(this.values[i * deep + layer]))]);
    this.near.replaceChildren(table("Norms around the chosen token", ["layer", ...items.map((i) => this.frame.itemName?.(i) ?? String(i))], rows));
  }
}
