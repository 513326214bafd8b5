// How states move: lengths, shares and cosines (V4), moves from loop to loop (V4), the plane of states (V5).

const MOTION_NAMES = {
  norm_e: "‖e‖", norm_x: "‖x‖", norm_s: "‖s‖", x_over_e: "‖x‖/‖e‖", share: "carry share", cosine_previous: "to previous", cosine_first: "to s_0", cosine_e: "to e",
};

const LOOPS = "Moves of the prompt from loop to loop";

class MotionTab {
  constructor(win) {
    this.win = win;
    this.root = h("div", { class: "wb-pane" }, note("Being fetched."));
    this.charts = [];
    this.plane = h("div");
  }
  show(motion) {
    const { win } = this, { rows } = motion, { names } = win.read;
    const breaks = win.read.read.columns.map((_, i) => i).filter((i) => i && rows.phase[i] !== rows.phase[i - 1]);
    this.charts = [];
    const chart = (title, keys, caption, options) => {
      const drawn = new LineChart({ names: names.map((name) => name.replace("loop ", "l").replace("s_", "")), breaks, high_px: 170, axis: win.read.read.loops > 1 ? "loops (l), then steps" : "step",
        pick: (column) => win.select(column),
        label: `${title} of ${names.length} states`, series: keys.map((key) => ({ name: MOTION_NAMES[key], values: rows[key] })), ...options });
      this.charts.push(drawn);
      return figure(win.frame, { title, content: drawn.root, caption,
        rows: () => [["state", ...keys.map((key) => MOTION_NAMES[key])], names.map((name, i) => [name, ...keys.map((key) => num(rows[key][i]))])] });
    };
    const parts = [
      chart("Lengths", ["norm_s", "norm_x", "norm_e"], this.win.prose.lengths),
      chart("Against what enters", ["x_over_e", "share"], this.win.prose.shares),
      chart("Cosines of s", ["cosine_previous", "cosine_first", "cosine_e"], this.win.prose.cosines, { low: -1, high: 1 }),
    ];
    this.root.replaceChildren(h("div", { class: "wb-two" }, parts, this.plane, this.loops(motion.loops)));
    this.select(win.column);
  }
  select(column) {
    for (const chart of this.charts) chart.at(column);
  }

  loops({ move, second_difference: bend, labels, first }) {
    if (!move.length) return card(LOOPS, note("The prompt was not looped (loops=0): there is nothing to move."));
    const most = Math.max(...move.flat());
    if (!most) return card(LOOPS, note("No position moves in any loop: the adapter adds nothing."));
    const edges = [...Array(8).keys()].map((i) => Number((most * 10 ** ((i - 7.5) / 3.75)).toPrecision(2)));
    const rows = labels.map((label, i) => ({ name: [h("span", { class: "wb-soft" }, `${first + i} `), h("span", { class: "wb-word" }, labelNodes(label))],
      cells: move.map((line, loop) => ({ text: num(Number(line[i].toPrecision(3))), shade: shadeOf(line[i], edges), title: `position ${first + i}, loop ${loop + 1}: ${num(line[i])}` })) }));
    const falling = move.length > 1 && move.every((line, loop) => !loop || mean(line) < mean(move[loop - 1]));
    return figure(this.win.frame, { title: LOOPS,
      content: [matrix("Moves by position and loop", "position", move.map((_, loop) => `loop ${loop + 1}`), rows), shadesLegend("‖s_k − s_{k−1}‖, in equal ratios:", edges)],
      caption: `How far a state moves in each loop. ${move.length < 2 ? "One loop makes one move." : falling ? "The mean move falls from loop to loop: the loop settles." : "The mean move does not fall from loop to loop."} ${first ? `The first ${first} positions are in the calls.` : ""}`,
      rows: () => [["position", "token", ...move.map((_, loop) => `loop ${loop + 1}`), ...bend.slice(1).map((_, loop) => `second difference, loop ${loop + 2}`)],
        labels.map((label, i) => [String(first + i), h("span", { class: "wb-word" }, labelNodes(label)), ...move.map((line) => num(line[i])), ...bend.slice(1).map((line) => num(line[i]))])] });
  }

  orbit({ runs, explained, basis }) {
    const more = this.win.studyButton("ablated", "Add ablated runs", "Run this prompt again with zeros, the frozen first state, and noise handed on");
    if (!runs.length) {
      this.plane.replaceChildren(card("States in a plane", note("A plane needs at least three states: use more pauses.")));
      return;
    }
    const shares = explained.map((share) => `${(100 * share).toFixed(0)} %`);
    this.plane.replaceChildren(figure(this.win.frame, { title: "States in a plane",
      tools: [more],
      content: planeChart({ runs,
      label: `${runs.length} runs of states in a plane`, axes: explained.map((share, i) => `component ${i + 1}, ${shares[i]} of variance`) }),
      caption: `Principal components fitted on ${basis} (this run's own), ${shares[0]} and ${shares[1]} of its variance; other runs are drawn in the same plane, so what they do across it does not show.`,
      rows: () => [["run", "step", "x", "y"], runs.flatMap((run) => run.x.map((x, step) => [run.name, String(step), num(x), num(run.y[step])]))] }));
  }
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);
