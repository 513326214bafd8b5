// Forms of a live run: labelled fields, chosen mods, the panel of a held loop.

// A labelled field. Keys typed into it stay in it.
function field(label, properties, tag = "input") {
  const input = h(tag, { class: "wb-input", "aria-label": label, ...properties });
  if (tag === "textarea") input.value = properties.value ?? "";
  return { box: h("label", { class: "wb-choice" }, h("span", {}, label), input), input };
}

// Ready mods to add one by one, each with its parameters as JSON.
class ModPicker {
  constructor(frame, offered, own) {
    this.specs = [];
    const select = frame.choice("Add mod", offered.map((mod) => mod.name), offered[0].name, () => this.#explain());
    this.select = select.querySelector("select");
    this.offered = offered;
    this.given = field("with", { placeholder: '{"words": ["foo"]}', size: 22 });
    this.said = h("span", { class: "wb-note" });
    this.list = h("span", { class: "wb-chips", role: "list", "aria-label": "Mods of the next run" });
    this.own = own;
    this.root = h("div", { class: "wb-tools" }, select, this.given.box, frame.button("Add", () => this.#add(), { title: "Add this mod to the next run" }), this.list, this.said);
    this.frame = frame;
    this.#explain();
    this.#draw();
  }
  #explain() {
    const mod = this.offered.find((each) => each.name === this.select.value);
    this.said.textContent = `${mod.name}(${mod.takes}): ${mod.said}`;
  }
  #add() {
    const given = this.given.input.value.trim();
    this.specs.push(given ? `${this.select.value}:${given}` : this.select.value);
    this.given.input.value = "";
    this.#draw();
  }
  #draw() {
    const chips = this.specs.map((spec, index) => h("span", { class: "wb-chip", role: "listitem" }, spec,
      this.frame.button("×", () => { this.specs.splice(index, 1); this.#draw(); }, { title: `Remove ${spec}`, "aria-label": `Remove ${spec}` })));
    const own = this.own.map((name) => h("span", { class: "wb-chip", role: "listitem" }, name));
    const none = own.length + chips.length ? [] : [h("span", { class: "wb-note", role: "listitem" }, "no mods")];
    this.list.replaceChildren(...own, ...chips, ...none);
  }
}

// What the loop is held after, and the likeliest tokens as buttons that force them.
function heldPanel(frame, held, act) {
  const words = held.tokens.map((label) => h("span", { class: "wb-word" }, labelNodes(label)));
  const chance = held.p === null ? null : ` (p ${num(held.p)})`;
  const head = h("p", { class: "wb-heldhead" }, h("b", {}, `Held after ${held.event}`), ` · step ${held.step}, position ${held.position} `, words, chance,
    held.acts ? "" : " Tokens can be forced or taken back from the first pass on.");
  const rows = held.candidates.map(([token, label, p]) => [
    h("button", { type: "button", class: "wb-link wb-word", onclick: () => act({ what: "force", token }), title: "Force this token", "aria-label": `Force ${plainLabel(label)}` }, labelNodes(label)),
    barred(p), h("button", { type: "button", class: "wb-link", onclick: () => act({ what: "ban", token }), "aria-label": `Ban ${plainLabel(label)}`, title: "Never draw this token in this run" }, "ban"),
  ]);
  return h("div", { class: "wb-held" }, head, ...(rows.length ? [table("Likeliest next tokens, before the mods; a press forces one", ["token", "p", ""], rows, { class: "wb-scroll wb-attended" })] : []));
}
