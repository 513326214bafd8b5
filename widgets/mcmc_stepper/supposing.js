// What if the decision had gone otherwise, chains that branch off, and how they differ from the one they left.

class SupposingCard {
  constructor(frame, { ask, branch, can, prose }) {
    Object.assign(this, { ask, branch, prose });
    this.redraw = 0;
    this.verdict = frame.choice("Verdict", [["", "as u says"], ["accept", "force accept"], ["reject", "force reject"]], "", () => this.suppose());
    const number = (label, properties) => {
      const input = h("input", { class: "wb-input", type: "number", "aria-label": label, ...properties, onchange: () => this.suppose() });
      return [h("label", { class: "wb-choice" }, h("span", {}, label), input), input];
    };
    [this.alphaBox, this.alpha] = number("alpha", { min: "0.01", step: "any", size: "6" });
    [this.roundsBox, this.rounds] = number("proposals a block", { min: "1", step: "1", placeholder: "as before" });
    this.answer = h("div", { class: "wb-supposed", role: "status" });
    this.again = frame.button("Redraw u", () => { this.redraw += 1; this.suppose(); }, { title: "Draw u again under the next counter" });
    this.clear = frame.button("As it was", () => this.reset(), { title: "Back to the decision as it was made" });
    this.grow = frame.button("Branch from here", () => this.branch(this.given()), { title: "A new chain that goes on behind this decision", class: "wb-button wb-primary" });
    this.grow.disabled = !can;
    this.root = card("What if", h("div", { class: "wb-tools" }, this.again, this.verdict, this.alphaBox, this.clear), this.answer,
      h("div", { class: "wb-tools" }, this.grow, this.roundsBox), note(can ? prose.branch : prose.unbranchable));
  }
  select() {
    return this.verdict.querySelector("select");
  }
  given() {
    const alpha = this.alpha.value.trim(), rounds = this.rounds.value.trim();
    return { redraw: this.redraw, verdict: this.select().value || null, alpha: alpha ? Number(alpha) : null, n_mcmc: rounds ? Number(rounds) : null };
  }
  show(detail) {
    this.detail = detail;
    this.reset();
  }
  reset() {
    this.redraw = 0;
    this.select().value = "";
    this.alpha.value = this.rounds.value = "";
    this.alpha.placeholder = num(this.detail.alpha);
    this.answer.replaceChildren(note(this.prose.unchanged));
  }
  suppose() {
    this.ask(this.given());
  }
  supposed(told) {
    if (told.missing) {
      this.answer.replaceChildren(h("p", { class: "wb-warned" }, told.missing));
      return;
    }
    const turned = told.accepted !== told.was ? " It was the other way round." : " As it was.";
    const draw = told.redraw ? `, drawn again (${told.redraw})` : "";
    this.answer.replaceChildren(
      h("p", {}, h("b", {}, told.accepted ? "● accepted" : "× rejected"), `: log u ${num(told.log_u)} (u ${num(told.u)}${draw}), log A ${num(told.log_a)} at alpha ${num(told.alpha)}.${turned}`),
      ...told.warnings.map((text) => h("p", { class: "wb-warned" }, h("b", {}, "Not a sample of the target. "), text)));
  }
}

// Two chains by block and iteration: log p as two lines, every decision in a table.
function compareCard({ columns, rows, count }, told) {
  const at = (name) => columns.indexOf(name), column = (name) => rows.map((row) => row[at(name)]);
  if (!rows.length) return card("Against the chain it left", note("Neither chain has made a decision behind the branching yet."));
  const wide = 520, high = 140, lines = ["log_p_run", "log_p_branch"].map(column);
  const known = lines.flat().filter((value) => value !== null), low = Math.min(...known), span = Math.max(...known) - low || 1;
  const x = (i) => 50 + (wide - 150) * (rows.length > 1 ? i / (rows.length - 1) : 0), y = (value) => 14 + (high - 50) * (1 - (value - low) / span);
  const drawn = lines.map((values, n) => {
    const points = values.map((value, i) => (value === null ? null : [x(i), y(value)])).filter(Boolean);
    if (!points.length) return null;
    const last = points.at(-1), name = n ? "branch" : "the chain it left";
    return svg("g", { class: `wb-path${n}` }, svg("path", { d: points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("") }),
      points.length < 80 ? points.map(([a, b]) => (n ? svg("rect", { x: a - 2.5, y: b - 2.5, width: 5, height: 5 }) : svg("circle", { cx: a, cy: b, r: 2.8 }))) : [],
      svg("text", { x: last[0] + 8, y: last[1] + (n ? 12 : -2) }, name));
  }).filter(Boolean);
  const chart = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "wb-chart", role: "img", "aria-label": "log p of both chains after each decision" }, drawn,
    svg("text", { x: 44, y: 18, class: "wb-end" }, num(low + span)), svg("text", { x: 44, y: high - 33, class: "wb-end" }, num(low)), svg("text", { x: 50, y: high - 3 }, "log p of the whole text, by decision"));
  const body = rows.map((row) => ["block", "iteration", "kind_run", "kind_branch", "log_a_run", "log_a_branch", "log_p_run", "log_p_branch"].map((name) => {
    const value = row[at(name)];
    return typeof value === "string" ? value : num(value);
  }).concat(row[at("same_text")] === null ? "–" : row[at("same_text")] ? "same" : "another"));
  const cut = count > rows.length ? ` (the last ${rows.length} of ${count})` : "";
  return card("Against the chain it left", chart, table(`Decisions by block and iteration${cut}`, ["block", "iteration", "it left", "branch", "log A", "log A, branch", "log p", "log p, branch", "text"], body, { class: "wb-scroll wb-compared" }),
    note(`Random numbers of the branch: Philox with key (seed) ${told.seed}, chain 0.`));
}
