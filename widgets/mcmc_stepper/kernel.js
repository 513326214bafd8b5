// Inside the kernel: the program that decides, the program of each row, and one of those tile by tile.

class KernelCard {
  constructor(frame, { ask, prose }) {
    Object.assign(this, { ask, prose });
    this.programs = h("div");
    this.tiles = h("div", { class: "wb-tiles" });
    this.decider = h("div");
    this.root = card("Inside the kernel", this.decider, this.programs, this.tiles);
  }
  show(detail) {
    const { verdict } = detail, [iteration, chain, purpose, index] = verdict.counter;
    this.detail = detail;
    this.decider.replaceChildren(
      h("p", { class: "wb-kernelname" }, h("b", {}, "decide"), ` · program ${chain}: one a chain · float64, from the scalars that the run kept`),
      factsList([["Philox key (seed)", hex(verdict.key)], ["counter", hex(verdict.counter)], ["that is", `iteration ${iteration}, chain ${chain}, purpose ${purpose & 255} in block ${purpose >>> 8}, index ${index}`],
        ["output", hex(verdict.random)], ["u", num(verdict.u)], ["log u", num(verdict.log_u)], ["log A", num(verdict.recomputed_log_a)], ["flag", verdict.flagged ? "too close to call" : "none"]]));
    this.rows(detail.tokens);
    this.tiles.replaceChildren(note(this.prose.tiles));
  }
  // One program a row, the old suffix's first: what each gave.
  rows(tokens) {
    const { rows: sizes } = this.detail;
    const lines = ["old", "new"].flatMap((side) => tokens[side].map((row, i) => {
      const place = tokens.start + i, program = place + (side === "new" ? sizes.old : 0);
      const link = h("button", { type: "button", class: "wb-link", "data-side": side, "data-row": place, onclick: () => this.ask(side, place), title: "Trace this row tile by tile", "aria-label": `Trace program ${program}: ${side} row ${place}` }, String(program));
      return [link, side, String(place), word(row[0]), num(row[5]), num(row[6]), num(row[7])];
    }));
    this.programs.replaceChildren(h("p", { class: "wb-kernelname" }, h("b", {}, "row_stats"), ` · ${sizes.old + sizes.new} programs: one a row of logits`),
      table("What each program gave, as the run kept it", ["program", "suffix", "row", "token", "x_tok", "lse_1", "lse_tau"], lines, { class: "wb-scroll wb-programs" }));
  }
  waiting() {
    this.tiles.replaceChildren(note("The row is being computed…"));
  }
  traced(told) {
    if (told.missing) {
      this.tiles.replaceChildren(note(told.missing));
      return;
    }
    const { about } = told;
    const rows = told.rows.map(([tile, first, last, r1, rt, top, s1, st]) => [String(tile), `${first} – ${last}`, num(r1), num(rt), num(top), num(s1), num(st)]);
    const kept = ["x_tok", "lse_1", "lse_tau"].map((name, i) => [name, num(about[name]), num(about.kept[i])]);
    const cut = told.tiles > rows.length ? `The first ${rows.length} of ${told.tiles} tiles; kernel(…) gives all.` : null;
    this.tiles.replaceChildren(
      h("p", { class: "wb-kernelname" }, h("b", {}, `${about.side} row ${about.row}`), " · ", word(told.label), ` · ${about.vocab} logits in ${told.tiles} tiles of ${about.tile} · ${about.path}`),
      table("Tile by tile: the sums so far are rescaled where the maximum grows, then the tile's own are added", ["tile", "columns", "× sum_1", "× sum_tau", "max so far", "sum_1", "sum_tau"], rows, { class: "wb-scroll wb-tilestable" }),
      table("What the program gives, beside what the run kept", ["", "now", "kept"], kept, { class: "wb-scroll wb-given" }),
      ...[note(`lse_1 = max + log sum_1; lse_tau = max / tau + log sum_tau. Largest distance from what was kept: ${num(about.difference)} (a pass of another shape adds in another order).`), note(cut)].filter(Boolean));
  }
}
