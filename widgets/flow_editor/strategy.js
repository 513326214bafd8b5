// What an answer may look like: one form per strategy, and a live preview of what may come next.

const NESTED = ["choices", "until", "chars", "list", "regex"];
const ESCAPES = { "\n": "\\n", "\t": "\\t", "\\": "\\\\" };
// Line breaks and tabs in one-line fields are written \n and \t.
const escaped = (text) => text.replace(/[\n\t\\]/g, (char) => ESCAPES[char]);
const unescaped = (text) => text.replace(/\\([nt\\])/g, (_, char) => ({ n: "\n", t: "\t", "\\": "\\" })[char]);

class StrategyForm {
  constructor(forms, fresh) {
    this.forms = forms;
    this.fresh = fresh; // by kind: what it is called, and one to begin with
  }
  // Fields for a strategy; commit(data) gets the whole of it.
  build(data, commit, key = "strategy", kinds = Object.keys(this.fresh)) {
    const { forms } = this;
    const change = (part) => commit({ ...data, ...part });
    const text = (name, label, value, options) => forms.field(`${key}-${name}`, label, escaped(value ?? ""), (typed) => change({ [name]: unescaped(typed) }), { title: "\\n is a line break, \\t a tab", ...options });
    const area = (name, label, value, rows) => forms.field(`${key}-${name}`, label, value, (typed) => change({ [name]: typed }), { rows, live: true, class: "wb-input wb-codefield" });
    const number = (name, label, value, empty) => forms.field(`${key}-${name}`, label, value ?? "", (typed) => change({ [name]: typed === "" ? empty : Number(typed) }), { type: "number", min: 0 });
    const select = (name, label, options, value) => forms.choice(`${key}-${name}`, label, options.map((each) => [each, each.replace("_", " ")]), value, (chosen) => change({ [name]: chosen }));
    const kind = forms.choice(key, key === "strategy" ? "Answers are" : "Each element is", kinds.map((each) => [each, this.fresh[each][0]]), data.kind, (chosen) => commit({ kind: chosen, ...this.fresh[chosen][1] }));
    const fields = {
      choices: () => [this.#texts(key, "answer", data.choices, (choices) => change({ choices }))],
      until: () => [text("start", "Begins with", data.start), select("end_type", "Ends at", ["tag", "anychar"], data.end_type), text("end", data.end_type === "tag" ? "this text" : "any of these", data.end)],
      chars: () => [
        select("mode", "Kind", ["alpha", "alphanumeric", "numeric", "string", "js_float"], data.mode), number("min", "At least", data.min, 0),
        forms.field(`${key}-stop`, "Stop", escaped(String(data.stop)), (typed) => change({ stop: /^\d+$/.test(typed) ? Number(typed) : unescaped(typed) }), { title: "A number: at most so many. Other text: up to where it appears." }),
      ],
      list: () => [
        ...(Array.isArray(data.elements)
          ? [forms.choice(`${key}-elements`, "Elements are", [["texts", "some texts"], ...NESTED.map((each) => [each, this.fresh[each][0]])], "texts", (chosen) => chosen !== "texts" && change({ elements: { kind: chosen, ...this.fresh[chosen][1] } })),
            this.#texts(key, "element", data.elements, (elements) => change({ elements }))]
          : [h("fieldset", { class: "wb-nested" }, h("legend", {}, "Each element"), this.build(data.elements, (elements) => change({ elements }), `${key}-e`, NESTED),
            forms.button(`${key}-plain`, "Some texts instead", () => change({ elements: this.fresh.list[1].elements })))]),
        text("open", "Opens with", data.open), text("close", "Closes with", data.close), text("wrap", "Round each", data.wrap), text("sep", "Between", data.sep),
        number("min", "At least", data.min, 0), number("max", "At most", data.max, null),
        forms.field(`${key}-end_with`, "Ends with", escaped(data.end_with ?? ""), (typed) => change({ end_with: typed === "" ? null : unescaped(typed) })),
      ],
      regex: () => [area("pattern", "Pattern", data.pattern, 2)],
      json: () => [area("schema", "JSON Schema", data.schema, 5)],
      grammar: () => [area("lark", "Grammar", data.lark, 5)],
    };
    return [kind, ...fields[data.kind]()];
  }
  // Texts to be reworded, ordered and removed, and a field for a new one.
  #texts(key, what, texts, commit) {
    const { forms } = this;
    const put = (index, value) => commit(texts.map((each, place) => (place === index ? value : each)));
    const swap = (index, other) => {
      const moved = [...texts];
      [moved[index], moved[other]] = [moved[other], moved[index]];
      commit(moved);
    };
    const line = (text, index) => h("div", { class: "wb-textline" },
      forms.field(`${key}-${what}-${index}`, `${what} ${index + 1}`, escaped(text), (typed) => put(index, unescaped(typed))),
      forms.button(`${key}-up-${index}`, "↑", () => index && swap(index, index - 1), `Move ${what} ${index + 1} up`),
      forms.button(`${key}-remove-${index}`, "×", () => commit(texts.filter((_, place) => place !== index)), `Remove ${what} ${index + 1}`));
    const add = forms.field(`${key}-${what}-new`, `New ${what}`, "", (typed) => typed && commit([...texts, unescaped(typed)]), { placeholder: "type, then Enter" });
    const input = add.querySelector("input");
    input.addEventListener("change", () => { if (!forms.refusals.has(input.dataset.key)) input.value = input.dataset.committed = ""; });
    return h("div", { class: "wb-texts", role: "group", "aria-label": `All ${what}s` }, texts.slice(0, 64).map(line), texts.length > 64 ? said(`and ${texts.length - 64} more`) : null, add);
  }
}

// What may come next, asked of Python whenever the strategy or the beginning changes.
class Preview {
  constructor(owner) {
    this.owner = owner;
    this.list = h("div", { class: "wb-allowed", role: "status" });
    this.input = h("input", { class: "wb-input", "aria-label": "Preview after", placeholder: "nothing yet", "data-key": "preview", spellcheck: "false" });
    this.input.dataset.committed = "";
    this.root = h("div", { class: "wb-preview" }, h("label", { class: "wb-field" }, h("span", { class: "wb-fieldname" }, "Allowed next, after"), this.input), this.list);
    owner.frame.listen(this.input, "input", () => this.#later(200));
    owner.frame.closers.push(() => clearTimeout(this.timer));
    this.asked = 0;
  }
  show(strategy) {
    const text = JSON.stringify(strategy);
    if (text === this.strategy) return;
    this.strategy = text;
    this.#later(0);
  }
  #later(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.owner.model.send({ type: "preview", asked: ++this.asked, strategy: this.strategy, so_far: unescaped(this.input.value) }), wait);
  }
  heard({ asked, error, words, answers, more, tokens, count, complete }) {
    if (asked !== this.asked) return;
    const chips = (labels) => h("span", { class: "wb-chips" }, labels.map((label) => h("span", { class: "wb-word wb-chip" }, labelNodes(label))));
    if (error) return void this.list.replaceChildren(h("span", { class: "wb-refused" }, error));
    const end = complete ? "may end here" : "can't end here";
    this.list.replaceChildren(said(`An answer is ${words}.`),
      ...(answers ? [answers.length ? h("div", {}, "Answers: ", chips(answers), more ? ` and ${more} more` : null) : h("div", {}, "No answer begins so.")] : []),
      ...(tokens ? [h("div", {}, `Next: ${count} token${count === 1 ? "" : "s"} allowed; ${end}. `, chips(tokens))] : [said("With a model (FlowEditor(flow, model)) the tokens that may come next are listed here.")]));
  }
}
