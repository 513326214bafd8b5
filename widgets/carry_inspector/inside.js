// Where steps look (V6), where a band may end (V9), and what a run costs (V10).

class AttentionTab {
  constructor(win) {
    this.win = win;
    this.root = h("div", { class: "wb-pane" }, note("This trace holds no attention: run with attention=True, or give the prompt."));
    this.layer = this.head = "";
  }
  show(told) {
    const { win } = this, { frame, state } = win, [layers, heads] = state.heads, groups = told.columns.slice(0, -1), { names } = win.read;
    const ask = () => win.link.ask({ type: "attention", layer: this.layer, head: this.head });
    const layer = frame.choice("Layer", [["", "mean"], ...[...Array(layers).keys()].map((i) => [String(state.band[0] + i), String(state.band[0] + i)])], this.layer, (value) => { this.layer = value; ask(); });
    const head = frame.choice("Head", [["", "mean"], ...[...Array(heads).keys()].map((i) => [String(i), String(i)])], this.head, (value) => { this.head = value; ask(); });
    const base = win.read.read.loops - 1, length = win.state.read.columns.length;
    const rows = told.rows.slice(0, length).map((line, step) => ({ name: names[step + base] ?? `s_${step}`, cells: [...line.slice(0, -1).map((share, i) => ({
      text: share >= 0.005 ? share.toFixed(2) : "·", shade: shadeOf(share, SHARE_EDGES), title: `s_${step} to ${groups[i]}: ${num(share)}`, kind: groups[i] === "sink" ? "wb-sink" : "" })),
    { text: this.window(line.at(-1), step), kind: "wb-plain", title: line.at(-1) ? `positions before ${line.at(-1)} lie outside the window` : "all positions are seen" }] }));
    const sizes = [...new Set(told.windows.filter((size) => size !== null))];
    const sink = mean(told.rows.map((line) => line[0]));
    this.root.replaceChildren(figure(frame, { title: "Where each step looks", wide: true,
      tools: [layer, head],
      content: [matrix("Attention of each step by group of positions", "", [...groups.map((name) => (name === "sink" ? "sink (position 0)" : name)), "sees"], rows), shadesLegend("Share of attention:", SHARE_EDGES)],
      caption: `Attention is the second route between steps, beside the merge. The sink takes ${num(sink)} on average. ${sizes.length ? `Sliding windows of ${sizes.join(", ")} positions: the bar's filled part is what a step sees, its line the window's edge.` : "No layer here has a sliding window."}`,
      rows: () => [["state", ...groups, "sees from position"], told.rows.map((line, step) => [`s_${step}`, ...line.map(num)])] }));
  }
  // All positions up to a step as a bar; what the window leaves is filled, and its edge is a line.
  window(from, step) {
    const here = this.win.promptLength + step, wide = 96, edge = wide * from / here;
    return svg("svg", { viewBox: `0 0 ${wide} 10`, class: "wb-window", role: "img", "aria-label": from ? `sees positions ${from} to ${here - 1}` : "sees all positions" },
      svg("rect", { x: 0.5, y: 2.5, width: wide - 1, height: 5, class: "wb-frame" }), svg("rect", { x: edge, y: 2.5, width: wide - edge - 0.5, height: 5, class: "wb-filled" }),
      from ? svg("line", { x1: edge, x2: edge, y1: 0, y2: 10, class: "wb-edge" }) : null);
  }
}

