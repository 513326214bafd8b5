// Fields of the panel. Each has a key, by which it is found again, with what was typed into it, when the panel is redrawn.

const SVG = "http://www.w3.org/2000/svg";
function s(tag, properties) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, String(value));
  return element;
}

let sittings = 0; // times that a field was entered: what is typed in one of them is undone as one

class Forms {
  constructor(owner) {
    this.owner = owner;
    this.key = ""; // of the field that was used last: where a refusal is told
    this.refusals = new Map(); // key -> { message, value }
  }

  // One labelled field. "live" commits while typing, after a pause; else on leaving it or on Enter.
  field(key, label, value, commit, { rows, live, type, title, list, ...properties } = {}) {
    const refused = this.refusals.get(key);
    const text = refused ? refused.value : String(value ?? "");
    const input = h(rows ? "textarea" : "input", {
      class: "wb-input", "data-key": key, "aria-label": label, rows, type: rows ? null : type ?? "text", spellcheck: "false", autocomplete: "off", title,
      "aria-invalid": refused ? "true" : null, "aria-describedby": refused ? `${this.owner.frame.id}-${key}` : null, ...properties,
    });
    input.value = text;
    input.dataset.committed = text;
    const send = () => {
      clearTimeout(input.timer);
      if (this.quiet || input.value === input.dataset.committed) return;
      input.dataset.committed = input.value;
      this.key = key;
      commit(input.value, input.dataset.sitting);
    };
    input.addEventListener("focus", () => { input.dataset.sitting = `${key}#${++sittings}`; });
    for (const type of ["change", "blur"]) input.addEventListener(type, send); // a text that was put back after a redraw changes nothing
    if (!rows) input.addEventListener("keydown", (event) => event.key === "Enter" && send());
    if (live) {
      input.addEventListener("input", () => {
        clearTimeout(input.timer);
        input.timer = setTimeout(send, 700);
      });
    }
    return this.#boxed(label, input, key, refused);
  }
  // What the arrow keys pass over is not meant yet: by keyboard a choice is made with Enter, or on leaving the field.
  choice(key, label, options, chosen, commit, properties) {
    const select = h("select", { class: "wb-select", "data-key": key, "aria-label": label, ...properties });
    for (const option of options) select.append(option instanceof Element ? option : h("option", { value: option[0] }, option[1]));
    select.value = select.dataset.committed = chosen;
    let keyed = false;
    const send = () => {
      if (this.quiet || select.value === select.dataset.committed) return;
      select.dataset.committed = select.value;
      this.key = key;
      commit(select.value);
    };
    select.addEventListener("keydown", (event) => {
      keyed = true;
      if (event.key !== "Enter") return;
      send();
      event.preventDefault();
    });
    select.addEventListener("pointerdown", () => { keyed = false; });
    select.addEventListener("change", () => keyed || send());
    select.addEventListener("blur", send);
    return this.#boxed(label, select, key, this.refusals.get(key));
  }
  #boxed(label, control, key, refused) {
    const said = refused ? h("span", { class: "wb-refused", id: `${this.owner.frame.id}-${key}`, role: "alert" }, refused.message) : null;
    return h("label", { class: "wb-field" }, h("span", { class: "wb-fieldname" }, label), control, said);
  }
  button(key, text, action, title) {
    return h("button", { type: "button", class: "wb-button", "data-key": key, title, "aria-label": title, onclick: () => { this.key = key; action(); } }, text);
  }

  // Draws the panel anew; the field that is being typed into keeps its text, its cursor and the focus.
  redraw(root, content) {
    const active = root.contains(root.ownerDocument.activeElement) ? root.ownerDocument.activeElement : null;
    const key = active?.dataset.key;
    clearTimeout(active?.timer);
    const typed = active && active.value !== active.dataset.committed ? active.value : null;
    const cursor = active ? [active.selectionStart, active.selectionEnd] : [];
    const places = [root.scrollTop, ...[...root.querySelectorAll("details")].map((each) => each.open)];
    this.quiet = true; // a field that is taken away while it has the focus reports a change: it is none
    root.replaceChildren(...content());
    this.quiet = false;
    [...root.querySelectorAll("details")].forEach((each, index) => { each.open = each.open || Boolean(places[index + 1]); });
    root.scrollTop = places[0];
    const field = key && root.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (!field) return;
    const closed = field.closest("details");
    if (closed) closed.open = true;
    field.focus({ preventScroll: true });
    if (active?.dataset.key !== key || field.dataset.committed === undefined) return;
    if (active.dataset.sitting) field.dataset.sitting = active.dataset.sitting;
    if (typed !== null) field.value = typed;
    if (typeof cursor[0] === "number" && field.setSelectionRange) field.setSelectionRange(...cursor);
    if (typed !== null && active.timer) field.dispatchEvent(new Event("input"));
  }
}

const said = (text) => h("p", { class: "wb-note" }, text);

// A text of the author's with its outer spaces and line breaks marked: they count.
function shownText(text) {
  const inner = text.trim();
  if (!inner) return [h("i", { class: "wb-mark" }, "·".repeat(text.length))];
  const start = text.slice(0, text.indexOf(inner)), end = text.slice(start.length + inner.length);
  const mark = (space) => (space ? h("i", { class: "wb-mark" }, space.replaceAll("\n", "↵").replaceAll(/\s/g, "·")) : null);
  return [mark(start), inner, mark(end)];
}
