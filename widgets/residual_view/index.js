// ResidualView: a grid of layers and positions, and all of one position below.

const KEYS = [
  ["← →", "position before, after"], ["↑ ↓", "layer above, below"], ["Home, End", "first, last position"],
  ["Page Up, Page Down", "ten positions back, on"], ["?", "this list"], ["Esc", "close this list"],
];
const LEGENDS = {
  lens: "Each cell: the token that the layer would say next (logit lens), stronger where it is more sure: from 0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9.",
  follow: "Each cell: the probability that the layer gives to the token that really follows; stronger is more.",
  norm: "Each cell: the length (L2 norm) of the residual stream.",
  direction: "Each cell: the cosine of the residual stream with the direction; blue below zero, orange above, the number says how far.",
  attention: "Queries down, keys to the right; stronger is more weight (square root). Click a row to choose its position.",
};

class ResidualWindow {
  constructor(model, el) {
    this.model = model;
    this.frame = new Frame({ model, el, kind: "residual", title: "Residual stream", keys: KEYS });
    this.frame.buttons.append(this.frame.button("Copy as code", () => this.detail && this.frame.showCode(this.detail.code), { title: "Python that gives the same numbers" }));
    this.frame.on("change:state", () => this.build());
    this.frame.on("msg:custom", (content, buffers) => this.heard(content, buffers));
    this.build();
  }

  build() {
    const { frame } = this, state = this.model.get("state");
    if (!state.layers) return;
    frame.begin();
    this.link = new Link(frame);
    this.state = state;
    if (!state.labels.length) {
      frame.body.replaceChildren(note("Nothing was computed. Give a prompt of at least one token, or a trace that captured residuals."));
      return;
    }
    frame.positions = state.positions;
    this.head = { layer: 0, head: 0 };
    this.grid = new Grid(frame, {
      labels: state.labels, layers: state.layers, begin: state.begin,
      onmove: (place, layer) => this.moved(place, layer), onneed: (place) => this.need(place),
    });
    this.map = new AttentionMap(frame, (share) => this.grid.move(Math.floor(share * state.labels.length), this.grid.layer));
    this.measure = frame.choice("Cells show", [["top", "likeliest token"], ["follow", "p of the token that follows"]], "top", (value) => {
      this.grid.setMeasure(value);
      this.legend.textContent = LEGENDS[value === "follow" ? "follow" : "lens"];
    });
    this.heads = h("span", { class: "wb-tools" });
    this.tools = h("div", { class: "wb-tools" }, frame.choice("View", state.modes, state.mode, (mode) => this.use(mode)), this.measure, this.heads);
    this.legend = h("p", { class: "wb-note" });
    this.attended = h("div");
    this.square = h("div", { class: "wb-square", hidden: true }, this.map.canvas, this.attended);
    this.details = h("div");
    frame.body.replaceChildren(h("p", { class: "wb-sidetitle" }, state.title), this.tools, this.grid.root, this.square, this.legend, this.details);
    this.use(state.mode);
    if (state.columns) this.grid.add(state.columns, floats(state.columns.values), state.columns.follow ? floats(state.columns.follow) : null);
    this.show(state.detail);
    requestAnimationFrame(() => this.grid.move(state.begin, this.grid.layer));
  }

  use(mode) {
    this.mode = mode;
    const kind = mode.startsWith("direction ") ? "direction" : mode;
    this.measure.hidden = mode !== "lens";
    this.legend.textContent = LEGENDS[kind];
    this.grid.root.hidden = mode === "attention";
    this.square.hidden = this.heads.hidden = mode !== "attention";
    if (mode === "attention") this.askAttention();
    else this.grid.use(kind, this.measure.querySelector("select").value === "follow" && mode === "lens" ? "follow" : "top");
  }

  need(place) {
    const start = Math.floor(place / this.state.page) * this.state.page;
    if (this.mode === "attention" || this.grid.asked.has(start)) return;
    this.grid.asked.add(start);
    this.model.send({ type: "columns", mode: this.mode, start });
  }
  askAttention() {
    this.link.ask({ type: "attention", ...this.head, place: this.grid.place });
  }
  moved(place) {
    this.frame.say(this.grid.told());
    this.markLayer();
    if (this.mode === "attention") this.askAttention();
    if (this.detail?.place !== place) this.link.ask({ type: "detail", place });
  }

  heard(content, buffers) {
    if (content.type === "columns" && content.mode === this.mode) {
      this.grid.add(content, floats(buffers[0]), buffers[1] ? floats(buffers[1]) : null);
      if (content.start <= this.grid.place && this.grid.place < content.start + content.count) this.frame.say(this.grid.told());
    } else if (content.type === "detail") {
      if (!this.link.heard(content.asked ?? undefined) && content.place === this.grid.place) this.show(content);
    } else if (content.type === "attention") {
      this.showAttention(content, buffers);
      if (!this.link.heard(content.asked ?? undefined) && this.detail?.place !== this.grid.place) this.link.ask({ type: "detail", place: this.grid.place });
    } else if (content.type === "failed") {
      this.link.heard();
    }
  }

  show(detail) {
    this.detail = detail;
    const label = this.state.labels[detail.place];
    this.layers = layersCard(detail.layers, this.grid.layer, (layer) => this.grid.move(this.grid.place, layer), "the token that follows");
    this.details.replaceChildren(h("div", { class: "wb-chosen" }, h("span", { class: "wb-word wb-large" }, labelNodes(label)), factsList(detail.facts)), this.layers);
    this.markLayer();
  }
  markLayer() {
    for (const row of this.layers?.querySelectorAll("tbody tr") ?? []) {
      const here = Number(row.dataset.layer) === this.state.layers[this.grid.layer];
      row.className = here ? "wb-here" : "";
      if (here && row.isConnected) showRow(row);
    }
  }
  showAttention(told, [square, row]) {
    this.map.set(told, floats(square));
    const weights = floats(row);
    const best = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 12);
    const choose = (name, count, value) => this.frame.choice(name, [...Array(count).keys()].map(String), String(value), (chosen) => {
      this.head = { ...this.head, [name.toLowerCase()]: Number(chosen) };
      this.askAttention();
    });
    if (!this.heads.childElementCount || this.heads.dataset.heads !== String(told.heads)) {
      this.heads.dataset.heads = told.heads;
      this.heads.replaceChildren(choose("Layer", this.state.attention, told.layer), choose("Head", told.heads, told.head));
    }
    const rows = best.map((place) => [h("span", { class: "wb-word" }, labelNodes(this.state.labels[place])), String(this.state.positions[place]), barred(weights[place])]);
    this.attended.replaceChildren(...[table(`Position ${this.state.positions[told.place]} looks at (layer ${told.layer}, head ${told.head})`, ["token", "position", "weight"], rows, { class: "wb-scroll wb-attended" }), note(told.note)].filter(Boolean));
  }
}

function render({ model, el }) {
  const view = new ResidualWindow(model, el);
  return () => view.frame.close();
}

export default { render };
