// LiveRun: a form, the run's controls, tokens as they commit, a person's own actions, branches.

const KEYS = [
  ["Ctrl Enter", "run, from the prompt"], ["← →, Home, End", "choose a token"], ["s", "step: on to the next event"], ["Space", "hold, or go on"],
  ["x", "stop"], ["b", "branch after the chosen token"], ["?", "this list"], ["Esc", "close this list"],
];

class LiveWindow {
  constructor(model, el) {
    this.model = model;
    const frame = this.frame = new Frame({ model, el, kind: "live", title: "Live run", keys: KEYS });
    frame.buttons.append(frame.button("Copy as code", () => frame.showCode(this.code()), { title: "Python that does the same" }));
    frame.on("msg:custom", (content, buffers) => this.heard(content, buffers));
    frame.listen(frame.root, "keydown", (event) => this.key(event));
    frame.closers.push(() => clearTimeout(this.typing));
    this.link = new Link(frame);
    this.now = { state: "idle", stepping: false, held: null, runs: [], shown: 0 };
    this.build(model.get("state"));
    model.send({ type: "hello" });
  }

  build(state) {
    const { frame } = this;
    this.state = state;
    this.prompt = field("Prompt", { rows: 2, value: state.prompt, class: "wb-input wb-prompttext", spellcheck: "false" }, "textarea");
    this.kind = frame.choice("As", state.chat ? [["chat", "chat message"], ["raw", "raw text"]] : [["raw", "raw text"]], state.chat ? "chat" : "raw", () => this.estimate());
    const number = (label, value, more) => field(label, { type: "number", value, ...more });
    this.numbers = {
      max_new_tokens: number("New tokens", 64, { min: 1, max: 8192 }), temperature: number("Temperature", 1, { min: 0, step: 0.1 }),
      top_k: number("Top k", 0, { min: 0 }), top_p: number("Top p", 1, { min: 0.01, max: 1, step: 0.01 }), seed: number("Seed", 0, {}),
    };
    this.stepping = field("Hold after each event", { type: "checkbox", class: "" });
    this.picker = new ModPicker(frame, state.mods, state.own);
    const press = (text, what, title, kind) => frame.button(text, () => this.act({ what }), { title, class: `wb-button ${kind ?? ""}` });
    this.buttons = {
      run: frame.button("Run", () => this.run(), { title: "Run (Ctrl Enter in the prompt)", class: "wb-button wb-primary" }),
      pause: press("Hold", "pause", "Hold after the next event (Space)"), step: press("Step", "step", "On to the next event (s)"),
      resume: press("Go on", "resume", "Go on without holding (Space)"), stop: press("Stop", "stop", "Stop within one token (x)"),
    };
    this.cost = h("span", { class: "wb-count" });
    this.progress = h("span", { class: "wb-count", role: "status" });
    this.items = new Items(state.columns, state.origins);
    this.strip = new Strip(frame, this.items, {
      label: "Tokens of the run", onselect: (item) => this.selected(item), onmore: (start) => this.more(start), least: 4,
    });
    this.heldbox = h("div");
    this.hand = this.#hand();
    this.runs = h("div", { class: "wb-tools" });
    this.otherbox = h("div");
    this.details = h("div", { class: "wb-details" });
    frame.listen(this.prompt.input, "input", () => this.estimate());
    frame.listen(this.prompt.input, "keydown", (event) => {
      if (event.key === "Enter" && event.ctrlKey) this.run();
    });
    const numbers = Object.values(this.numbers).map((each) => each.box);
    frame.listen(this.numbers.max_new_tokens.input, "input", () => this.estimate());
    frame.body.replaceChildren(this.prompt.box, h("div", { class: "wb-tools" }, this.kind, numbers), this.picker.root,
      h("div", { class: "wb-tools wb-controls" }, Object.values(this.buttons), this.stepping.box, this.progress, this.cost),
      this.heldbox, this.hand, this.strip.root, h("div", {}, stripLegend(this.strip)), this.runs, this.otherbox, this.details);
    this.refresh();
    this.estimate();
  }

