// MCMCStepper: a timeline of decisions, and everything about the chosen one.

const PLAY_EVERY = 700;

class StripItems extends Items {
  told(i) {
    const { position, p } = this.data, origin = this.origin(i);
    const where = origin === "prompt" ? "prompt" : `${{ sampled: "before the pivot", old: "old suffix", new: "new suffix" }[origin]}, position ${position[i]}`;
    return `'${plainLabel(this.labels[i])}', ${where}${this.has(i, GONE) ? ", does not stand" : ""}${Number.isNaN(p[i]) ? "" : `, model p ${num(p[i])}`}`;
  }
}

class StepperWindow {
  constructor(model, el) {
    this.model = model;
    const frame = this.frame = new Frame({ model, el, kind: "mcmc", title: "MCMC stepper", keys: model.get("state").keys });
    this.link = new Link(frame);
    this.state = model.get("state");
    this.tracks = this.state.tracks;
    this.data = new Map();
    this.number = 0;
    this.chain = "";
    this.items = [];
    this.at = 0;
    this.work = this.state.work;
    this.build();
    frame.buttons.append(frame.button("Copy as code", () => frame.showCode(this.code()), { title: "Python that gives the same numbers" }));
    frame.on("msg:custom", (content, buffers) => this.heard(content, buffers));
    frame.listen(frame.root, "keydown", (event) => this.key(event));
    frame.closers.push(() => clearInterval(this.playing));
    this.retold();
    model.send({ type: "hello" });
  }
  get track() {
    return this.tracks[this.number];
  }
  get columns() {
    if (!this.data.has(this.number)) this.data.set(this.number, Object.fromEntries(this.state.columns.map((name) => [name, []])));
    return this.data.get(this.number);
  }

  build() {
    const { frame } = this, go = (text, action, title) => frame.button(text, action, { title, "aria-label": title });
    this.choices = h("span", { class: "wb-tools" });
    this.playButton = go("▶ Play", () => this.play(), "Play through the decisions (Space)");
    const transport = h("div", { class: "wb-tools wb-transport", role: "toolbar", "aria-label": "Go through the decisions" }, this.choices,
      go("|◀", () => this.select(0), "First decision (Home)"), go("◀", () => this.select(this.at - 1), "Previous decision (←)"), this.playButton,
      go("▶", () => this.select(this.at + 1), "Next decision (→)"), go("▶|", () => this.select(this.items.length - 1), "Last decision (End)"),
      go("Next ●", () => this.jump(0, 1), "Next accepted (a)"), go("Next ×", () => this.jump(1, 1), "Next rejected (r)"), this.jumpBox());
    this.stepButton = go("Step", () => this.advance("step"), "One more decision (s)");
    this.runButton = go("Run", () => this.advance("run"), "Go on to the end");
    this.stopButton = go("Stop", () => this.model.send({ type: "stop" }), "Stop within one pass (x)");
    this.progress = h("progress", { max: 1, "aria-label": "Decisions made" });
    this.doing = h("span", { role: "status" });
    this.livebar = h("div", { class: "wb-tools wb-livebar" }, this.stepButton, this.runButton, this.stopButton, this.progress, this.doing);
    this.about = h("div");
    this.timeline = new Timeline(frame, { onpick: (place) => { this.select(place); this.timeline.root.focus(); } });
    this.legend = h("p", { class: "wb-legend" }, this.state.prose.legend.map((text) => h("span", {}, text)));
    this.table = new DecisionsTable(this);
    this.headline = h("div", { "aria-live": "off" });
    const items = this.stripItems = new StripItems(this.state.strip.columns, this.state.strip.origins);
    this.strip = new Strip(frame, items, { label: "The text that the decision was about", onselect: (i) => frame.say(items.told(i)) });
    this.stripNote = h("p", { class: "wb-note" });
    this.left = h("div", { class: "wb-column" });
    this.right = h("div", { class: "wb-column" });
    this.kernel = new KernelCard(frame, { prose: this.state.prose, ask: (side, row) => { this.kernel.waiting(); this.send({ type: "kernel", side, row }); } });
    this.supposing = new SupposingCard(frame, { prose: this.state.prose, can: this.state.model !== null, ask: (given) => this.send({ type: "suppose", ...given }), branch: (given) => this.send({ type: "branch", view: frame.id, ...given }) });
    this.compared = h("div");
    this.stands = h("div");
    this.details = h("div", { hidden: true }, this.headline, this.strip.root, this.stripNote, h("div", { class: "wb-details" }, this.left, this.right), this.kernel.root, this.supposing.root);
    frame.body.replaceChildren(this.about, transport, this.livebar, this.timeline.root, this.legend, this.table.root, this.empty = h("div"), this.details, this.compared, this.stands);
  }
  jumpBox() {
    const input = this.jumpTo = h("input", { class: "wb-input", type: "number", min: "0", "aria-label": "Go to decision", onchange: () => {
      const place = this.items.indexOf(Number(input.value));
      if (place >= 0) this.select(place);
      else this.frame.tell(`There is no decision ${input.value} in this list.`);
    } });
    return h("label", { class: "wb-choice" }, h("span", {}, "decision"), input);
  }

