// What is needed: effects of edited states (V7), controls (V8).

const SAME_WEIGHTS = "The same weights with, without and against the carry";

class NeedTab {
  constructor(win) {
    this.win = win;
    this.measure = "kl";
    this.kind = "zero";
    this.effects = null;
    this.effectbox = h("div");
    this.controlbox = h("div");
    this.results = h("div");
    this.hops = null;
    this.form = h("div", { class: "wb-tools" });
    this.root = h("div", { class: "wb-pane" }, h("p", { class: "wb-note" }, this.win.prose.needed),
      card("Effects of changing one state", this.form, this.effectbox), this.results, this.controlbox);
  }
  open() {
    const { win } = this, { state, frame } = win;
    const pick = frame.choice("Hand on", state.interventions, this.kind, (value) => { this.kind = value; this.open(); });
    const text = (label, value, size) => h("input", { class: "wb-input", size, value, "aria-label": label });
    this.fields = { gain: text("Gain", "-1", 4), first: text("First token", "", 6), second: text("Second token", "", 6) };
    const labelled = (label, input) => h("label", { class: "wb-choice" }, h("span", {}, label), input);
    const more = { gain: [labelled("gain", this.fields.gain)], swap: [labelled("of", this.fields.first), labelled("and", this.fields.second)] }[this.kind] ?? [];
    if (this.kind === "patch" && this.donors?.length) {
      const choice = frame.choice("from", this.donors, this.donors[0][0], () => {});
      this.fields.donor = choice.querySelector("select");
      more.push(choice);
    }
    const given = () => ({ kind: this.kind, ...Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value])) });
    const rows = state.rows ? many(state.rows, "row") : "this prompt alone";
    this.form.replaceChildren(pick, ...more, win.studyButton("effects", "Measure effects", `One pass per pause and one more, over ${rows}`, given), h("span", { class: "wb-soft" }, `on ${rows}`));
    if (!this.effects) this.effectbox.replaceChildren(note(this.win.prose.unmeasured));
    this.controls(this.told);
    this.trained();
  }

  // V7
  showEffects(told) {
    this.effects = told;
    const count = Math.max(...told.edited) + 1, reads = Math.max(...told.read) + 1, chance = this.measure === "flip_rate";
    const at = (edited, read) => told.edited.findIndex((value, i) => value === edited && told.read[i] === read);
    const rows = [...Array(count).keys()].map((edited) => ({ name: `s_${edited}`, cells: [...Array(reads).keys()].map((read) => {
      const i = at(edited, read), value = told[this.measure][i];
      const title = `s_${edited} changed, read at s_${read}: KL ${num(told.kl[i])} ± ${num(told.kl_error[i])} nats, flips ${num(told.flip_rate[i])} (${num(told.low[i])} to ${num(told.high[i])}), n ${told.n[i]}`;
      const before = read <= edited;
      return { text: before && value === 0 ? "0" : chance ? value.toFixed(2) : num(Number(value.toPrecision(3))), shade: before ? 0 : shadeOf(value, chance ? SHARE_EDGES : KL_EDGES), title, kind: before ? "wb-before" : "" };
    }) }));
    const measure = this.win.frame.choice("Show", [["kl", "KL divergence, nats"], ["flip_rate", "rate of changed answers"]], this.measure, (value) => { this.measure = value; this.showEffects(told); });
    const details = { gain: ` (gain ${num(told.gain)})`, swap: ` (${told.swap.map(plainLabel).join(" and ")})`, patch: ` (${told.donor})` }[told.kind] ?? "";
    const columns = ["edited", "read", "n", "kl", "kl_error", "flip_rate", "low", "high"];
    const early = told.kl.every((value, i) => told.read[i] > told.edited[i] || value === 0);
    const box = figure(this.win.frame, { title: `Handed on: ${told.what}${details}`,
      tools: [measure],
      content: [matrix("Effects: state changed by state read", "changed", [...Array(reads).keys()].map((read) => `at s_${read}`), rows), shadesLegend(chance ? "Rate:" : "KL in nats:", chance ? SHARE_EDGES : KL_EDGES)],
      caption: `Rows: the state that was changed on its way to the next step. Columns: where the answer is read. n = ${told.n[0]} ${told.n[0] === 1 ? "prompt, too few to generalise from" : "prompts"}; intervals are in the table. ${early ? "Up to the changed state all effects are exactly 0: an edit does not act backwards." : "Effects before the changed state are not 0: something is wrong."}${told.kl.some(Boolean) ? "" : " No later answer changes either: nothing that is handed on reaches it."}`,
      rows: () => [["changed", "read", "n", "KL", "± s.e.", "flip rate", "low", "high"], told.edited.map((_, i) => columns.map((name) => num(told[name][i])))] });
    this.effectbox.replaceChildren(box);
  }

  // V8, measured here
  controls(told) {
    this.told = told;
    const { win } = this, rows = win.state.rows;
    const button = win.studyButton("controls", "Measure controls", rows ? `Thirteen ways of running the weights over ${many(rows, "row")}` : "On this prompt and its target alone");
    if (!told) {
      this.controlbox.replaceChildren(card(SAME_WEIGHTS, note(`Measures ${rows ? many(rows, "row") : "this prompt and its target (give rows=[(prompt, answer), …] for more)"} in every mode, and with the handed-on states zeroed, frozen, averaged, shuffled and replaced by noise.`), h("div", { class: "wb-tools" }, button)));
      return;
    }
    const order = ["name", "mode", "pauses", "loops", "ablation", "n", "accuracy", "low", "high", "generated", "nll", "positions", "token_layers", "depth"];
    const shown = ["accuracy", "low", "high", "generated", "nll", "positions", "token_layers", "depth"];
    const lines = told.name.map((name, i) => [name, ...shown.map((key) => (key === "accuracy" ? barred(told[key][i]) : num(told[key][i])))]);
    this.controlbox.replaceChildren(figure(win.frame, { title: SAME_WEIGHTS, tools: [button],
      content: table(`${many(told.n[0], "row")}; Wilson 95 % intervals`, ["way of running", "right", "low", "high", "generated right", "NLL, nats", "positions", "token-layers", "depth"], lines, { class: "wb-scroll wb-controlstable" }),
      caption: this.win.prose.controls,
      rows: () => [order, told.name.map((_, i) => order.map((key) => (typeof told[key][i] === "number" ? num(told[key][i]) : told[key][i] ?? "–")))] }));
  }

  // V8, from results.json
  trained() {
    const { win } = this, told = win.state.results;
    if (!told) {
      this.results.replaceChildren(card("Trained controls", note("CarryInspector(…, results=folder) shows what workbench carry controls measured.")));
      return;
    }
    const { systems, changes } = told, hops = [...new Set(systems.hops)], at = this.hops ?? Math.min(5, hops.length);
    const line = (data, key, name, kind) => {
      const own = data[key].map((value, i) => (value === name ? i : -1)).filter((i) => i >= 0);
      const cells = own.map((i) => ({ text: data.accuracy[i].toFixed(2), shade: shadeOf(data.accuracy[i], SHARE_EDGES),
        title: `${name}, ${data.hops[i]} hops: ${num(data.accuracy[i])} (${num(data.low[i])} to ${num(data.high[i])}), n ${data.n[i]}, ${data.seeds[i]} seeds from ${num(data.lowest_seed[i])} to ${num(data.highest_seed[i])}` }));
      const i = own[at - 1];
      const costs = key === "system" ? ["positions", "band_passes", "token_layers", "depth", "flops"].map((what) => ({ text: what === "flops" ? num(Number((data.flops[i] / 1e6).toPrecision(3))) : num(data[what][i]), kind: "wb-plain" })) : [1, 2, 3, 4, 5].map(() => ({ text: "", kind: "wb-plain" }));
      return { name, cells: [...cells, ...costs], kind };
    };
    const rows = [...new Set(systems.system)].map((name) => line(systems, "system", name, name === "carry" ? "wb-own" : "")).concat([...new Set(changes.change ?? [])].map((name, i) => line(changes, "change", name, i ? "" : "wb-first")));
    const select = win.frame.choice("Cost at hops", hops.map(String), String(at), (value) => { this.hops = Number(value); this.trained(); });
    const fewest = Math.min(...systems.seeds), most = Math.max(...systems.seeds);
    const names = ["seeds", "hops", "n", "accuracy", "low", "high", "lowest_seed", "highest_seed"];
    const all = (data, key) => (data[key] ?? []).map((name, i) => [name, ...names.map((each) => num(data[each][i]))]);
    this.results.replaceChildren(figure(win.frame, { title: "Trained controls: share of right answers by hops, and cost", tools: [select], wide: true,
      content: [matrix("Trained controls by hops", "hops", [...hops.map((hop) => String(hop)), "positions", "band passes", "token-layers", "depth", "MFLOP"], rows), shadesLegend("Share right:", SHARE_EDGES)],
      caption: `From results.json, ${fewest === most ? many(most, "seed") : `${fewest} to ${many(most, "seed")} by system`}; guessing is right in ${num(told.chance)}. ${win.prose.trained}`,
      rows: () => [["system or change", ...names], [...all(systems, "system"), ...all(changes, "change")]] }));
  }
}
