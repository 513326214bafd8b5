// FlowEditor: Python owns the document, the browser the cursor, the zoom and what is being typed.

const KEYS = [
  ["↑ ↓, Home, End", "move among the questions"], ["← →", "to the question before, to the first one after"], ["Enter", "edit the question; in a list of choices, take the one shown"], ["Esc", "from a field back to the drawing"],
  ["N", "a new question after this one"], ["B", "a new question for the next answer without a way"], ["Delete", "remove the question (Ctrl Z brings it back)"],
  ["Ctrl Z, Ctrl Shift Z", "undo, do again"], ["Alt ← → ↑ ↓", "move the box"], ["F, +, −", "fit, zoom"], ["Ctrl Enter", "try it, from its prompt"], ["?", "this list"],
];

class FlowWindow {
  constructor(model, el) {
    this.model = model;
    const frame = this.frame = new Frame({ model, el, kind: "flow", title: "Flow editor", keys: KEYS });
    const state = model.get("state");
    Object.assign(this, { boxes: new Map(), order: [], selected: null, now: { version: -1, functions: [] }, edits: new Map(), sent: Math.floor(Math.random() * 1e9), renamed: new Map(), parts: new Map() });
    this.canvas = new Canvas(this);
    this.inspector = new Inspector(this);
    this.trying = new Trying(this, state);
    this.#tools();
    this.saved = h("p", { class: "wb-note wb-saved" });
    this.importing = h("div", { class: "wb-import", hidden: true });
    const work = h("div", { class: "wb-work" }, h("div", { class: "wb-drawing" }, this.canvas.scroll, this.saved), this.inspector.root);
    frame.body.replaceChildren(this.tools, this.importing, work, this.trying.root);
    frame.on("msg:custom", (content, buffers) => this.heard(content, buffers));
    if (state.first) this.show(state.first);
    else this.inspector.draw();
    this.hello();
    // A function may have been registered since: asked when a person comes back to the window.
    frame.listen(frame.root, "focusin", ({ relatedTarget: from }) => (from && frame.root.contains(from)) || model.send({ type: "functions" }));
  }
  #tools() {
    const { frame } = this, button = (text, action, title, more) => frame.button(text, action, { title, ...more });
    this.undoButton = button("Undo", () => this.undo(), "Undo (Ctrl Z)");
    this.redoButton = button("Redo", () => this.redo(), "Do again (Ctrl Shift Z)");
    this.flowForms = new Forms(this);
    this.about = h("span", { class: "wb-about" });
    const zoom = [button("−", () => this.canvas.zoomTo(this.canvas.zoom / 1.2), "Zoom out (−)", { "aria-label": "Zoom out" }), button("+", () => this.canvas.zoomTo(this.canvas.zoom * 1.2), "Zoom in (+)", { "aria-label": "Zoom in" })];
    this.tools = h("div", { class: "wb-tools wb-flowtools" }, button("Add question", () => this.add(), "A question of its own; drag an answer's handle, or press N, for one after another"), this.undoButton, this.redoButton,
      button("Fit", () => this.canvas.fit(), "Show all of it (F)"), ...zoom, button("Tidy", () => this.edit({ do: "tidy" }), "Put every box where the layout wants it"), this.about);
    frame.buttons.append(button("Import", () => this.#openImport(), "Put a flow's JSON in the place of this one"), button("Export JSON", () => this.model.send({ type: "export", what: "json" }), "The flow as the engine reads it"),
      button("Copy as Python", () => this.model.send({ type: "export", what: "python" }), "Python that builds the same flow"));
  }
  hello() {
    this.model.send({ type: "hello", version: this.now.version });
  }
  #openImport() {
    const text = h("textarea", { class: "wb-input wb-codefield", rows: 5, "aria-label": "Flow JSON" });
    const file = h("input", { type: "file", accept: ".json,application/json", "aria-label": "Flow file" });
    file.addEventListener("change", () => file.files[0]?.text().then((read) => { text.value = read; }));
    const close = () => { this.importing.hidden = true; };
    const load = this.frame.button("Import this", () => { this.model.send({ type: "load", text: text.value }); close(); }, { class: "wb-button wb-primary" });
    this.importing.replaceChildren(h("label", { class: "wb-field" }, h("span", { class: "wb-fieldname" }, "A flow's JSON; Undo brings the present flow back"), text), h("div", { class: "wb-buttons" }, file, load, this.frame.button("Close", close)));
    this.importing.hidden = false;
    text.focus();
  }

  // Edits: each is one message; Python answers with what changed, or refuses and says why at the field.

  edit(change, { key, group } = {}) {
    const id = ++this.sent;
    for (const part of ["node", "after"]) if (this.renamed.has(change[part])) change[part] = this.renamed.get(change[part]); // is being renamed
    const old = change.do === "rename" ? change.node : null;
    if (old !== null) this.renamed.set(old, change.name);
    this.edits.set(id, { key, did: change.do, old, value: key && this.inspector.root.querySelector(`[data-key="${CSS.escape(key)}"]`)?.value });
    this.model.send({ type: "edit", id, change, group });
    clearTimeout(this.slow);
    this.slow = setTimeout(() => this.frame.tell("The kernel is busy or gone: the change is made when it answers."), 2000);
  }
  add({ after, way, place } = {}) {
    this.edit({ do: "add", ...(after ? { after } : {}), ...(way ? { way } : {}), ...(place ? { place } : {}) });
  }
  remove() {
    if (this.selected !== null) this.edit({ do: "delete", node: this.selected });
  }
  move(name, place) {
    this.edit({ do: "move", places: { [name]: place } }, { group: `move:${name}` });
  }
  // An answer's handle was dropped on a question, or on an empty place.
  connect(name, port, to, place) {
    const [kind, answer] = port.startsWith("routes:") ? ["route", port.slice(7)] : [port];
    const retry = this.boxes.get(name).data.retry;
    if (to === null) return this.edit({ do: "add", after: name, ...(kind === "route" ? { answer } : { way: "otherwise" }), place: place.map(Math.round) });
    const target = { question: to };
    if (kind === "route") this.edit({ do: "route", node: name, answer, target });
    else this.edit({ do: "set", node: name, key: kind, value: kind === "retry" ? { ...retry, target } : target });
  }
  undo() {
    this.model.send({ type: "undo" });
  }
  redo() {
    this.model.send({ type: "redo" });
  }
  select(name) {
    this.selected = name;
    this.canvas.mark();
    this.inspector.draw();
  }

  // Answers -------------------------------------------------------------------------------------------------

  heard(content, buffers) {
    if (content.type === "part") this.#part(content, buffers[0]);
    else if (content.type === "refused") this.#refused(content);
    else if (content.type === "failed") {
      clearTimeout(this.slow);
      if (content.of === "run" || content.of === "reenter") this.trying.runButton.disabled = false;
    }
  }
  #part({ of, index, count }, data) {
    const list = index ? this.parts.get(of) ?? [] : [];
    list[index] = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    this.parts.set(of, list);
    if (index < count - 1) return;
    const decoder = new TextDecoder();
    const content = JSON.parse(list.map((part, place) => decoder.decode(part, { stream: place < count - 1 })).join(""));
    if (of === "document") this.show(content);
    else if (of === "functions" && JSON.stringify(content.functions) !== JSON.stringify(this.now.functions)) {
      this.now.functions = content.functions;
      this.inspector.draw();
    } else if (of === "functions") return;
    else if (of === "progress") this.trying.heard(content);
    else if (of === "preview") this.inspector.preview.heard(content);
    else this.#exported(content);
  }
  #answered(id) {
    const edit = this.edits.get(id);
    this.edits.delete(id);
    return edit;
  }
  #refused({ id, message }) {
    clearTimeout(this.slow);
    this.frame.tell("");
    const edit = this.#answered(id);
    if (!edit) return; // another view's
    this.renamed.delete(edit.old);
    this.frame.say(`not changed: ${message}`);
    if (edit.key) {
      this.inspector.forms.refusals.set(edit.key, { message, value: edit.value ?? "" });
      this.inspector.draw();
    } else this.frame.tell(`Not changed: ${message}`);
  }
  show(content) {
    const first = !this.boxes.size;
    if (content.whole) this.boxes.clear();
    else if (content.version > this.now.version + 1) return this.hello();
    for (const box of content.boxes) this.boxes.set(box.name, box);
    const known = new Set(content.order);
    for (const name of [...this.boxes.keys()]) if (!known.has(name)) this.boxes.delete(name);
    this.order = content.order;
    this.now = content;
    const edit = this.#answered(content.edit);
    clearTimeout(this.slow);
    this.frame.tell("");
    if (edit?.key) this.inspector.forms.refusals.delete(edit.key);
    const look = (edit || content.edit === null) && known.has(content.look_at) ? content.look_at : this.selected;
    this.selected = known.has(look) ? look : this.order[0] ?? null;
    this.canvas.draw();
    this.inspector.draw();
    this.#about(content);
    if (edit?.did === "add") this.inspector.enter();
    else if (edit?.did === "delete") this.canvas.focus(this.selected);
    if ((first || look === content.look_at) && this.selected !== null) this.canvas.reveal(this.selected);
    if (content.say) this.frame.say(content.say);
  }
  #about({ name, summary, undo, redo, saved, functions, boxes }) {
    const { frame } = this, forms = this.flowForms;
    this.undoButton.disabled = !undo;
    this.redoButton.disabled = !redo;
    this.undoButton.title = undo ? `Undo: ${undo} (Ctrl Z)` : "Nothing to undo";
    this.redoButton.title = redo ? `Do again: ${redo} (Ctrl Shift Z)` : "Nothing to do again";
    this.saved.textContent = saved;
    const findings = [...this.boxes.values()].reduce((sum, box) => sum + box.problems.length, 0);
    const checked = h("span", { class: "wb-count" }, this.order.length ? `${this.order.length} question${this.order.length === 1 ? "" : "s"}, ${findings ? `${findings} finding${findings === 1 ? "" : "s"}` : "nothing looks wrong"}` : "empty");
    const none = [["", "answers, listed"]];
    forms.redraw(this.about, () => [
      forms.field("flow-name", "Flow's name", name, (typed) => this.edit({ do: "flow", key: "name", value: typed })),
      forms.choice("flow-summary", "Summary by", [...none, ...functions.map((each) => [each.name, each.name])], summary ?? "", (value) => this.edit({ do: "flow", key: "summary", value: value || null })), checked,
    ]);
  }
  #exported({ what, text, file }) {
    this.frame.showCode(text);
    if (what !== "json") return;
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    this.frame.closers.push(() => URL.revokeObjectURL(url));
    this.frame.root.querySelector(".wb-codepanel").append(h("a", { class: "wb-link", href: url, download: file }, "Save as a file"));
  }
}

function render({ model, el }) {
  const editor = new FlowWindow(model, el);
  return () => editor.frame.close();
}

export default { render };