  // Tracks, chains, what they stand at -------------------------------------------------------------------------

  retold() {
    const { frame, track } = this, many = this.tracks.length > 1;
    const names = JSON.stringify([this.tracks.length, this.number, this.chain]);
    if (names !== this.named) {
      this.named = names;
      const chains = [["", "all chains"], ...[...Array(track.chains).keys()].map((i) => [String(i), track.ladder.length ? `chain ${i}, alpha ${num(track.ladder[i])}` : `chain ${i}`])];
      this.choices.replaceChildren(...[many ? frame.choice("Track", this.tracks.map((each) => [String(each.number), each.parent === null ? each.told : `${each.told} (from ${each.at} of ${this.tracks[each.parent].told})`]), String(this.number), (value) => this.turn(Number(value))) : null,
        track.chains > 1 ? frame.choice("Chain", chains, this.chain, (value) => { this.chain = value; this.refilter(false); }) : null].filter(Boolean));
    }
    const rate = track.shown ? ` · accepted ${track.accepted} (${num(track.accepted / track.shown)})` : "";
    const source = this.state.model === null ? "no model: token ids only, no tiles, no branches" : `model ${this.state.model}`;
    this.about.replaceChildren(h("p", { class: "wb-sidetitle" }, h("b", {}, track.told), ` · alpha ${num(track.alpha)} · tau ${num(track.tau)} · blocks of ${track.block_size}, ${track.n_mcmc} proposals each · seed ${track.seed} · ${track.shown} of ${track.total} decisions${rate} · tokens fed ${track.forwarded} · ${source}`),
      ...track.warnings.map((text) => h("p", { class: "wb-warned" }, h("b", {}, "Not a sample of the target. "), text)));
    this.stands.replaceChildren(standsCard(track.texts));
    this.busy();
  }
  busy() {
    const { track, work } = this, busy = work.state === "running" || work.state === "stopping";
    this.livebar.hidden = !track.live;
    const stepping = busy && work.doing !== "read";
    const focused = document.activeElement;
    this.stepButton.disabled = this.runButton.disabled = stepping || track.finished;
    this.stopButton.disabled = !busy;
    if (focused?.disabled && this.livebar.contains(focused)) (this.stopButton.disabled ? this.timeline.root : this.stopButton).focus();
    this.progress.value = track.total ? track.shown / track.total : 0;
    const said = { run: "running", step: "making a decision", branch: "making a branch", read: "computing a row" }[work.doing] ?? work.state;
    const text = work.state === "stopping" ? "stopping…" : busy ? `${said}…` : track.finished ? "finished" : work.state === "failed" ? "failed" : "idle";
    if (this.doing.textContent !== text) this.doing.textContent = text;
  }
  turn(number) {
    this.number = number;
    this.chain = "";
    this.compared.replaceChildren();
    this.refilter(true);
    this.retold();
    if (this.track.parent !== null) this.compare(false);
  }
  // Comparing takes time that grows with the chain: while it runs, every two seconds is enough.
  compare(busy) {
    this.behind = busy && performance.now() - (this.comparedAt ?? 0) < 2000;
    if (this.behind) return;
    this.comparedAt = performance.now();
    this.model.send({ type: "compare", track: this.number });
  }
  refilter(last) {
    const { columns } = this, own = this.chain === "" ? null : Number(this.chain);
    const chosen = this.items[this.at];
    this.items = [...columns.chain.keys()].filter((index) => own === null || columns.chain[index] === own);
    this.timeline.show(this.items, columns);
    if (!this.items.length) {
      this.details.hidden = true;
      this.timeline.move(0, "none yet");
      this.empty.replaceChildren(note(this.state.prose[this.track.live ? "fresh" : "none"]));
    } else {
      this.empty.replaceChildren();
      const place = last ? this.items.length - 1 : this.items.indexOf(chosen);
      this.select(place < 0 ? Math.min(this.at, this.items.length - 1) : place);
    }
    this.table.fill();
  }