  // Actions by hand.
  #hand() {
    const { frame, state } = this;
    const text = field("Text", { size: 14, placeholder: "text of tokens" });
    const back = field("Take back", { type: "number", value: 1, min: 0 });
    const say = (what, more) => () => this.act({ what, text: text.input.value, ...more?.() });
    const direction = state.directions.length ? frame.choice("Direction", state.directions, state.directions[0], () => {}) : null;
    const layer = field("Layer", { type: "number", value: Math.floor(state.layers / 2), min: 0, max: state.layers - 1 });
    const scale = field("Scale", { type: "number", value: 1, step: 0.5 });
    const steer = () => ({ name: direction.querySelector("select").value, layer: layer.input.value, scale: scale.input.value });
    const steering = direction
      ? [direction, layer.box, scale.box, frame.button("Steer", say("steer", steer)), frame.button("End steering", say("unsteer"))]
      : [h("span", { class: "wb-note" }, "To steer: LiveRun(model, directions={'name': vector}).")];
    this.acting = [
      frame.button("Force", say("force"), { title: "Commit the text now" }), frame.button("Ban", say("ban"), { title: "Never draw this word in this run" }),
      frame.button("Lift bans", say("unban")), frame.button("Backtrack", say("backtrack", () => ({ n: back.input.value })), { title: "Take back tokens, then commit the text" }),
    ];
    const [force, ban, unban, backtrack] = this.acting;
    this.acting.push(...steering.filter((each) => each.matches("button")));
    return h("div", { class: "wb-hand", role: "group", "aria-label": "Act by hand" }, h("div", { class: "wb-tools" }, h("b", {}, "By hand"), text.box, force, ban, unban, back.box, backtrack),
      h("div", { class: "wb-tools" }, steering));
  }

  settings() {
    const numbers = Object.fromEntries(Object.entries(this.numbers).map(([name, each]) => [name, each.input.value]));
    return { prompt: this.prompt.input.value, chat: this.kind.querySelector("select").value === "chat", ...numbers, mods: this.picker.specs, stepping: this.stepping.input.checked };
  }
  run() {
    if (this.isBusy()) return;
    if (!this.prompt.input.value) {
      this.frame.tell("Write a prompt first.");
      this.prompt.input.focus();
      return;
    }
    this.now = { ...this.now, state: "running" }; // so that a second press before the answer does nothing
    this.refresh();
    this.model.send({ type: "run", ...this.settings() });
  }
  act(content) {
    this.model.send({ type: "act", ...content });
  }
  branch() {
    if (this.isBusy() || !this.items.count) return;
    this.model.send({ type: "branch", item: this.strip.cursor, text: this.branchText.input.value, seed: this.branchSeed.input.value, stepping: this.stepping.input.checked });
  }
  isBusy() {
    return this.now.state === "running" || this.now.state === "stopping";
  }
  estimate() {
    clearTimeout(this.typing);
    if (!this.numbers.max_new_tokens.input.value) return; // being typed
    this.typing = setTimeout(() => this.model.send({ type: "estimate", ...this.settings() }), 300);
  }
  more(start) {
    if (start >= this.items.total || this.items.asked === start) return;
    this.items.asked = start;
    this.model.send({ type: "page", start });
  }

  // Answers -------------------------------------------------------------------------------------------------

  heard(content, buffers) {
    if (content.type === "progress") this.progressed(content, buffers);
    else if (content.type === "page" && content.start === this.items.count) this.grow({ ...content, numbers: buffers[0] });
    else if (content.type === "estimate") {
      this.cost.textContent = content.prompt ? `${content.prompt} prompt tokens, at most ${content.new} new; ${num(Math.round(content.megabytes * 100) / 100)} MB of residuals kept` : "Write a prompt to see what a run costs.";
    } else if (content.type === "detail") {
      if (!this.link.heard(content.asked ?? undefined) && content.item === this.strip.cursor) this.show(content);
    } else if (content.type === "other") this.showOther(content, buffers[0]);
    else if (content.type === "failed") {
      this.link.heard();
      if (content.of === "run") this.model.send({ type: "hello" });
    }
  }
  progressed(content, buffers) {
    const before = this.now, follows = this.isBusy(); // the last tokens come with the news that the run is over
    this.now = content;
    if (before.shown !== content.shown || before.runs.length !== content.runs.length) {
      this.items.clear();
      this.strip.cursor = 0;
      this.strip.layout();
      this.alone();
      this.details.replaceChildren();
    }
    if (content.page) this.grow({ ...content.page, numbers: buffers[0] }, follows || this.isBusy());
    if (before.state !== content.state) this.frame.say(`run ${content.state}${content.reason ? `, ${content.reason}` : ""}`);
    if (before.state !== "idle" && content.state === "idle" && this.items.count) this.strip.select(this.strip.cursor);
    this.refresh();
  }
  grow(page, follows = this.isBusy()) {
    if (page.start > this.items.count) { // what came before it was sent when this view was not there yet
      this.model.send({ type: "hello" });
      return;
    }
    const end = this.strip.cursor >= this.items.count - 1;
    this.items.add(page);
    this.strip.layout();
    if (follows && end) this.strip.select(this.items.count - 1, { quiet: true });
  }

  refresh() {
    const { state, stepping, held, told, reason, idle, error, runs, shown } = this.now;
    const busy = this.isBusy();
    const { run, pause, step, resume, stop } = this.buttons;
    run.disabled = busy;
    stop.disabled = state !== "running";
    pause.disabled = state !== "running" || stepping;
    step.disabled = resume.disabled = state !== "running" || !stepping;
    for (const button of this.acting) button.disabled = state !== "running";
    this.progress.textContent = [held ? "held" : state, told, reason && `ended by ${reason}`, idle?.length && `no action by ${idle.join(", ")}`, error].filter(Boolean).join(" · ");
    const mark = JSON.stringify(held);
    if (mark !== this.heldMark) {
      this.heldMark = mark;
      this.heldbox.replaceChildren(...(held ? [heldPanel(this.frame, held, (content) => this.act(content))] : []));
      if (held) this.frame.say(`held after ${held.event} at step ${held.step}`);
    }
    const list = JSON.stringify([runs, shown, busy]);
    if (list === this.listMark) return;
    this.listMark = list;
    this.runs.replaceChildren(...(runs.length ? this.branching(runs, shown, busy) : []));
  }
  branching(runs, shown, busy) {
    const { frame } = this;
    this.branchText = field("then", { size: 12, placeholder: "other text" });
    this.branchSeed = field("Seed", { type: "number", value: runs.length });
    const others = [["", "nothing"], ...runs.filter(([value]) => value !== String(shown))];
    return [
      frame.choice("Shown run", runs, String(shown), (run) => this.model.send({ type: "show", run })),
      frame.choice("Compare with", others, "", (run) => (run ? this.model.send({ type: "compare", run }) : (this.alone(), this.strip.refresh()))),
      frame.button("Branch here", () => this.branch(), { title: "A new run with the tokens up to the chosen one (b)", disabled: busy }), this.branchText.box, this.branchSeed.box,
    ];
  }

  selected(item) {
    this.frame.say(this.items.told(item));
    this.link.ask({ type: "detail", item });
  }
  show(detail) {
    this.detail = detail;
    const title = h("div", { class: "wb-chosen" }, h("span", { class: "wb-word wb-large" }, labelNodes(this.items.labels[detail.item])), factsList(detail.facts));
    const layers = layersCard(detail.layers, (detail.layers.layer?.length ?? 1) - 1, () => {});
    this.details.replaceChildren(h("div", { class: "wb-column" }, title, candidatesCard(detail.candidates), eventsCard(detail.events)), h("div", { class: "wb-column" }, layers));
  }
  // No other run beside this one any more.
  alone() {
    this.otherbox.replaceChildren();
    this.items.parted = null;
  }
  showOther({ run, page, parting, told }, numbers) {
    const items = new Items(this.state.columns, this.state.origins);
    items.add({ ...page, numbers });
    this.items.parted = parting?.[0];
    items.parted = parting?.[1];
    const strip = new Strip(this.frame, items, { label: `Tokens of run ${run + 1}`, onselect: (item) => this.frame.say(items.told(item)) });
    strip.root.dataset.side = "other";
    strip.cursor = parting?.[1] ?? 0;
    this.otherbox.replaceChildren(h("p", { class: "wb-note" }, `Run ${run + 1}. ${told}`), strip.root);
    strip.layout();
    this.strip.refresh();
    if (parting?.[0] !== undefined && parting[0] !== null) this.strip.select(parting[0]);
    strip.select(strip.cursor, { quiet: true });
  }

  code() {
    const { prompt, chat, max_new_tokens: most, temperature, top_k: k, top_p: p, seed, mods } = this.settings();
    const text = JSON.stringify(prompt);
    const made = mods.map((spec) => `parse(${JSON.stringify(spec)})`).join(", ");
    return ["from workbench import SamplingParams, Session", ...(made ? ["from workbench.mods import parse"] : []), "",
      `session = Session(model, [${made}], capture="blocks.*.hook_resid_post")`,
      `result = session.generate(${chat ? `[{"role": "user", "content": ${text}}]` : text}, max_new_tokens=${most}, seed=${seed},`,
      `    sampling=SamplingParams(temperature=${temperature}, top_k=${k}, top_p=${p}))`].join("\n");
  }

  key(event) {
    if (isField(event.target) || event.target.matches("button, input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = (button) => () => !button.disabled && button.click();
    const { pause, resume, step, stop } = this.buttons;
    const actions = { s: pressed(step), x: pressed(stop), b: () => this.branch(), " ": () => pressed(this.now.stepping ? resume : pause)() };
    if (!actions[event.key]) return;
    actions[event.key]();
    event.preventDefault();
  }
}

function render({ model, el }) {
  const live = new LiveWindow(model, el);
  return () => live.frame.close();
}

export default { render };