class BandTab {
  constructor(win) {
    this.win = win;
    this.told = null;
    this.root = h("div", { class: "wb-pane" });
    this.warning = h("p", { class: "wb-verdict", role: "status" });
  }
  open() {
    const { win } = this, rows = win.state.known;
    const button = win.studyButton("layers", "Read every layer", "Reads the rows' answers from each layer of the plain model, and the answer loss's gradient by each state");
    if (!this.told) this.root.replaceChildren(card("Where a band may end", note(`${win.prose.band} On ${rows ? many(rows, "row") : "this prompt and its target"}.`), h("div", { class: "wb-tools" }, button)));
  }
  show(told) {
    this.told = told;
    const { win } = this, { frame, state } = win, { readings, gradients } = told;
    this.band = [...state.band];
    const chart = new LineChart({ names: readings.layer.map(String), low: 0, high: 1, axis: "layer", breaks: [], label: `How well the answer is read from ${readings.layer.length} layers`,
      series: [{ name: "logit lens", values: readings.lens_accuracy }, { name: "linear probe", values: readings.probe_accuracy }, { name: "commonest", values: readings.chance }] });
    this.shade = svg("rect", { class: "wb-bandshade", y: 6, height: 150 });
    this.chart = chart;
    chart.root.prepend(this.shade);
    const slider = (label, index) => {
      const input = h("input", { type: "range", min: index ? 1 : 0, max: state.n_layers - (index ? 0 : 1), value: this.band[index], "aria-label": label });
      const value = h("output", {}, String(this.band[index]));
      input.addEventListener("input", () => {
        this.band[index] = Number(input.value);
        value.textContent = input.value;
        this.move();
      });
      return h("label", { class: "wb-choice" }, h("span", {}, label), input, value);
    };
    const columns = ["layer", "n", "lens_accuracy", "lens_rank", "probe_accuracy", "chance"];
    const button = win.studyButton("layers", "Read again", "Read every layer again");
    const parts = [figure(frame, { title: "Where a band may end", tools: [slider("first layer", 0), slider("ends before", 1), button], content: [chart.root, this.warning],
      caption: `Share of ${many(readings.n[0], "row")} whose first answer token is read from the plain model's layer; shaded: the band. The probe is tried on rows it was not fitted on. Readable is not the same as used.`,
      rows: () => [["layer", "n", "logit lens", "median rank", "probe", "commonest answer"], readings.layer.map((_, i) => columns.map((key) => num(readings[key][i])))] })];
    if (gradients.step.length) {
      const some = gradients.gradient.some(Boolean);
      const drawn = new LineChart({ names: gradients.step.map(String), log: true, low: some ? Math.min(...gradients.gradient.filter((value) => value > 0)) : undefined, axis: "step", high_px: 170,
        label: "Gradient by step",
        series: [{ name: "gradient", values: gradients.gradient }] });
      parts.push(figure(frame, { title: "Gradient of the answer's loss by each state handed on", content: drawn.root, caption: some ? this.win.prose.gradients
          : "All are 0: nothing that is handed on reaches the answer.",
        rows: () => [["state", "gradient"], gradients.step.map((step, i) => [`s_${step}`, num(gradients.gradient[i])])] }));
    }
    this.root.replaceChildren(h("div", { class: "wb-two" }, parts));
    this.verdict(told.warning);
    this.shadeBand();
  }
  move() {
    this.shadeBand();
    if (this.band[0] >= this.band[1]) this.verdict("A band needs at least one layer: its end must lie behind its first layer.");
    else this.win.link.ask({ type: "band", first: this.band[0], last: this.band[1] });
  }
  shadeBand() {
    const [first, last] = this.band, left = this.chart.x(first), right = this.chart.x(Math.max(last - 1, first));
    this.shade.setAttribute("x", left - 7);
    this.shade.setAttribute("width", right - left + 14);
  }
  verdict(text) {
    this.warning.classList.toggle("wb-warned", Boolean(text));
    this.warning.textContent = text ? `⚠ ${text}` : `✓ By the logit lens the answer can be read where the band ${this.band[0]}:${this.band[1]} ends.`;
  }
}

class CostTab {
  constructor(win) {
    this.win = win;
    this.root = h("div", { class: "wb-pane" });
  }
  show({ what, value, unit }) {
    const { win } = this;
    const rows = what.map((name, i) => [name, num(value[i]), unit[i] ?? ""]);
    const at = (name) => value[what.indexOf(name)], share = at("difference of a logit, of the largest");
    const said = share === undefined ? "Not compared with the whole-sequence scan yet."
      : `${share < 1e-4 ? "✓" : "⚠"} Compared with the whole-sequence scan on this input: logits differ by ${num(at("largest difference of a logit"))} at most, ${num(share)} of the largest.`;
    this.root.replaceChildren(card("Cost of this run", table("Token-layers are blocks run, times positions run through them", ["what", "value", "unit"], rows, { class: "wb-scroll wb-costs" }),
      h("p", { class: "wb-verdict" }, said), h("div", { class: "wb-tools" }, win.studyButton("check", "Check against the slow scan", "Runs the whole-sequence reference on this input"))));
  }
}