  // The cursor ----------------------------------------------------------------------------------------------------

  select(place) {
    if (!this.items.length) return;
    this.at = Math.min(Math.max(place, 0), this.items.length - 1);
    const index = this.items[this.at], { columns } = this;
    const told = `decision ${index} of ${this.track.shown}, ${KINDS[columns.kind[index]]}, chain ${columns.chain[index]}, pivot ${columns.pivot[index]}, log A ${num(columns.log_a[index])}`;
    this.timeline.move(this.at, told);
    this.jumpTo.value = String(index);
    this.table.mark();
    if (this.detail?.index === index && this.detail?.track === this.number) return;
    this.link.ask({ type: "decision", track: this.number, index });
    this.frame.say(told);
  }
  jump(kind, way) {
    const { columns } = this;
    for (let place = this.at + way; place >= 0 && place < this.items.length; place += way) {
      if (columns.kind[this.items[place]] === kind) {
        this.select(place);
        return;
      }
    }
    this.frame.tell(`No ${way < 0 ? "earlier" : "later"} decision was ${KINDS[kind]}.`);
  }
  play() {
    const on = this.playing === undefined && this.items.length > 0;
    clearInterval(this.playing);
    this.playing = undefined;
    if (on) {
      if (this.at >= this.items.length - 1) this.select(0);
      this.playing = setInterval(() => (this.at < this.items.length - 1 ? this.select(this.at + 1) : this.play()), PLAY_EVERY);
    }
    this.playButton.textContent = on ? "⏸ Pause" : "▶ Play";
    this.playButton.setAttribute("aria-label", on ? "Pause (Space)" : "Play through the decisions (Space)");
  }
  advance(type) {
    if (!this.track.live || this.track.finished || this.stepButton.disabled) return;
    this.stepButton.disabled = this.runButton.disabled = true;
    this.stopButton.disabled = false;
    if (document.activeElement === this.stepButton || document.activeElement === this.runButton || document.activeElement === document.body) this.timeline.root.focus();
    this.select(this.items.length - 1);
    this.model.send({ type, track: this.number });
  }
  send(content) {
    if (this.detail) this.model.send({ ...content, track: this.detail.track, index: this.detail.index });
  }
  key(event) {
    const { target } = event;
    if (event.defaultPrevented || isField(target) || event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = target.matches("button, [role=option]"), scrolls = target.closest(".wb-strip, .wb-scroll, .wb-code");
    const moves = {
      ArrowLeft: () => this.select(this.at - 1), ArrowRight: () => this.select(this.at + 1), PageUp: () => this.select(this.at - 25), PageDown: () => this.select(this.at + 25),
      Home: () => this.select(0), End: () => this.select(this.items.length - 1),
    };
    const letters = {
      a: () => this.jump(0, 1), A: () => this.jump(0, -1), r: () => this.jump(1, 1), R: () => this.jump(1, -1), n: () => this.jump(2, 1), N: () => this.jump(2, -1),
      s: () => this.advance("step"), x: () => this.model.send({ type: "stop" }), t: () => this.table.toggle(), " ": pressed ? null : () => this.play(),
    };
    const action = letters[event.key] ?? (scrolls ? null : moves[event.key]);
    if (!action) return;
    action();
    event.preventDefault();
  }

  // What Python says ------------------------------------------------------------------------------------------------

  heard(content, buffers) {
    const mine = content.track === this.detail?.track && content.index === this.detail?.index;
    const does = {
      news: () => this.news(content, buffers), decision: () => this.show(content, buffers), branched: () => { if (content.view === this.frame.id) { this.wanted = content.track; this.follow(); } },
      tokens: () => mine && this.paged(content.tokens), kernel: () => mine && this.kernel.traced(content), supposed: () => mine && this.supposing.supposed(content),
      contrast: () => mine && this.contrast(content.contrast ?? { missing: content.missing, can: false }), compared: () => content.track === this.number && this.compared.replaceChildren(compareCard(content, this.track)),
      failed: () => { if (content.of === "decision") this.link.heard(); this.busy(); },
    };
    does[content.type]?.();
  }
  news({ work, tracks, page }, buffers) {
    const wasLast = this.at >= this.items.length - 1, shown = this.track.shown;
    this.work = work;
    this.tracks = tracks;
    if (page) this.add(page, buffers[0]);
    this.retold();
    if (page?.track === this.number) this.refilter(wasLast);
    else if (!this.items.length) this.refilter(true);
    const busy = work.state === "running" || work.state === "stopping";
    if (this.track.parent !== null && (this.track.shown !== shown || page || this.behind)) this.compare(busy);
    this.follow();
  }
  add({ track, start, count }, buffer) {
    const numbers = new Float64Array(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength));
    const number = this.number;
    this.number = track;
    const { columns } = this;
    this.number = number;
    for (const [n, name] of this.state.columns.entries()) {
      if (columns[name].length < start) return;
      for (let i = 0; i < count; i++) columns[name][start + i] = numbers[n * count + i];
    }
  }
  // To a branch that was asked for here, once its track is told.
  follow() {
    if (this.wanted === undefined || !this.tracks[this.wanted]) return;
    const number = this.wanted;
    this.wanted = undefined;
    this.turn(number);
    this.frame.say(`${this.track.told} is there: Step or Run makes its decisions`);
  }
  show(detail, buffers) {
    const waits = this.link.heard(detail.asked ?? undefined);
    if (waits || detail.track !== this.number || this.items[this.at] !== detail.index) return;
    const strip = { ...detail.strip, numbers: buffers[0] }, held = this.details.contains(document.activeElement);
    this.detail = detail;
    this.details.hidden = false;
    this.headline.replaceChildren(verdictLine(detail, this.track.shown));
    this.stripItems.clear();
    this.stripItems.add(strip);
    this.stripItems.parted = strip.standing;
    this.strip.layout();
    this.strip.select(Math.min(strip.standing, strip.count - 1), { quiet: true });
    this.stripNote.replaceChildren(detail.said.strip);
    this.left.replaceChildren(termsCard(detail), axisCard(detail), cacheCard(detail, this.state.prose));
    this.suffixes = suffixCard(this.frame, detail, (start) => this.send({ type: "tokens", start }));
    this.right.replaceChildren(this.suffixes, this.contrasted = h("div"));
    this.contrast(detail.contrast);
    this.kernel.show(detail);
    this.supposing.show(detail);
    if (held && !this.details.contains(document.activeElement)) this.timeline.root.focus();
  }
  paged(tokens) {
    this.detail.tokens = tokens;
    const card = suffixCard(this.frame, this.detail, (start) => this.send({ type: "tokens", start }));
    this.suffixes.replaceWith(card);
    this.suffixes = card;
    if (document.activeElement === document.body) card.querySelector("button:enabled")?.focus();
    this.kernel.rows(tokens);
  }
  contrast(told) {
    this.contrasted.replaceChildren(contrastCard(this.frame, told, () => this.send({ type: "contrast" }), this.state.prose));
  }

  code() {
    const index = this.detail?.index ?? 0, track = this.number ? `, track=${this.number}` : "";
    const calls = [`stepper.frame(${this.number || ""})`, ...["tokens", "terms", "verdict", "programs", "cache"].map((name) => `stepper.${name}(${index}${track})`)];
    if (this.state.model !== null) calls.push(`stepper.kernel(${index}, 0${track})`);
    if (this.detail && this.detail.difference !== null && this.detail.contrast.can !== false) calls.push(`stepper.contrast(${index}${track})`);
    return `from widgets import MCMCStepper\n\nstepper = MCMCStepper(${this.tracks[0].live ? "sampler" : this.state.model === null ? "chains" : "chains, model"})\n${calls.join("\n")}`;
  }
}

function render({ model, el }) {
  const view = new StepperWindow(model, el);
  return () => view.frame.close();
}

export default { render };
