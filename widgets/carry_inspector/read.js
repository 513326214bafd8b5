// What can be read from the states: the chain strip (V1), trajectories of tokens (V2), steps by concepts (V3).

const stateName = (column) => (column.phase === "prompt" && !column.isState ? `loop ${column.loop}` : `s_${column.step}`);

class ReadTab {
  constructor(win) {
    this.win = win;
    this.k = 3;
    this.measure = "p";
    this.hidden = false;
    this.lens = 0;
    this.root = h("div", { class: "wb-pane" });
  }
  show(read) {
    this.read = read;
    this.names = read.columns.map((column, i) => stateName({ ...column, isState: i === read.loops - 1 }));
    this.lens = Math.min(this.lens, read.lenses.length - 1);
    this.draw();
  }
  draw() {
    const { frame } = this.win, { read } = this;
    const focused = this.root.contains(document.activeElement) && document.activeElement.classList.contains("wb-chainbox");
    const choices = read.lenses.map((lens, i) => [String(i), lens.name]);
    const lens = frame.choice("Lens of the charts", choices, String(this.lens), (value) => { this.lens = Number(value); this.draw(); });
    const fit = read.lenses.length > 1 ? null : this.win.studyButton("lens", "Fit Jacobian lens", "Fit a Jacobian lens, with its shuffled baseline, on the rows' prompts");
    const told = h("p", { class: "wb-note" }, this.win.prose.decodable,
      h("b", {}, "What is needed"), ".", read.cut ? ` The first ${read.columns.length} columns are shown, ${read.cut} more are in the calls.` : "");
    this.chosen = h("div", { class: "wb-here wb-chosenstate" });
    this.root.replaceChildren(told, h("div", { class: "wb-tools" }, lens, fit), this.chain(), this.chosen, h("div", { class: "wb-two" }, this.concepts(), this.trajectories()));
    this.select(this.win.column);
    if (focused) this.chainbox.focus();
  }

