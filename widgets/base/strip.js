// Tokens as a strip of boxes in rows of equal height, of which only those in sight are drawn.

const ROW = 26; // pixels; also in parts.css
const P_EDGES = [0.9, 0.5, 0.2, 0.05, 0.01];
const H_EDGES = [0.1, 0.5, 1, 2, 4];
const SPECIAL = 1, GONE = 2;
const CONTINUED = { told: "" }; // a further row of a branch

// The items of a reading, page by page.
class Items {
  constructor(columns, origins) {
    this.columns = columns;
    this.origins = origins;
    this.clear();
  }
  clear() {
    this.count = 0;
    this.total = 0;
    this.data = Object.fromEntries(this.columns.map((name) => [name, []]));
    this.labels = [];
    this.by = [];
    this.tags = [];
    this.glyphs = new Map();
    this.branchAt = new Map();
    this.mods = new Map();
  }
  // Replaces everything from the page's start on.
  add(page) {
    const numbers = floats(page.numbers);
    this.count = page.start;
    this.total = page.total;
    for (const [index, name] of this.columns.entries()) {
      const column = this.data[name];
      column.length = page.start;
      for (let i = 0; i < page.count; i++) column.push(numbers[index * page.count + i]);
    }
    this.labels.length = this.by.length = this.tags.length = page.start;
    for (let i = page.start; i < page.start + page.count; i++) {
      this.labels.push(page.labels[this.data.label[i]]);
      const by = this.data.by[i] < 0 ? null : page.names[this.data.by[i]];
      this.by.push(by);
      if (by !== null && !this.mods.has(by)) this.mods.set(by, this.mods.size % 6);
      this.tags.push((page.tagged[i] ?? []).map((tag) => page.tags[tag]));
    }
    for (const old of [this.glyphs, this.branchAt]) for (const place of [...old.keys()]) if (place >= page.start) old.delete(place);
    for (const [place, glyph] of Object.entries(page.glyphs)) this.glyphs.set(Number(place), glyph);
    for (const branch of page.branches) this.branchAt.set(branch.start, branch);
    this.count = page.start + page.count;
  }
  origin(i) {
    return this.origins[this.data.origin[i]];
  }
  has(i, flag) {
    return (this.data.flags[i] & flag) !== 0;
  }
  // One token in words: for the tooltip, and for those who can't see the strip.
  told(i) {
    const { uid, position, p, model_p: model, entropy, removed_step: gone } = this.data;
    const parts = [`token ${uid[i]} '${plainLabel(this.labels[i])}' at ${position[i]}`, this.origin(i)];
    if (this.by[i] !== null) parts[1] += ` by ${this.by[i]}`;
    if (this.has(i, SPECIAL)) parts.push("special token");
    if (!Number.isNaN(p[i])) parts.push(`p ${num(p[i])}`);
    if (!Number.isNaN(model[i])) parts.push(`model p ${num(model[i])}`);
    if (!Number.isNaN(entropy[i])) parts.push(`entropy ${num(entropy[i])}`);
    if (gone[i] >= 0) parts.push(`taken back at step ${gone[i]}`);
    return parts.join(", ");
  }
}

const grade = (value, edges, rising) => edges.filter((edge) => (rising ? value >= edge : value < edge)).length;

class Strip {
  constructor(frame, items, { label, onselect, onmore, least = 1 }) {
    this.frame = frame;
    this.items = items;
    this.onselect = onselect;
    this.onmore = onmore;
    this.colour = "probability";
    this.cursor = 0;
    this.matches = null;
    this.least = least;
    this.height = "";
    this.rows = [];
    this.drawn = new Map();
    this.widths = new Map();
    this.body = h("div", { class: "wb-strip-body" });
    this.root = h("div", { class: "wb-strip", role: "listbox", tabindex: "0", "aria-label": label }, this.body);
    this.pen = document.createElement("canvas").getContext("2d");
    frame.listen(this.root, "scroll", () => this.draw(), { passive: true });
    frame.listen(this.root, "click", (event) => {
      const option = event.target.closest("[data-item]");
      if (option) this.select(Number(option.dataset.item));
    });
    frame.listen(this.root, "keydown", (event) => this.#key(event));
    const observer = new ResizeObserver(() => this.#resized());
    observer.observe(this.root);
    frame.closers.push(() => observer.disconnect());
  }

  #resized() {
    if (this.root.clientWidth && this.root.clientWidth !== this.width) this.layout();
    else this.draw();
  }

  // Rows ------------------------------------------------------------------------------------------------------

  #measure(text, small) {
    const key = small ? `s${text}` : text;
    if (!this.widths.has(key)) {
      this.pen.font = small ? this.smallFont : this.font;
      this.widths.set(key, this.pen.measureText(text).width);
    }
    return this.widths.get(key);
  }

