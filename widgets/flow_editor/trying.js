// "Try it": runs the flow on the model, shows the path with probabilities and erased texts, goes in again anywhere.

class Trying {
  constructor(owner, state) {
    this.owner = owner;
    const { frame } = owner;
    const field = (label, properties, tag = "input") => {
      const input = h(tag, { class: "wb-input", "aria-label": label, spellcheck: "false", ...properties });
      input.value = properties.value ?? "";
      return { box: h("label", { class: "wb-choice" }, h("span", {}, label), input), input };
    };
    this.prompt = field("Prompt", { rows: 2, value: state.prompt || "What is 17 * 23?" }, "textarea");
    this.kind = frame.choice("As", state.chat ? [["chat", "chat message"], ["raw", "raw text"]] : [["raw", "raw text"]], state.chat ? "chat" : "raw", () => {});
    this.numbers = {
      max_new_tokens: field("New tokens", { type: "number", value: 24, min: 1, max: 2048 }), temperature: field("Temperature", { type: "number", value: 0, min: 0, step: 0.1 }), seed: field("Seed", { type: "number", value: 0 }),
    };
    this.runButton = frame.button("Try it", () => this.run(), { title: "Run the flow on the model (Ctrl Enter in the prompt)", class: "wb-button wb-primary" });
    this.stopButton = frame.button("Stop", () => owner.model.send({ type: "stop" }), { title: "Stop within one token", disabled: true });
    this.progress = h("span", { class: "wb-count", role: "status" });
    this.shown = h("div", { class: "wb-shown" });
    this.result = h("div", { class: "wb-result" });
    const form = [this.prompt.box, h("div", { class: "wb-tools" }, this.kind, Object.values(this.numbers).map((each) => each.box), this.runButton, this.stopButton, this.progress)];
    const without = said("To try the flow, open the editor with a model: FlowEditor(flow, model).");
    this.root = h("section", { class: "wb-try", "aria-label": "Try it" }, h("div", { class: "wb-cardtitle", role: "heading", "aria-level": "4" }, state.model ? `Try it on ${state.model}` : "Try it"),
      ...(state.model ? form : [without]), this.shown, this.result);
    frame.listen(this.prompt.input, "keydown", (event) => event.key === "Enter" && event.ctrlKey && this.run());
    this.now = { state: "idle", runs: [], shown: 0 };
  }
  run() {
    if (this.runButton.disabled) return;
    if (!this.owner.order.length) return this.owner.frame.tell("Add a question first.");
    const numbers = Object.fromEntries(Object.entries(this.numbers).map(([name, { input }]) => [name, input.value]));
    this.runButton.disabled = true; // so that a second press before the answer does nothing
    this.owner.model.send({ type: "run", prompt: this.prompt.input.value, chat: this.kind.querySelector("select").value === "chat", ...numbers });
  }
  reenter(visit, answer) {
    this.runButton.disabled = true;
    this.owner.model.send({ type: "reenter", run: this.now.shown, visit, answer });
  }

  heard(content) {
    const before = this.now;
    this.now = content;
    const busy = content.state === "running" || content.state === "stopping", run = content.run;
    this.runButton.disabled = busy || content.state === "no model";
    this.stopButton.disabled = content.state !== "running";
    const fed = run ? `${run.reused} tokens from the KV cache, ${run.fed} fed` : "";
    this.progress.textContent = [content.runs.length ? content.state : "", fed, run?.reason && `ended by ${run.reason}`].filter(Boolean).join(" · ");
    if (before.state !== content.state && content.runs.length) this.owner.frame.say(`try ${content.state}${run?.reason ? `, ${run.visits.length} visits` : ""}`);
    if (JSON.stringify([before.runs, before.shown, before.run]) === JSON.stringify([content.runs, content.shown, run])) return;
    this.#light(run);
    this.shown.replaceChildren(...(content.runs.length > 1 ? [this.owner.frame.choice("Shown run", content.runs, String(content.shown), (chosen) => this.owner.model.send({ type: "show", run: Number(chosen) }))] : []));
    this.result.replaceChildren(...(run ? this.#told(run) : []));
  }
  // The path in the drawing: boxes with the numbers of their visits, answers with their probabilities.
  #light(run) {
    const { canvas, boxes } = this.owner;
    canvas.lit.clear();
    (run?.visits ?? []).forEach((visit, index) => {
      const own = boxes.get(visit.question)?.rows.find(({ key, set }) => set && key === `routes:${visit.key}`);
      const list = canvas.lit.get(visit.question) ?? [];
      canvas.lit.set(visit.question, [...list, { number: index + 1, answer: visit.answer, key: visit.key, probs: visit.probs, row: own ? own.key : "then" }]);
    });
    canvas.draw();
  }
  #told(run) {
    const rows = run.visits.map((visit, index) => this.#visit(visit, index, run));
    const changed = run.same ? null : said("The flow was changed since this run: it shows what ran.");
    const output = h("div", { class: "wb-output" }, h("b", {}, "Output "), h("span", { class: "wb-word" }, run.text || (run.reason ? "nothing" : "…")), run.tool_calls ? h("p", {}, h("b", {}, "Tool call "), run.tool_calls) : null);
    const wrong = run.error ? h("div", { class: "wb-error", role: "alert" }, run.error) : null;
    const visits = run.visits.length ? table("The path: each visit, what the model gave each answer, and what was taken back", ["", "question", "answer", "probabilities", "erased", "leads to", "go in again with"], rows, { class: "wb-scroll wb-path" }) : said(run.reason ? "The flow did not enter in this run." : "…");
    return [wrong, changed, visits, output].filter(Boolean);
  }
  #visit(visit, index, run) {
    const { frame } = this.owner;
    const bars = visit.probs.map(([label, key, p]) => h("div", { class: `wb-prob ${key === visit.key ? "wb-picked" : ""}` }, h("span", { class: "wb-word" }, labelNodes(label)), barred(p)));
    const question = h("button", { type: "button", class: "wb-link", onclick: () => this.owner.boxes.has(visit.question) && this.owner.canvas.focus(visit.question), title: "Show it in the drawing" }, visit.question);
    const others = visit.choices.filter((choice) => choice.trim().toLowerCase() !== visit.key.toLowerCase());
    const again = (answer) => frame.button(answer, () => this.reenter(index, answer), { title: `Go on from here as if the answer were ${answer}; the KV cache is used again`, "aria-label": `Answer visit ${index + 1} with ${answer}` });
    const typed = h("input", { class: "wb-input", "aria-label": `Another answer for visit ${index + 1}`, size: 10 });
    const own = visit.choices.length ? others.slice(0, 8).map(again) : [typed, frame.button("Go", () => this.reenter(index, typed.value), { title: "Go on from here with this answer" })];
    const idle = this.now.state === "idle" || this.now.state === "failed";
    const by = visit.by === "the model" ? null : h("i", {}, ` by ${visit.by}`);
    return [String(index + 1), question, [h("span", { class: "wb-word" }, labelNodes(visit.answer)), visit.p === null ? null : ` p ${num(visit.p)}`, by].filter(Boolean), bars,
      h("span", { class: "wb-erasedtext" }, visit.erased || "–"), visit.route, idle && run.live ? h("span", { class: "wb-buttons" }, own) : idle ? "its KV cache is gone" : ""];
  }
}
