// Shared by all windows: elements made node by node, legible labels, numbers, theme, errors, messages, help.

const MARK_START = "\ue000", MARK_END = "\ue001";

// An element. Properties that begin with "on" are listeners, others attributes; children are nodes or text.
function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// A token's label as nodes: what stands for something invisible is slanted, so that no text can imitate it.
function labelNodes(label) {
  const nodes = [];
  for (const [index, part] of label.split(MARK_START).entries()) {
    const [mark, rest] = index ? part.split(MARK_END) : [null, part];
    if (mark !== null) nodes.push(h("i", { class: "wb-mark" }, mark));
    if (rest) nodes.push(document.createTextNode(rest));
  }
  return nodes;
}

const plainLabel = (label) => label.replaceAll(MARK_START, "").replaceAll(MARK_END, "");

// Whole numbers whole, others to four significant digits, a dash for none: as Python's workbench.reports.number.
function num(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  let [digits, power] = value.toExponential(3).split("e");
  // An exact tie goes to the even digit, as in Python; toExponential takes the larger.
  const [exact, exactPower] = value.toExponential(20).split("e");
  const cut = exact.indexOf(".") + 4;
  if (/^50*$/.test(exact.slice(cut)) && Number(exact[cut - 1]) % 2 === 0) [digits, power] = [exact.slice(0, cut), exactPower];
  const trimmed = digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
  if (power >= -4 && power < 4) return String(Number(`${digits}e${power}`));
  const size = String(Math.abs(power)).padStart(2, "0");
  return `${trimmed}e${power < 0 ? "-" : "+"}${size}`;
}

// Numbers of a message as float32, copied so that they are aligned.
function floats(view) {
  if (!view) return new Float32Array(0);
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

// Light or dark, as JupyterLab, VS Code or the system say.
function isDark() {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight !== undefined) return jpThemeLight === "false";
  if (vscodeThemeKind !== undefined) return vscodeThemeKind.includes("dark") || vscodeThemeKind === "vscode-high-contrast";
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

let windowsMade = 0;

// How long a kernel may say nothing before a window mentions it, milliseconds.
const SILENCE = 3000;

// The outside of a window: root element, header with title and buttons, error row, warnings, status line, help.
class Frame {
  constructor({ model, el, kind, title, keys }) {
    this.model = model;
    this.id = `wb${++windowsMade}`;
    this.closers = [];
    this.themed = [];
    this.status = h("p", { class: "wb-status", role: "status" });
    this.spoken = h("p", { class: "wb-spoken", "aria-live": "polite" });
    this.keys = this.#help(keys);
    this.error = h("div", { class: "wb-error", role: "alert", hidden: true });
    this.notices = h("div", { class: "wb-notices", role: "status", hidden: true });
    this.silent = h("div", { class: "wb-notices wb-silent", role: "status", hidden: true });
    this.title = h("div", { class: "wb-title", role: "heading", "aria-level": "3" }, title);
    this.buttons = h("div", { class: "wb-buttons" });
    this.helpButton = this.button("?", () => this.help(), { title: "List the keys (?)", "aria-label": "List the keys" });
    this.head = h("div", { class: "wb-head" }, this.title, this.buttons, this.helpButton);
    this.body = h("div", { class: "wb-body" });
    this.root = h("div", {
      class: `wb wb-${kind}`, role: "group", "aria-label": title, "data-lm-suppress-shortcuts": "true",
    }, this.head, this.error, this.notices, this.keys, this.body, this.silent, this.status, this.spoken);
    this.listen(this.root, "keydown", (event) => this.#key(event));
    el.append(this.root);
    this.#theme();
    this.#hideFallback();
    this.#row(this.error, "error", "");
    this.#row(this.notices, "notices", []);
    this.#ping();
  }

  // What a window draws anew when its state changes: what hung on the old drawing ends here.
  begin() {
    if (this.outer) for (const closer of this.closers.splice(0)) closer();
    else this.outer = this.closers;
    this.closers = [];
    this.themed = [];
  }
  // Everything that is to end with the view goes through these two.
  listen(target, type, handler, options) {
    target.addEventListener(type, handler, options);
    this.closers.push(() => target.removeEventListener(type, handler, options));
  }
  on(name, handler) {
    this.model.on(name, handler);
    this.closers.push(() => this.model.off(name, handler));
  }
  close() {
    for (const closer of [...(this.outer ?? []), ...this.closers].splice(0)) closer();
    this.root.remove();
  }

  button(text, action, properties) {
    return h("button", { type: "button", class: "wb-button", onclick: action, ...properties }, text);
  }
  // A labelled choice; options are values, or pairs of value and text.
  choice(label, options, chosen, action) {
    const select = h("select", { class: "wb-select", "aria-label": label, onchange: () => action(select.value) });
    for (const option of options) {
      const [value, text] = Array.isArray(option) ? option : [option, option];
      select.append(h("option", { value, selected: value === chosen }, text));
    }
    return h("label", { class: "wb-choice" }, h("span", {}, label), select);
  }

  say(text) {
    this.spoken.textContent = text;
  }
  tell(text) {
    this.status.textContent = text;
  }
  // Shows code with a button that copies it; works where a page may not write to the clipboard.
  showCode(text) {
    const box = h("pre", { class: "wb-code", tabindex: "0", role: "region", "aria-label": "Code for a cell" }, text);
    const done = () => this.tell("Copied. Paste it into a cell.");
    navigator.clipboard?.writeText(text).then(done, () => this.tell("Select the code and copy it."));
    const close = this.button("Close", () => panel.remove(), { title: "Close the code" });
    this.root.querySelector(".wb-codepanel")?.remove();
    const panel = h("div", { class: "wb-codepanel" }, box, close);
    this.head.after(panel);
    box.focus();
  }
  help() {
    this.keys.hidden = !this.keys.hidden;
    this.helpButton.setAttribute("aria-expanded", String(!this.keys.hidden));
    if (!this.keys.hidden) this.keys.focus();
  }

  #help(keys) {
    const rows = keys.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]);
    return h("dl", { class: "wb-keys", hidden: true, tabindex: "-1", "aria-label": "Keys" }, rows);
  }
  // Keys of ours are nobody else's; keys typed into a field belong to the field.
  #key(event) {
    event.stopPropagation();
    if (isField(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "?") this.help();
    else if (event.key === "Escape" && !this.keys.hidden) this.help();
    else return;
    event.preventDefault();
  }
  // What Python says beside the picture, until it is dismissed: an error, or warnings.
  #row(row, name, none) {
    const show = () => {
      const texts = [this.model.get(name)].flat().filter(Boolean);
      row.hidden = !texts.length;
      const dismiss = this.button("Dismiss", () => {
        this.model.set(name, none);
        this.model.save_changes();
      }, { title: "Dismiss this message" });
      row.replaceChildren(h("div", {}, texts.map((text) => h("p", {}, text))), dismiss);
    };
    this.on(`change:${name}`, show);
    show();
  }
  // Ask whether anybody is there. Where a view is drawn and nobody answers, the HTML form can be had as well.
  #ping() {
    const plain = this.button("Show the plain form", () => {
      this.root.dataset.plain = "";
      for (const form of this.forms) form.hidden = false;
    }, { title: "The same content without a kernel" });
    this.silent.append(h("p", {}, "No answer from the kernel: it is busy or gone. What is drawn stays; details come when it answers."), plain);
    const timer = setTimeout(() => { this.silent.hidden = false; }, SILENCE);
    this.closers.push(() => clearTimeout(timer));
    this.on("msg:custom", ({ type }) => {
      if (type !== "pong") return;
      clearTimeout(timer);
      this.silent.hidden = true;
      if (this.root.dataset.plain === undefined) return;
      delete this.root.dataset.plain;
      for (const form of this.forms) form.hidden = true;
    });
    this.model.send({ type: "ping" });
  }
  #theme() {
    const apply = () => {
      const theme = isDark() ? "dark" : "light";
      if (this.root.dataset.theme === theme) return;
      this.root.dataset.theme = theme;
      // The host's style sheets come a moment after the theme's name, and nothing has a size meanwhile.
      clearTimeout(this.repaint);
      this.repaint = setTimeout(() => this.themed.forEach((redraw) => redraw()), 200);
    };
    const observer = new MutationObserver(apply);
    observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
    this.closers.push(() => observer.disconnect(), () => clearTimeout(this.repaint));
    this.listen(window.matchMedia("(prefers-color-scheme: dark)"), "change", apply);
    apply();
  }
  // Front ends other than JupyterLab (where a style does it) show the HTML form above the view: not while we are here.
  #hideFallback() {
    this.forms = document.querySelectorAll(`.wb-fallback[data-window="${CSS.escape(this.model.get("window_id"))}"]`);
    for (const form of this.forms) form.hidden = true;
    this.closers.push(() => this.forms.forEach((form) => { form.hidden = false; }));
  }
}

