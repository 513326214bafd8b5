// TraceExplorer: strips on top, the chosen token's details below.

const KEYS = [
  ["← →", "previous, next token"], ["Page Up, Page Down", "25 tokens back, on"], ["Home, End", "first, last token"],
  ["↑ ↓", "layer above, below"], ["n, p", "next, previous token that the filter lets through"], ["d", "first difference of two traces"],
  ["t", "tokens as a table"], ["?", "this list"], ["Esc", "close this list"],
];

class Explorer {
  constructor(model, el) {
    this.model = model;
    this.frame = new Frame({ model, el, kind: "explorer", title: "Trace explorer", keys: KEYS });
    this.layer = null; // the layer asked for, as an index; `shown` is the nearest that a detail has
    this.filters = { mod: "", action: "", origin: "" };
    this.frame.buttons.append(
      this.frame.button("Tokens as table", () => this.toggleTable(), { "aria-expanded": "false", class: "wb-button wb-tabletoggle" }),
      this.frame.button("Copy as code", () => this.detail && this.frame.showCode(this.detail.code), { title: "Python that gives the same numbers" }),
    );
    this.frame.on("change:state", () => this.build());
    this.frame.on("change:chosen", () => this.choose());
    this.frame.on("msg:custom", (content, buffers) => this.heard(content, buffers));
    this.frame.listen(this.frame.root, "keydown", (event) => this.key(event));
    this.build();
  }

  build() {
    const state = this.model.get("state");
    if (!state.sides) return;
    this.frame.begin();
    this.link = new Link(this.frame);
    this.state = state;
    this.side = 0;
    this.strips = state.sides.map((side, index) => this.strip(side, index));
    const { frame } = this;
    frame.itemName = (i) => String(this.strips[this.side].items.data.uid[i]);
    this.heat = state.sides[0].layers.length
      ? new NormHeat(frame, { onpick: (item, layer) => { this.layer = layer; this.strips[0].select(item); } }) : null;
    if (this.heat) this.heat.cursor = this.strips[0].cursor;
    this.tools = h("div", { class: "wb-tools" });
    this.legend = h("div");
    this.table = h("div", { hidden: true });
    this.details = h("div", { class: "wb-details" });
    const strips = this.strips.map((strip, index) => h("div", { class: "wb-side" },
      h("p", { class: "wb-sidetitle" }, h("b", {}, state.sides[index].title), ` · ${state.sides[index].told}`), strip.root));
    const parting = state.parting ? h("p", { class: "wb-parting" }, state.parting.told,
      state.parting.items ? frame.button("Go there", () => this.part(), { title: "Go to the first difference (d)" }) : null) : null;
    frame.body.replaceChildren(this.tools, ...strips, ...[parting, this.legend, this.table, this.heat?.root, this.details].filter(Boolean));
    this.colour(state.colour);
    this.retool();
    this.show(state.detail);
    requestAnimationFrame(() => this.settle());
  }

  strip(side, index) {
    const items = new Items(this.state.columns, this.state.origins);
    items.add(side.page);
    items.parted = this.state.parting?.items?.[index];
    const strip = new Strip(this.frame, items, {
      label: `Tokens, ${side.title}`,
      onselect: (item) => this.selected(index, item),
      onmore: (start) => this.more(index, start),
    });
    strip.root.dataset.side = index;
    strip.cursor = side.begin;
    this.frame.listen(strip.root, "focus", () => this.selected(index, strip.cursor));
    return strip;
  }

  // After the first paint: the cursor into sight, norms and further pages fetched.
  settle() {
    for (const strip of this.strips) {
      strip.layout();
      strip.select(strip.cursor, { quiet: true });
    }
    if (this.heat) this.model.send({ type: "norms", side: 0 });
    this.strips.forEach((strip, index) => this.more(index, strip.items.count));
    this.choose();
  }
  // Where Python put the cursor; an item that is not here yet is waited for.
  choose() {
    const [item] = this.model.get("chosen"), [strip] = this.strips;
    this.awaited = item >= strip.items.count ? item : null;
    if (item < strip.items.count) strip.select(item);
  }
  more(side, start) {
    const { items } = this.strips[side];
    if (start >= items.total || items.asked === start) return;
    items.asked = start;
    this.model.send({ type: "page", side, start });
  }

  // Tools -----------------------------------------------------------------------------------------------------

  retool() {
    const { frame, state } = this;
    const tags = new Set(this.strips.flatMap((strip) => strip.items.tags.flat()));
    const names = (kind) => [["", "all"], ...[...tags].filter((tag) => tag.startsWith(`${kind}:`)).map((tag) => [tag.slice(kind.length + 1), tag.slice(kind.length + 1).replaceAll("_", " ")])];
    const choose = (kind) => (value) => {
      this.filters[kind] = value;
      this.filter();
    };
    this.count = h("span", { class: "wb-count" });
    this.tools.replaceChildren(
      ...(state.requests.length > 1 ? [frame.choice("Request", state.requests, state.request, (request) => this.model.send({ type: "request", request }))] : []),
      frame.choice("Colour by", state.colours, this.colourBy, (value) => this.colour(value)),
      frame.choice("Mod", names("mod"), this.filters.mod, choose("mod")),
      frame.choice("Action", names("action"), this.filters.action, choose("action")),
      frame.choice("Origin", [["", "all"], ...state.origins], this.filters.origin, choose("origin")),
      frame.button("‹", () => this.jump(-1), { title: "Previous match (p)", "aria-label": "Previous match" }),
      frame.button("›", () => this.jump(1), { title: "Next match (n)", "aria-label": "Next match" }),
      this.count,
    );
    this.filter();
  }

