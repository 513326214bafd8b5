// Where an answer leads: a choice, and what the chosen kind needs.

const TARGETS = [
  ["null", "back to the text"], ["new", "a new question"], ["message", "write a message"], ["output", "set the whole output"], ["function", "call a function"],
  ["toolfn", "end with a tool call by a function"], ["tool", "end with a tool call"], ["summary", "write the summary"], ["noop", "do nothing"], ["flow", "enter a flow"],
];

function targetKind(data) {
  if (data === undefined) return "";
  if (data === null) return "null";
  if (data.flow) return "flow";
  if (data.question) return `q:${data.question}`;
  if ("message" in data || data.route === "message") return "message";
  if (data.route === "tool") return "function" in data ? "toolfn" : "tool";
  return data.route ?? "function";
}

class TargetForm {
  constructor(forms) {
    this.forms = forms;
  }
  // put(target) sets it, put(undefined) takes it away, fresh() makes a new question for it (if there can be one).
  build(key, label, data, { put, fresh, unset }) {
    const { forms } = this, { owner } = forms;
    const questions = h("optgroup", { label: "Questions" }, owner.order.map((name) => h("option", { value: `q:${name}` }, name)));
    const options = [...(unset ? [["", unset]] : []), questions, ...TARGETS.filter(([value]) => value !== "new" || fresh)];
    const select = forms.choice(key, label, options, targetKind(data), (kind) => this.#chosen(key, kind, { put, fresh, label }));
    return h("div", { class: "wb-target" }, select, this.#detail(key, label, data, put));
  }
  #chosen(key, kind, { put, fresh }) {
    const { owner, refusals } = this.forms;
    const first = owner.now.functions[0]?.name;
    const needs = kind === "function" || kind === "toolfn";
    if (needs && !first) {
      refusals.set(key, { message: 'No function is registered. Put @flow_function("a_name") above one, run that cell, and choose again.', value: "" });
      owner.inspector.draw();
      return;
    }
    if (kind === "new") return fresh();
    if (kind.startsWith("q:")) return put({ question: kind.slice(2) });
    const made = {
      null: null, message: { message: "" }, output: { route: "output", text: "" }, function: { function: first }, toolfn: { route: "tool", function: first },
      tool: { route: "tool", payload_text: '{"name": "a_tool"}' }, summary: { route: "summary" }, noop: { route: "noop" }, flow: { flow: { name: "inner", root: owner.selected } },
    };
    put(kind === "" ? undefined : made[kind]);
  }
  #detail(key, label, data, put) {
    const { forms } = this;
    const kind = targetKind(data);
    const text = (name, said_, field_, rows) => forms.field(`${key}-${name}`, `${label}: ${said_}`, data[field_], (typed) => put({ ...data, [field_]: typed }), { rows, live: true });
    if (kind === "message") return text("text", "text", "message" in data ? "message" : "text", 2);
    if (kind === "output") return text("text", "output", "text", 2);
    if (kind === "tool") return text("payload", "payload (JSON)", "payload_text", 3);
    if (kind === "function" || kind === "toolfn") return this.functions(`${key}-fn`, `${label}: function`, data.function, (name) => put({ ...data, function: name }));
    if (kind !== "flow") return null;
    const inner = (part) => put({ flow: { ...data.flow, ...part } });
    return h("div", {}, forms.field(`${key}-name`, `${label}: flow's name`, data.flow.name, (name) => inner({ name })),
      forms.choice(`${key}-root`, `${label}: begins with`, forms.owner.order.map((name) => [name, name]), data.flow.root, (root) => inner({ root })));
  }
  // A registered function by its name, with what it says of itself; put(undefined) where "none" may be chosen.
  functions(key, label, chosen, put, none) {
    const known = this.forms.owner.now.functions;
    const options = [...(none ? [["", none]] : []), ...known.map(({ name, takes }) => [name, `${name}(${takes})`])];
    const about = known.find(({ name }) => name === chosen)?.said;
    const empty = known.length ? null : said('None is registered: put @flow_function("a_name") above a function and run that cell.');
    return h("div", {}, this.forms.choice(key, label, options, chosen ?? "", (name) => put(name || undefined)), about ? said(about) : null, empty);
  }
}