const isField = (element) => element.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable=true]");

// Questions to Python, one at a time: the newest waits until the answer to the last one is there.
class Link {
  constructor(frame) {
    this.frame = frame;
    this.asked = 0;
    this.answered = 0;
    this.next = null;
    frame.closers.push(() => clearTimeout(this.timer));
  }
  ask(content) {
    if (this.answered < this.asked) {
      this.next = content;
      return;
    }
    this.asked += 1;
    this.frame.model.send({ ...content, asked: this.asked });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.frame.tell("The kernel is busy or gone: details come when it answers."), 1500);
  }
  // To be called with every answer; returns whether a newer question was waiting (and is asked now).
  heard(asked) {
    if (asked !== undefined && asked !== this.asked) return false;
    this.answered = this.asked;
    clearTimeout(this.timer);
    this.frame.tell("");
    const next = this.next;
    this.next = null;
    if (next) this.ask(next);
    return next !== null;
  }
}

// A table that scrolls by itself and can be reached by keyboard. Its caption stands above it, so that it can wrap.
function table(caption, columns, rows, properties) {
  const head = h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)));
  const body = rows.map((cells) => (cells instanceof Element ? cells : h("tr", {}, cells.map((cell) => h("td", {}, ...[cell].flat())))));
  const scroll = h("div", { class: "wb-scroll", role: "region", tabindex: "0", "aria-label": caption, ...properties },
    h("table", { "aria-label": caption }, h("thead", {}, head), h("tbody", {}, body)));
  return h("div", {}, h("p", { class: "wb-note", "aria-hidden": "true" }, caption), scroll);
}

// A number with a bar of its length (0 to 1) behind it.
function barred(value, kind) {
  const share = Math.min(Math.max(value ?? 0, 0), 1) * 100;
  return h("span", { class: `wb-bar ${kind ?? ""}`, style: `--share:${share.toFixed(2)}%` }, num(value));
}