  // What is written before a run of tokens that were not sampled.
  #byLabel(i) {
    const { data, by } = this.items;
    const same = i > 0 && data.origin[i] === data.origin[i - 1] && by[i] === by[i - 1]
      && this.items.has(i, GONE) === this.items.has(i - 1, GONE) && !this.items.branchAt.has(i);
    const origin = this.items.origin(i);
    if (same || origin === "sampled") return null;
    return by[i] === null ? origin : `${origin} by ${by[i]}`;
  }

  // Breaks the items into rows. A branch has rows of its own; so has the prompt; a line break ends one.
  layout() {
    this.rows = []; // also while it is hidden: rows of items that are gone must not be drawn
    this.#forget();
    this.width = this.root.clientWidth;
    if (!this.width) return;
    const style = getComputedStyle(this.root);
    this.font = `${style.fontSize} ${style.getPropertyValue("--wb-mono")}`;
    this.smallFont = `11px ${style.getPropertyValue("--wb-sans")}`;
    let row = null, used = 0, branchEnd = -1;
    const start = (i, branch) => {
      row = { parts: [], first: i, gone: branch !== null, told: branch?.told };
      this.rows.push(row);
      used = branch ? 44 + (branch.told ? this.#measure(branch.told, true) + 12 : 0) : 20;
    };
    for (let i = 0; i < this.items.count; i++) {
      const branch = this.items.branchAt.get(i) ?? null;
      const leavesPrompt = i > 0 && this.items.data.origin[i - 1] === 0 && this.items.data.origin[i] !== 0;
      const branchGoes = i < branchEnd;
      if (branch) {
        branchEnd = i + branch.count;
        start(i, branch);
      } else if (row === null || i === branchEnd || leavesPrompt) start(i, branchGoes ? CONTINUED : null);
      const by = this.#byLabel(i);
      const label = plainLabel(this.items.labels[i]);
      const glyph = this.items.glyphs.get(i);
      const need = Math.ceil(this.#measure(label) + (glyph ? this.#measure(plainLabel(glyph)) + 6 : 0)) + 12 + (by ? this.#measure(by, true) + 10 : 0);
      if (used + need > this.width && row.parts.length) start(i, row.gone ? CONTINUED : null);
      if (by) row.parts.push(by);
      row.parts.push(i);
      used += need;
      if (this.items.labels[i].includes(`${MARK_START}↵`)) row = null;
    }
    this.body.style.height = `${this.rows.length * ROW + 8}px`;
    // As high as its rows, up to a bound, until a person drags it.
    if (this.root.style.height === this.height) {
      this.height = this.root.style.height = `${Math.min(Math.max(this.rows.length, this.least), 12) * ROW + 12}px`;
    }
    this.draw();
  }

  rowOf(item) {
    let low = 0, high = this.rows.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.rows[middle].first <= item) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  #forget() {
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
  }

  draw() {
    if (!this.rows.length) {
      this.#forget();
      return;
    }
    const first = Math.max(Math.floor(this.root.scrollTop / ROW) - 8, 0);
    const last = Math.min(Math.ceil((this.root.scrollTop + this.root.clientHeight) / ROW) + 8, this.rows.length);
    for (const [index, element] of this.drawn) {
      if (index < first || index >= last) {
        element.remove();
        this.drawn.delete(index);
      }
    }
    for (let index = first; index < last; index++) {
      if (!this.drawn.has(index)) {
        const element = this.#row(index);
        this.drawn.set(index, element);
        this.body.append(element);
      }
    }
    this.#mark();
    if (last > this.rows.length - 40 && this.items.count < this.items.total) this.onmore?.(this.items.count);
  }

  #row(index) {
    const row = this.rows[index];
    const element = h("div", {
      class: `wb-row ${row.gone ? "wb-gone" : ""}`, role: "presentation", style: `top:${index * ROW + 4}px`,
    });
    if (row.told) element.append(h("span", { class: "wb-by wb-taken", "aria-hidden": "true" }, row.told));
    for (const part of row.parts) {
      element.append(typeof part === "number" ? this.#token(part) : h("span", { class: "wb-by", "aria-hidden": "true" }, part));
    }
    return element;
  }

  #token(i) {
    const { items } = this;
    const classes = ["wb-t", this.shade(i), `wb-${items.origin(i)}`];
    if (items.has(i, SPECIAL)) classes.push("wb-special");
    if (this.matches && !this.matches(i)) classes.push("wb-dim");
    if (items.parted === i) classes.push("wb-parted");
    const share = this.#share(i);
    const told = items.told(i);
    const token = h("span", {
      class: classes.join(" "), role: "option", "data-item": i, id: this.#id(i), title: told, "aria-label": told,
      "aria-selected": String(i === this.cursor), "aria-setsize": items.total, "aria-posinset": i + 1,
      style: share === null ? null : `--share:${share.toFixed(1)}%`,
    }, labelNodes(items.labels[i]));
    const glyph = items.glyphs.get(i);
    if (glyph) token.append(h("b", { class: "wb-glyph" }, labelNodes(glyph)));
    return token;
  }

  #id(i) {
    return `${this.frame.id}-${this.root.dataset.side ?? 0}-${i}`;
  }

  // Colours: never alone. Each box also has a bar whose length says the same, or a label before it.
  shade(i) {
    const { data, mods, by } = this.items;
    if (this.colour === "mod") return by[i] === null ? "wb-ku" : `wb-m${mods.get(by[i])}`;
    if (this.colour === "origin") return `wb-o${data.origin[i]}`;
    const value = this.colour === "entropy" ? data.entropy[i] : data.model_p[i];
    if (Number.isNaN(value)) return "wb-ku";
    return this.colour === "entropy" ? `wb-e${grade(value, H_EDGES, true)}` : `wb-k${grade(value, P_EDGES, false)}`;
  }
  #share(i) {
    const { data } = this.items;
    if (this.colour === "probability") return Number.isNaN(data.model_p[i]) ? null : 100 * data.model_p[i];
    if (this.colour === "entropy") return Number.isNaN(data.entropy[i]) ? null : 100 * Math.min(data.entropy[i] / 6, 1);
    return null;
  }

  // Cursor ------------------------------------------------------------------------------------------------------

  #mark() {
    const old = this.body.querySelector("[aria-selected=true]");
    if (old && Number(old.dataset.item) !== this.cursor) old.setAttribute("aria-selected", "false");
    const now = this.body.querySelector(`[data-item="${this.cursor}"]`);
    now?.setAttribute("aria-selected", "true");
    if (now) this.root.setAttribute("aria-activedescendant", now.id);
    else this.root.removeAttribute("aria-activedescendant");
  }

  select(item, { quiet = false } = {}) {
    if (!this.items.count) return;
    this.cursor = Math.min(Math.max(item, 0), this.items.count - 1);
    if (this.rows.length) {
      const top = this.rowOf(this.cursor) * ROW;
      if (top < this.root.scrollTop) this.root.scrollTop = top;
      else if (top + ROW + 8 > this.root.scrollTop + this.root.clientHeight) this.root.scrollTop = top + ROW + 8 - this.root.clientHeight;
      this.draw();
    }
    if (!quiet) this.onselect(this.cursor);
  }

  // To the next item that the filter lets through; true if there is one.
  jump(step) {
    for (let i = this.cursor + step; i >= 0 && i < this.items.count; i += step) {
      if (!this.matches || this.matches(i)) {
        this.select(i);
        return true;
      }
    }
    return false;
  }

  refresh() {
    this.#forget();
    this.draw();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {
      ArrowLeft: () => this.select(this.cursor - 1), ArrowRight: () => this.select(this.cursor + 1),
      PageUp: () => this.select(this.cursor - 25), PageDown: () => this.select(this.cursor + 25),
      Home: () => this.select(0), End: () => this.select(this.items.count - 1),
    };
    if (!moves[event.key]) return;
    moves[event.key]();
    event.preventDefault();
  }
}