  colour(value) {
    this.colourBy = value;
    for (const strip of this.strips) {
      strip.colour = value;
      strip.refresh();
    }
    this.legend.replaceChildren(stripLegend(this.strips[0]));
  }

  filter() {
    const { mod, action, origin } = this.filters;
    const active = Boolean(mod || action || origin);
    for (const strip of this.strips) {
      const { items } = strip;
      strip.matches = active ? (i) => (!mod || items.tags[i].includes(`mod:${mod}`)) && (!action || items.tags[i].includes(`action:${action}`)) && (!origin || items.origin(i) === origin) : null;
      strip.refresh();
    }
    const { items, matches } = this.strips[0];
    const found = active ? [...Array(items.count).keys()].filter(matches).length : items.count;
    this.count.textContent = `${found} of ${items.count} tokens${items.count < items.total ? ` (${items.total - items.count} more being fetched)` : ""}`;
  }
  jump(step) {
    if (!this.strips[this.side].jump(step)) this.frame.tell("No further match in that direction.");
  }
  part() {
    this.state.parting?.items?.forEach((item, side) => {
      if (item !== null) this.strips[side].select(item, { quiet: side > 0 });
    });
  }

  toggleTable(from) {
    const open = from !== undefined || this.table.hidden;
    const { items, cursor } = this.strips[this.side];
    this.table.hidden = !open;
    this.frame.root.querySelector(".wb-tabletoggle").setAttribute("aria-expanded", String(open));
    this.table.replaceChildren(...(open ? [itemsTable(items, from ?? cursor, (place) => this.toggleTable(place))] : []));
  }

  // Cursor ------------------------------------------------------------------------------------------------------

  selected(side, item) {
    this.side = side;
    if (this.strips.length === 1) this.heat?.move(item);
    this.frame.say(this.strips[side].items.told(item));
    this.ask(this.attention?.layer, this.attention?.head);
  }
  ask(layer, head) {
    const item = this.strips[this.side].cursor;
    this.details.setAttribute("aria-busy", "true");
    this.link.ask({ type: "detail", side: this.side, item, layer, head });
  }

  heard(content, buffers) {
    const strip = this.strips[content.side ?? 0];
    if (content.type === "detail") {
      if (content.attention && buffers[0]) content.attention.weights = buffers[0];
      if (!this.link.heard(content.asked ?? undefined) && content.side === this.side && content.item === strip.cursor) this.show(content);
    } else if (content.type === "failed") {
      this.link.heard();
      this.details.removeAttribute("aria-busy");
    } else if (content.type === "page" && content.start === strip.items.count) {
      strip.items.add({ ...content, numbers: buffers[0] });
      strip.layout();
      this.retool();
      this.more(content.side, strip.items.count);
      if (content.side === 0 && this.awaited !== null) this.choose();
    } else if (content.type === "norms" && content.side === 0) {
      this.heat?.add(content, floats(buffers[0]));
    }
  }

  show(detail) {
    this.detail = detail;
    this.details.removeAttribute("aria-busy");
    if (!detail) {
      this.details.replaceChildren(note("This request has no tokens. Run the session first, then make the window again."));
      return;
    }
    this.attention = detail.attention;
    const { items } = this.strips[detail.side];
    const label = items.labels[detail.item];
    const title = h("div", { class: "wb-chosen" }, h("span", { class: "wb-word wb-large" }, labelNodes(label)), factsList(detail.facts));
    const deepest = (detail.layers.layer?.length ?? 1) - 1;
    this.shown = Math.min(this.layer ?? deepest, deepest);
    this.layers = layersCard(detail.layers, this.shown, (layer) => this.toLayer(layer));
    const left = h("div", { class: "wb-column" }, title, candidatesCard(detail.candidates), eventsCard(detail.events));
    const right = h("div", { class: "wb-column" }, this.layers, attentionCard(this.frame, detail.attention, (layer, head) => this.ask(layer, head), (item) => this.strips[this.side].select(item)));
    const scrolled = this.details.querySelector(".wb-layers")?.scrollTop ?? 0;
    const focused = this.details.contains(document.activeElement) ? document.activeElement : null;
    const again = focused?.closest("label")?.textContent;
    this.details.replaceChildren(left, right);
    this.details.querySelector(".wb-layers")?.scrollTo(0, scrolled);
    // A choice that was just used (layer, head) keeps the focus although its card was made anew.
    if (again) [...this.details.querySelectorAll("label")].find((each) => each.firstChild.textContent === focused.closest("label").firstChild.textContent)?.querySelector("select").focus();
  }

  toLayer(layer) {
    const told = this.detail?.layers;
    if (!told?.layer) return;
    this.layer = this.shown = Math.min(Math.max(layer, 0), told.layer.length - 1);
    for (const row of this.layers.querySelectorAll("tbody tr")) {
      const here = Number(row.dataset.layer) === told.layer[this.layer];
      row.className = here ? "wb-here" : "";
      if (here) showRow(row);
    }
    const top = told.top[this.layer]?.[0];
    this.frame.say(`layer ${told.layer[this.layer]}, norm ${num(told.norm[this.layer])}${top ? `, likeliest '${plainLabel(top[0])}', p ${num(top[1])}` : ""}`);
  }

  key(event) {
    if (isField(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    const inside = event.target.closest(".wb-scroll");
    const actions = {
      n: () => this.jump(1), p: () => this.jump(-1), d: () => this.part(), t: () => this.toggleTable(),
      ...(inside ? {} : { ArrowUp: () => this.toLayer(this.shown + 1), ArrowDown: () => this.toLayer(this.shown - 1) }),
    };
    if (!actions[event.key]) return;
    actions[event.key]();
    event.preventDefault();
  }
}

function render({ model, el }) {
  const explorer = new Explorer(model, el);
  return () => explorer.frame.close();
}

export default { render };
