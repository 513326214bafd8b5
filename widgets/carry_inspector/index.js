// CarryInspector: six tabs on one trace, a cursor that they share, and one study at a time.

const KEYS = [
  ["← →, Home, End", "choose a state, in the chain; choose a tab, in the row of tabs"], ["Enter", "follow a token, in its field"], ["x", "stop what is being measured"], ["?", "this list"], ["Esc", "close this list"],
];
const STUDIES = { effects: "effects", lens: "the Jacobian lens", controls: "controls", layers: "every layer", check: "the slow scan", ablated: "ablated runs" };

class InspectorWindow {
  constructor(model, el) {
    this.model = model;
    const frame = this.frame = new Frame({ model, el, kind: "carry", title: "Carry inspector", keys: KEYS });
    frame.buttons.append(frame.button("Copy as code", () => frame.showCode(this.code()), { title: "Python that gives this tab's numbers" }));
    frame.on("msg:custom", (content) => this.heard(content));
    frame.listen(frame.root, "keydown", (event) => {
      if (event.key === "x" && !isField(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey) this.model.send({ type: "stop" });
    });
    this.link = new Link(frame);
    this.work = { state: "idle", done: 0, total: 1 };
    this.column = 0;
    this.tab = 0;
    this.build(model.get("state"));
    model.send({ type: "hello" });
  }

  build(state) {
    const { frame } = this;
    this.state = state;
    this.prose = state.prose;
    this.promptLength = Object.fromEntries(state.facts)["prompt tokens"];
    this.busybar = h("div", { class: "wb-busy", hidden: true });
    this.read = new ReadTab(this);
    this.motionTab = new MotionTab(this);
    this.attentionTab = new AttentionTab(this);
    this.need = new NeedTab(this);
    this.bandTab = new BandTab(this);
    this.costTab = new CostTab(this);
    this.panes = [["What can be read", this.read, ["chain()", "concepts()", "trajectories()"]], ["How states move", this.motionTab, ["dynamics()", "loops()", "orbit()"]], ["Where steps look", this.attentionTab, ["attention()"]],
      ["What is needed", this.need, ["effects('zero')", "results()", "controls()"]], ["Band", this.bandTab, ["layers()", "gradients()"]], ["Cost", this.costTab, ["cost()", "check()"]]];
    this.tabs = this.panes.map(([name], i) => h("button", { type: "button", role: "tab", class: "wb-tab", id: `${frame.id}-tab${i}`, "aria-controls": `${frame.id}-pane${i}`, onclick: () => this.show(i) }, name));
    const list = h("div", { class: "wb-tabs", role: "tablist", "aria-label": "Views", onkeydown: (event) => this.tabKey(event) }, this.tabs);
    this.panes.forEach(([, pane], i) => {
      pane.root.id = `${frame.id}-pane${i}`;
      pane.root.setAttribute("role", "tabpanel");
      pane.root.setAttribute("aria-labelledby", `${frame.id}-tab${i}`);
    });
    this.column = state.read.loops - 1;
    this.read.show(state.read);
    this.need.donors = state.donors;
    this.need.open();
    this.bandTab.open();
    this.costTab.show(state.costs);
    frame.body.replaceChildren(h("p", { class: "wb-sidetitle" }, state.title), this.bandStrip(), ...state.notes.map((text) => h("p", { class: "wb-verdict wb-warned" }, text)), list, this.busybar, ...this.panes.map(([, pane]) => pane.root));
    this.show(0);
  }
  // The model's layers in a row: before the band, the band, after it.
  bandStrip() {
    const { band: [first, last], n_layers: count, facts } = this.state;
    const layer = (i) => h("span", { class: i < first ? "wb-layer" : i < last ? "wb-layer wb-inband" : "wb-layer", title: `layer ${i}${i >= first && i < last ? ", in the band" : ""}` });
    const strip = h("span", { class: "wb-layers-row", role: "img", "aria-label": `${count} layers, of which ${first} to ${last - 1} are the band` }, [...Array(count).keys()].map(layer));
    return h("div", { class: "wb-about" }, strip, factsList(facts));
  }

  show(tab) {
    this.tab = tab;
    this.panes.forEach(([, pane], i) => { pane.root.hidden = i !== tab; });
    this.tabs.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === tab));
      button.tabIndex = i === tab ? 0 : -1;
    });
    if (tab === 0) this.read.select(this.column);
  }
  tabKey(event) {
    const to = { ArrowLeft: this.tab - 1, ArrowRight: this.tab + 1, Home: 0, End: this.tabs.length - 1 }[event.key];
    if (to === undefined) return;
    this.show((to + this.tabs.length) % this.tabs.length);
    this.tabs[this.tab].focus();
    event.preventDefault();
  }
  select(column) {
    this.column = column;
    this.read.select(column);
    this.motionTab.select(column);
    this.frame.say(this.read.told(column));
  }

  // A button that begins a study; all of them rest while one runs.
  studyButton(study, text, title, given) {
    const button = this.frame.button(text, () => this.begin(study, given?.()), { title, class: "wb-button wb-study" });
    button.disabled = this.isBusy();
    return button;
  }
  isBusy() {
    return this.work.state === "running" || this.work.state === "stopping";
  }
  begin(study, given) {
    if (this.isBusy()) return;
    this.worked({ state: "running", study, done: 0, total: 1 }); // so that a second press before the answer does nothing
    this.busybar.querySelector("button").focus(); // the pressed button rests now, and would leave the focus nowhere
    this.model.send({ type: "start", study, ...given });
  }
  worked(work) {
    const was = this.isBusy();
    this.work = work;
    const busy = this.isBusy(), what = STUDIES[work.study], focused = this.busybar.contains(document.activeElement);
    for (const button of this.frame.root.querySelectorAll(".wb-study")) button.disabled = busy;
    this.busybar.hidden = !busy;
    if (busy) {
      const share = Math.min(work.done / Math.max(work.total, 1), 0.99);
      if (!was) {
        this.bar = h("progress", { max: 1, "aria-label": "Progress" });
        this.said = h("span", { role: "status" });
        this.busybar.replaceChildren(this.said, this.bar, this.frame.button("Stop", () => this.model.send({ type: "stop" }), { title: "Stop (x)" }));
      }
      this.bar.value = share;
      this.said.textContent = work.state === "stopping" ? `Stopping ${what}…` : `Measuring ${what}: ${Math.floor(100 * share)} %`;
    } else if (was) {
      if (focused) this.tabs[this.tab].focus();
      this.frame.say(`${what}: ${work.state === "failed" ? "failed" : "ended"}`);
    }
  }

  heard(content) {
    const { type } = content;
    if (type === "work") this.worked(content);
    else if (type === "read") this.read.show(content);
    else if (type === "motion") {
      this.motion = content;
      this.motionTab.show(content);
      this.read.select(this.column);
    } else if (type === "orbit") {
      this.motionTab.orbit(content);
      this.need.donors = content.donors;
      if (this.need.kind === "patch") this.need.open();
    } else if (type === "attention") {
      if (!this.link.heard(content.asked ?? undefined)) this.attentionTab.show(content);
    } else if (type === "band") {
      if (!this.link.heard(content.asked ?? undefined)) this.bandTab.verdict(content.warning);
    } else if (type === "effects") this.need.showEffects(content);
    else if (type === "controls") this.need.controls(content);
    else if (type === "layers") this.bandTab.show(content);
    else if (type === "costs") this.costTab.show(content);
    else if (type === "failed") {
      this.link.heard();
      if (content.of === "start") this.worked({ state: "failed", study: this.work.study, done: 0, total: 1 });
    }
  }
  code() {
    const calls = this.panes[this.tab][2].map((call) => `inspector.${call}`);
    return `from widgets import CarryInspector\n\ninspector = CarryInspector(model, ${this.state.code.given})\n${calls.join("\n")}`;
  }
}

function render({ model, el }) {
  const view = new InspectorWindow(model, el);
  return () => view.frame.close();
}

export default { render };