  // V1
  chain() {
    const { read, win } = this, { frame } = win;
    const groups = [];
    read.columns.forEach((column, i) => {
      const name = i < read.loops - 1 ? "prompt, loops" : column.phase === "prompt" ? "prompt" : column.phase === "pause" ? "pauses" : "answer";
      if (groups.at(-1)?.name === name) groups.at(-1).count += 1;
      else groups.push({ name, count: 1 });
    });
    const at = (i) => ({ "data-column": i });
    const heads = read.columns.map((column, i) => h("th", { scope: "col", ...at(i) }, h("span", { class: "wb-statename" }, this.names[i]), h("span", { class: "wb-word" }, labelNodes(column.label))));
    const rows = [];
    const section = (name, lists, kind) => {
      for (let rank = 0; rank < Math.min(this.k, read.k); rank++) {
        rows.push(h("tr", { class: `${kind} ${rank ? "" : "wb-first"}`, "data-source": name, "data-rank": rank }, h("th", { scope: "row" }, rank ? h("span", { class: "wb-soft" }, `${rank + 1}`) : `${name} 1`),
          lists.map((list, i) => h("td", at(i), list[rank] ? lensCell([read.labels[list[rank][0]], list[rank][1]]) : "–"))));
      }
    };
    read.lenses.forEach((lens) => section(lens.name, this.hidden ? lens.hidden : lens.cells, "wb-source"));
    section("answer now", read.now, "wb-now");
    const target = (name, list, kind) => h("tr", { class: `wb-target ${kind}` }, h("th", { scope: "row" }, name), list.map((value, i) => h("td", at(i), num(value))));
    read.target.lenses.forEach((line, i) => {
      const name = ["target ", h("span", { class: "wb-word" }, labelNodes(read.target.label)), `, ${read.lenses[i].name}: `];
      rows.push(target([...name, "rank from 0"], line.rank, i ? "" : "wb-first"), target([h("span", { class: "wb-soft" }, "its probability")], line.p, ""));
    });
    this.table = h("table", { class: "wb-chain", "aria-label": "Chain of states" }, h("thead", {},
      h("tr", { class: "wb-phases" }, h("td", {}), groups.map((group) => h("th", { scope: "colgroup", colspan: group.count }, group.name))), h("tr", {}, h("td", {}), heads)), h("tbody", {}, rows));
    this.chainbox = h("div", { class: "wb-scroll wb-chainbox", role: "application", "aria-roledescription": "chain of states", tabindex: "0", "aria-label": "Chain of states; left and right choose a state" }, this.table);
    this.chainbox.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-column]");
      if (cell) win.select(Number(cell.dataset.column));
    });
    this.chainbox.addEventListener("keydown", (event) => this.key(event));
    const count = frame.choice("Tokens", ["1", "3", "5"], String(this.k), (value) => { this.k = Number(value); this.draw(); });
    const mouth = h("label", { class: "wb-choice" }, h("input", { type: "checkbox", checked: this.hidden, onchange: (event) => { this.hidden = event.target.checked; this.draw(); } }), h("span", {}, "leave out the token about to be said"));
    return figure(frame, { title: "Chain of states", wide: true, tools: [count, mouth], content: this.chainbox, rows: () => this.chainRows(),
      caption: this.win.prose.chain
        + (read.samples ? ` Each Jacobian is the mean over ${many(read.samples, "state")}; the shuffled one is the baseline.` : "") });
  }
  chainRows() {
    const { read } = this, rows = [];
    const word = ([index, p]) => [h("span", { class: "wb-word" }, labelNodes(read.labels[index])), ` ${num(p)}`];
    read.columns.forEach((column, i) => {
      const sources = [...read.lenses.map((lens) => [lens.name, (this.hidden ? lens.hidden : lens.cells)[i]]), ["answer now", read.now[i]]];
      for (const [name, list] of sources) if (list.length) rows.push([this.names[i], column.phase, name, ...Array.from({ length: read.k }, (_, rank) => (list[rank] ? word(list[rank]) : "–"))]);
    });
    return [["state", "phase", "source", ...Array.from({ length: read.k }, (_, rank) => String(rank + 1))], rows];
  }
  key(event) {
    const { column } = this.win, last = this.read.columns.length - 1;
    const to = { ArrowLeft: column - 1, ArrowRight: column + 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    this.win.select(Math.min(Math.max(to, 0), last));
    event.preventDefault();
  }
  select(column) {
    const { read } = this;
    for (const old of this.root.querySelectorAll(".wb-on")) old.classList.remove("wb-on");
    for (const cell of this.table.querySelectorAll(`[data-column="${column}"]`)) cell.classList.add("wb-on");
    this.conceptTable?.querySelectorAll("tbody tr")[column - read.loops + 1]?.classList.add("wb-on");
    this.chart?.at(column);
    const cell = this.table.querySelector(`[data-column="${column}"]`), box = this.chainbox;
    const left = cell.offsetLeft - this.table.querySelector("tbody th").offsetWidth;
    if (left < box.scrollLeft) box.scrollLeft = left;
    else if (cell.offsetLeft + cell.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = cell.offsetLeft + cell.offsetWidth - box.clientWidth;
    this.chosen.replaceChildren(...this.factsOf(column));
  }
  told(column) {
    const { read } = this, best = read.lenses[0].cells[column][0], said = read.now[column][0];
    const word = ([index, p]) => `'${plainLabel(read.labels[index])}', p ${num(p)}`;
    return `${this.names[column]}, ${read.columns[column].phase}: ${read.lenses[0].name} ${word(best)}${said ? `; answer now ${word(said)}` : ""}`;
  }
  factsOf(column) {
    const rows = this.win.motion?.rows, at = this.read.columns[column];
    const facts = [["state", this.names[column]], ["phase", at.phase], ["stands at", h("span", { class: "wb-word" }, labelNodes(at.label))]];
    if (rows) facts.push(["position", rows.position[column]], ["‖s‖", rows.norm_s[column]], ["‖x‖ / ‖e‖", rows.x_over_e[column]], ["carry share", rows.share[column]],
      ["cos to previous", rows.cosine_previous[column]], ["cos to s_0", rows.cosine_first[column]], ["cos to e", rows.cosine_e[column]]);
    return [factsList(facts.map(([name, value]) => [name, value ?? "–"]))];
  }

  // V3
  concepts() {
    const { read } = this, { given, labels, lenses, left } = read.concepts, values = lenses[this.lens];
    const word = (label) => h("span", { class: "wb-word" }, labelNodes(label));
    const rows = values.map((line, step) => {
      const most = Math.max(...line);
      return { name: `s_${step}`, cells: line.map((p, concept) => ({
        text: p >= 0.005 ? p.toFixed(2) : "·", shade: shadeOf(p, SHARE_EDGES), title: `s_${step}, '${plainLabel(labels[concept])}': ${num(p)}`,
        kind: `${given && concept === step ? "wb-expected" : ""} ${p === most && p >= 0.005 ? "wb-most" : ""}`,
      })) };
    });
    const content = matrix("Steps by concepts", "", labels.map(word), rows, { onpick: (row) => this.win.select(row + read.loops - 1) });
    this.conceptTable = content.querySelector("table");
    const diagonal = values.slice(0, labels.length).map((line, step) => line[step]);
    const mean = diagonal.reduce((sum, p) => sum + p, 0) / Math.max(diagonal.length, 1);
    const hits = values.slice(0, labels.length).filter((line, step) => line[step] === Math.max(...line)).length;
    const caption = given
      ? `Framed: the concept that the step is expected to hold. It is the likeliest of these at ${hits} of ${diagonal.length} steps, with a mean probability of ${num(mean)}.`
      : this.win.prose.picked;
    return figure(this.win.frame, { title: `Steps by concepts, ${read.lenses[this.lens].name}`, content: [content, shadesLegend("Probability:", SHARE_EDGES)],
      caption: caption + (left ? ` ${left} more concepts are in the calls.` : ""),
      rows: () => [["state", ...labels.map((label) => plainLabel(label))], values.map((line, step) => [`s_${step}`, ...line.map(num)])] });
  }

  // V2
  trajectories() {
    const { read, win } = this, { frame } = win, found = read.series[this.lens], base = read.loops - 1;
    const chance = this.measure === "p";
    const series = found.map((line) => ({ name: plainLabel(line.label), values: chance ? line.p : line.rank.map((rank) => rank + 1), rings: line.first === null ? [] : [line.first + base] }));
    const breaks = read.columns.map((column, i) => i).filter((i) => i && (i === base || read.columns[i].phase !== read.columns[i - 1].phase));
    const flips = found[0].flips;
    this.chart = new LineChart({ names: this.names.map((name) => name.replace("loop ", "l").replace("s_", "")), series, breaks,
      pick: (column) => win.select(column),
      label: `${chance ? "Probability" : "Rank"} of ${found.length} tokens over ${read.columns.length} states`,
      ...(chance ? { low: 0, high: 1 } : { low: 1, log: true, upsideDown: true }), axis: base ? "loops (l), then steps" : "step" });
    const measure = frame.choice("Show", [["p", "probability"], ["rank", "rank + 1, logarithmic"]], this.measure, (value) => { this.measure = value; this.draw(); });
    const input = h("input", { class: "wb-input", size: 8, "aria-label": "Follow a token", placeholder: "token" });
    const add = () => input.value && win.model.send({ type: "watch", text: input.value });
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") add(); });
    const chips = found.map((line) => h("span", { class: "wb-chip" }, h("span", { class: "wb-word" }, labelNodes(line.label)), found.length > 1
      ? frame.button("×", () => win.model.send({ type: "watch", token: line.token }), { title: `Stop following ${plainLabel(line.label)}`, "aria-label": `Stop following ${plainLabel(line.label)}` }) : null));
    const first = found.filter((line) => line.first !== null).map((line) => `'${plainLabel(line.label)}' at s_${line.first}`);
    return figure(frame, { title: `Tokens over loops and steps, ${read.lenses[this.lens].name}`, content: [this.chart.root, h("p", { class: "wb-chips" }, chips)],
      tools: [measure, h("label", { class: "wb-choice" }, h("span", {}, "Follow"), input), frame.button("Add", add, { title: "Follow this token too" })],
      caption: `Ringed where a token first is the likeliest: ${first.join(", ") || "none of these ever is"}. The likeliest token changes at ${flips.length ? flips.map((step) => `s_${step}`).join(", ") : "no step"}.`,
      rows: () => [["token", "measure", ...this.names], found.flatMap((line) => ["p", "rank"].map((name) => [h("span", { class: "wb-word" }, labelNodes(line.label)), name, ...line[name].map(num)]))] });
  }
}
