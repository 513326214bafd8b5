// The panel of the selected question: everything about it, field by field.

class Inspector {
  constructor(owner) {
    this.owner = owner;
    this.root = h("div", { class: "wb-inspector", role: "group", "aria-label": "Selected question" });
    this.forms = new Forms(owner);
    this.strategies = new StrategyForm(this.forms, owner.model.get("state").strategies);
    this.targets = new TargetForm(this.forms);
    this.preview = new Preview(owner);
    // A button that is pressed is not replaced before it is let go: its click would be lost.
    owner.frame.listen(this.root, "pointerdown", () => { this.pressed = true; });
    for (const type of ["pointerup", "pointercancel"]) {
      owner.frame.listen(window, type, () => setTimeout(() => {
        this.pressed = false;
        if (this.waiting) this.draw();
      }));
    }
    owner.frame.listen(this.root, "keydown", (event) => {
      if (event.key !== "Escape") return;
      owner.canvas.focus(owner.selected);
      event.preventDefault();
    });
  }
  draw() {
    this.waiting = this.pressed;
    if (this.pressed) return;
    const box = this.owner.boxes.get(this.owner.selected);
    if (box?.name !== this.shown && !(box && this.owner.renamed.get(this.shown) === box.name)) {
      const active = this.root.ownerDocument.activeElement;
      if (this.root.contains(active)) active.blur(); // what was typed there goes to its own question first
      this.forms.refusals.clear();
    }
    this.shown = box?.name;
    this.forms.redraw(this.root, () => (box ? this.#question(box) : [said("No question is selected. Add one, or choose one in the drawing.")]));
    if (box) this.preview.show(box.data.strategy);
    for (const old of this.owner.renamed.keys()) if (!this.owner.boxes.has(old)) this.owner.renamed.delete(old); // nothing drawn has the old name now
  }
  // Moves the cursor into a field; in the name, what stands there is selected, so that typing replaces it.
  enter(key = "name") {
    const field = this.root.querySelector(`[data-key="${CSS.escape(key)}"]`);
    const closed = field?.closest("details");
    if (closed) closed.open = true;
    field?.focus();
    if (key === "name") field?.select();
  }

  #question(box) {
    const { forms, owner } = this, { data, name } = box;
    const edit = (change, group) => owner.edit(change, { key: forms.key, group });
    const set = (key, value, group) => edit(value === undefined ? { do: "unset", node: name, key } : { do: "set", node: name, key, value }, group);
    const findings = box.problems.map(({ message }) => h("li", {}, message));
    const start = box.is_root ? h("span", { class: "wb-start" }, "the flow begins here") : forms.button("root", "Begin here", () => edit({ do: "root", node: name }), "Let the flow begin with this question");
    return [
      h("div", { class: "wb-buttons" }, start, forms.button("delete", "Delete", () => owner.remove(), `Delete ${name}`)),
      forms.field("name", "Name", name, (typed, group) => edit({ do: "rename", node: name, name: typed }, group)),
      forms.field("prompt", "Prompt", data.prompt, (typed, group) => set("prompt", typed, group), { rows: 3, live: true }),
      ...this.strategies.build(data.strategy, (strategy) => set("strategy", strategy)),
      this.preview.root,
      h("div", { class: "wb-pair" },
        forms.choice("erase_mode", "Erase afterwards", [["all", "everything"], ["prompt", "the prompt"], ["none", "nothing"]], data.erase_mode, (value) => set("erase_mode", value)),
        forms.choice("decide", "Decide", [["whole", "whole answers"], ["tokenwise", "token by token"]], data.decide, (value) => set("decide", value))),
      h("fieldset", {}, h("legend", {}, "Where answers lead"), this.#routes(box, edit, set)),
      this.#more(box, set),
      ...(findings.length ? [h("ul", { class: "wb-findings", "aria-label": "What looks wrong" }, findings)] : []),
    ];
  }
  #routes({ name, data, answers }, edit, set) {
    const routes = data.routes ?? {};
    const listed = new Map([...answers.map(([label, key]) => [key, label]), ...Object.keys(routes).filter((key) => !answers.some((each) => each[1] === key)).map((key) => [key, key])]);
    const others = "then" in data || listed.size === 0 || Object.keys(routes).length < listed.size;
    const to = (answer) => ({
      put: (target) => edit({ do: "route", node: name, answer, ...(target === undefined ? {} : { target }) }),
      fresh: () => edit({ do: "add", after: name, answer }), unset: "as the others",
    });
    const rows = [...listed].slice(0, 64).map(([key, label]) => this.targets.build(`routes:${key}`, label, routes[key], to(key)));
    const own = answers.length ? null : this.forms.field("answer-new", "Another answer to route", "", (typed) => typed && edit({ do: "route", node: name, answer: typed, target: null }), { placeholder: "an answer, then Enter" });
    const rest = { put: (target) => set("then", target), fresh: () => edit({ do: "add", after: name, way: "otherwise" }), unset: "not set (back to the text)" };
    return [...rows, own, others ? this.targets.build("then", listed.size ? "otherwise" : "any answer", data.then, rest) : null];
  }
  #more({ data, is_root: isRoot }, set) {
    const { forms, targets } = this;
    const retry = data.retry;
    const most = forms.field("retry-most", "Ask at most (times)", retry?.most ?? "", (typed) => set("retry", typed === "" ? undefined : { most: Number(typed), target: retry?.target ?? null }), { type: "number", min: 1, placeholder: "no limit" });
    const assign = data.assign ?? [];
    const calls = assign.map((each, index) => h("div", { class: "wb-textline" }, h("span", { class: "wb-word" }, each),
      forms.button(`assign-up-${index}`, "↑", () => index && set("assign", [...assign.slice(0, index - 1), each, assign[index - 1], ...assign.slice(index + 1)]), `Call ${each} earlier`),
      forms.button(`assign-remove-${index}`, "×", () => set("assign", assign.length > 1 ? assign.filter((_, place) => place !== index) : undefined), `No longer call ${each}`)));
    return h("details", { class: "wb-more" }, h("summary", { "data-key": "more" }, "More: entry, branch, retry, functions"),
      this.#entry(data.when, set), isRoot ? null : said("Where the flow enters counts for the question that it begins with."),
      targets.functions("branch", "Branch by function", data.branch, (value) => set("branch", value), "none"),
      targets.functions("auto_answer", "Answer by function", data.auto_answer, (value) => set("auto_answer", value), "none: ask the model"),
      h("div", { role: "group", "aria-label": "Called when the answer is recorded" }, calls, targets.functions("assign", "Also call", undefined, (value) => value && set("assign", [...assign, value]), "choose a function")),
      most, retry ? targets.build("retry", "after that", retry.target, { put: (target) => set("retry", { ...retry, target }) }) : null);
  }
  #entry(when, set) {
    const { forms, targets } = this;
    const kind = when === undefined ? "" : typeof when === "string" ? "function" : Object.keys(when)[0];
    const first = this.owner.now.functions[0]?.name;
    const made = { "": undefined, after_text: { after_text: "\\?" }, when_unsure: { when_unsure: 2 }, function: first };
    const kinds = [["", "at once"], ["after_text", "after a text (regex)"], ["when_unsure", "when the model is unsure"], ...(first ? [["function", "when a function says so"]] : [])];
    const detail = {
      after_text: () => forms.field("when-text", "Pattern in the output", when.after_text, (typed) => set("when", { after_text: typed }), { class: "wb-input wb-codefield" }),
      when_unsure: () => forms.field("when-entropy", "Entropy above (nats)", when.when_unsure, (typed) => set("when", { when_unsure: Number(typed) }), { type: "number", min: 0, step: "any" }),
      function: () => targets.functions("when-fn", "Function", when, (value) => set("when", value)),
    }[kind];
    return h("div", {}, forms.choice("when", "The flow enters", kinds, kind, (chosen) => set("when", made[chosen])), detail?.() ?? null);
  }
}