// What the colours mean, in words.
function stripLegend(strip) {
  const box = (kind, text) => h("span", { class: `wb-t ${kind}` }, text);
  const scale = (name, edges, prefix, below, above) => [
    h("span", {}, name), ...[...edges.keys()].map((i) => box(`${prefix}${i}`, i ? `${below} ${edges[i - 1]}` : `${above} ${edges[0]}`)),
    box(`${prefix}${edges.length}`, `${below} ${edges.at(-1)}`), box("wb-ku", "not known"),
  ];
  const kinds = {
    probability: () => scale("The model's own probability (also the bar's length):", P_EDGES, "wb-k", "below", "from"),
    entropy: () => scale("Entropy in nats (also the bar's length):", H_EDGES, "wb-e", "from", "below"),
    origin: () => [h("span", {}, "Origin:"), ...strip.items.origins.map((name, i) => box(`wb-o${i} wb-${name}`, name))],
    mod: () => [h("span", {}, "Put there by:"), ...[...strip.items.mods].map(([name, i]) => box(`wb-m${i}`, name)), box("wb-ku", "the model or the prompt")],
  };
  return h("p", { class: "wb-legend" }, ...kinds[strip.colour](), h("span", { class: "wb-t wb-ku wb-struck" }, "taken back"), h("span", { class: "wb-t wb-ku wb-special" }, "special"));
}
