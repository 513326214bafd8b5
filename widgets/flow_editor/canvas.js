// The drawing: boxes in a tree that is walked by arrows and moved by mouse, arrows between them, zoom.

const BOX = { wide: 244, head: 86, row: 21, rows: 8 }; // as in view.py and style.css
const EDGE = 40;

class Canvas {
  constructor(owner) {
    this.owner = owner;
    this.zoom = 1;
    this.origin = [0, 0];
    this.drawn = new Map(); // name -> { element, box, lit }
    this.lit = new Map(); // name -> its visits
    const { frame } = owner;
    this.edges = s("svg", { class: "wb-edges", "aria-hidden": "true" });
    this.tree = h("div", { class: "wb-boxes", role: "tree", "aria-label": "Questions of the flow" });
    this.world = h("div", { class: "wb-world" }, this.edges, this.tree);
    this.sizer = h("div", { class: "wb-sizer" }, this.world);
    this.empty = h("div", { class: "wb-empty" }, h("p", {}, "Nothing is drawn yet. A flow begins with a question that the model asks itself."),
      frame.button("Add the first question", () => owner.add(), { class: "wb-button wb-primary" }), h("p", { class: "wb-note" }, "Or import a flow's JSON, above."));
    this.scroll = h("div", { class: "wb-canvas" }, this.sizer, this.empty);
    frame.listen(this.scroll, "pointerdown", (event) => this.#down(event));
    frame.listen(this.scroll, "dblclick", (event) => this.#twice(event));
    frame.listen(this.scroll, "wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      this.zoomTo(this.zoom * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
      event.preventDefault();
    }, { passive: false });
    frame.listen(this.tree, "keydown", (event) => this.#key(event));
    frame.listen(this.tree, "focusin", (event) => {
      const name = event.target.closest(".wb-box")?.dataset.name;
      if (name !== undefined && name !== owner.selected && !this.drawing) owner.select(name);
    });
  }

  // Draws what changed: boxes whose data differ, and the arrows.
  draw() {
    const { boxes, order } = this.owner;
    this.empty.hidden = order.length > 0;
    for (const [name, { element }] of this.drawn) if (!boxes.has(name)) { element.remove(); this.drawn.delete(name); }
    const before = this.origin;
    const xs = order.map((name) => boxes.get(name).place[0]), ys = order.map((name) => boxes.get(name).place[1]);
    this.origin = order.length ? [Math.min(...xs) - EDGE, Math.min(...ys) - EDGE] : [0, 0];
    this.size = [0, 1].map((axis) => Math.max(0, ...order.map((name) => this.#end(boxes.get(name), axis))) - this.origin[axis] + EDGE);
    const active = this.tree.contains(this.tree.ownerDocument.activeElement);
    this.drawing = true; // what gets the focus back now was not chosen by a person
    let last = null;
    for (const name of order) {
      const element = this.#placed(boxes.get(name));
      if (last ? last.nextSibling !== element : this.tree.firstChild !== element) this.tree.insertBefore(element, last ? last.nextSibling : this.tree.firstChild);
      last = element;
    }
    this.#resize();
    this.scroll.scrollLeft += (before[0] - this.origin[0]) * this.zoom;
    this.scroll.scrollTop += (before[1] - this.origin[1]) * this.zoom;
    this.#arrows();
    this.mark();
    this.drawing = false;
    if (active) this.focus(this.owner.selected);
  }
  #end(box, axis) {
    return box.place[axis] + (axis ? box.height : BOX.wide);
  }
  #placed(box) {
    const old = this.drawn.get(box.name), lit = JSON.stringify(this.lit.get(box.name) ?? null);
    let element = old?.element;
    if (!old || old.box !== box || old.lit !== lit) {
      const focused = element && element === element.ownerDocument.activeElement;
      const made = this.#box(box);
      element?.replaceWith(made);
      element = made;
      if (focused) element.focus({ preventScroll: true });
      this.drawn.set(box.name, { element, box, lit });
    }
    element.style.transform = `translate(${box.place[0] - this.origin[0]}px,${box.place[1] - this.origin[1]}px)`;
    return element;
  }
  #box(box) {
    const { data, rows, problems } = box, visits = this.lit.get(box.name) ?? [];
    const taken = new Set(visits.flatMap(({ row, key }) => [row, `routes:${key}`])), probs = new Map(visits.at(-1)?.probs.map(([, key, p]) => [`routes:${key}`, p]));
    const line = (row) => {
      const p = probs.get(row.key);
      return h("div", { class: `wb-boxrow ${taken.has(row.key) && row.key ? "wb-taken" : ""} ${row.set ? "" : "wb-unset"}` },
        h("span", { class: "wb-rowlabel" }, row.label), p === undefined ? null : h("span", { class: "wb-rowp" }, num(p)),
        h("span", { class: "wb-rowto" }, row.told), row.key ? h("span", { class: "wb-port", "data-port": row.key, title: "Drag to a question, or to an empty place for a new one" }) : null);
    };
    const findings = problems.slice(0, 2).map(({ message }) => h("div", { class: "wb-finding", title: message }, "⚠ ", message));
    const numbers = visits.map(({ number }) => h("span", { class: "wb-visit" }, String(number)));
    return h("div", {
      class: `wb-box ${visits.length ? "wb-lit" : ""}`, role: "treeitem", tabindex: "-1", "data-name": box.name, style: `height:${box.height}px`,
      "aria-level": box.level, "aria-posinset": box.index, "aria-setsize": box.siblings, "aria-expanded": box.children ? "true" : null, "aria-label": this.told(box),
    },
    h("div", { class: "wb-boxhead" }, h("b", {}, box.name), box.is_root ? h("span", { class: "wb-start" }, "start") : null, numbers),
    h("div", { class: "wb-boxprompt" }, shownText(data.prompt)),
    h("div", { class: "wb-boxfacts" }, box.about),
    rows.slice(0, BOX.rows).map(line), box.more_rows ? h("div", { class: "wb-boxrow" }, `and ${box.more_rows} more`) : null, findings);
  }
  told({ name, told }) {
    return [told, ...(this.lit.get(name) ?? []).map(({ number, answer }) => `visit ${number} answered ${plainLabel(answer)}`)].join(", ");
  }

  // Arrows --------------------------------------------------------------------------------------------------

  #arrows() {
    const paths = [];
    for (const name of this.owner.order) {
      const box = this.owner.boxes.get(name), taken = new Set((this.lit.get(name) ?? []).map(({ row }) => row));
      box.rows.forEach((row, index) => {
        if (row.to === null || !this.owner.boxes.has(row.to)) return;
        const path = s("path", { class: `wb-edge ${taken.has(row.key) ? "wb-lit" : ""}`, d: "", "data-from": name, "data-to": row.to, "data-index": index });
        this.#route(path);
        paths.push(path);
      });
    }
    this.edges.replaceChildren(...paths);
  }
  #route(path, end) {
    const { from, to, index } = path.dataset, one = this.#place(from);
    const [x, y] = [one[0] + BOX.wide, one[1] + BOX.head + BOX.row * (Math.min(Number(index), BOX.rows) + 0.5)];
    const [tx, ty] = end ?? [this.#place(to)[0] - 2, this.#place(to)[1] + 17];
    const bend = Math.max(Math.abs(tx - x) / 2, 36);
    path.setAttribute("d", `M${x} ${y}C${x + bend} ${y} ${tx - bend} ${ty} ${tx} ${ty}m-7 -4l7 4l-7 4`);
  }
  #place(name) {
    const { place } = this.owner.boxes.get(name), [dx, dy] = this.moving?.name === name ? this.moving.by : [0, 0];
    return [place[0] + dx - this.origin[0], place[1] + dy - this.origin[1]];
  }

  // Mouse ---------------------------------------------------------------------------------------------------

  #point(event) {
    const rect = this.scroll.getBoundingClientRect();
    return [event.clientX - rect.left + this.scroll.scrollLeft, event.clientY - rect.top + this.scroll.scrollTop].map((value, axis) => value / this.zoom + this.origin[axis]);
  }
  #down(event) {
    if (event.button !== 0 || this.empty.contains(event.target)) return;
    const rect = this.scroll.getBoundingClientRect();
    if (event.clientX > rect.left + this.scroll.clientWidth || event.clientY > rect.top + this.scroll.clientHeight) return; // the scroll bars
    const box = event.target.closest(".wb-box"), port = event.target.closest(".wb-port");
    const drag = { name: box?.dataset.name, port: port?.dataset.port, at: [event.clientX, event.clientY], scrolled: [this.scroll.scrollLeft, this.scroll.scrollTop], by: [0, 0], far: false };
    if (box) this.focus(drag.name);
    if (port) {
      const index = this.owner.boxes.get(drag.name).rows.findIndex((row) => row.key === drag.port);
      drag.path = s("path", { class: "wb-edge wb-drawing", d: "", "data-from": drag.name, "data-to": drag.name, "data-index": index });
      this.edges.append(drag.path);
    }
    const move = (next) => this.#moved(drag, next), up = (next) => {
      for (const [type, handler] of [["pointermove", move], ["pointerup", up], ["pointercancel", up]]) this.scroll.removeEventListener(type, handler);
      this.#dropped(drag, next);
    };
    for (const [type, handler] of [["pointermove", move], ["pointerup", up], ["pointercancel", up]]) this.scroll.addEventListener(type, handler);
    if (event.isTrusted) this.scroll.setPointerCapture(event.pointerId);
    event.preventDefault();
  }
  #moved(drag, event) {
    const by = [event.clientX - drag.at[0], event.clientY - drag.at[1]];
    drag.far = drag.far || Math.hypot(...by) > 4;
    if (!drag.far) return;
    if (drag.path) {
      const [x, y] = this.#point(event);
      this.#route(drag.path, [x - this.origin[0], y - this.origin[1]]);
    } else if (drag.name !== undefined) {
      this.moving = { name: drag.name, by: by.map((value) => value / this.zoom) };
      const [x, y] = this.#place(drag.name);
      this.drawn.get(drag.name).element.style.transform = `translate(${x}px,${y}px)`;
      for (const path of this.edges.children) if (path.dataset.from === drag.name || path.dataset.to === drag.name) this.#route(path);
    } else [this.scroll.scrollLeft, this.scroll.scrollTop] = [drag.scrolled[0] - by[0], drag.scrolled[1] - by[1]];
  }
  #dropped(drag, event) {
    drag.path?.remove();
    const moving = this.moving;
    this.moving = null;
    if (event.type === "pointercancel") return this.draw();
    if (drag.path) {
      const to = this.tree.ownerDocument.elementFromPoint(event.clientX, event.clientY)?.closest(".wb-box")?.dataset.name;
      if (!drag.far) this.owner.inspector.enter(drag.port);
      else if (to !== undefined) this.owner.connect(drag.name, drag.port, to);
      else this.owner.connect(drag.name, drag.port, null, this.#point(event));
    } else if (moving) {
      const { place } = this.owner.boxes.get(drag.name);
      this.owner.move(drag.name, [Math.round(place[0] + moving.by[0]), Math.round(place[1] + moving.by[1])]);
    }
  }
  #twice(event) {
    if (event.target.closest(".wb-port, .wb-empty")) return;
    if (event.target.closest(".wb-box")) this.owner.inspector.enter();
    else this.owner.add({ place: this.#point(event).map(Math.round) });
  }

  // Cursor and zoom -----------------------------------------------------------------------------------------

  mark() {
    const { selected } = this.owner;
    for (const [name, { element }] of this.drawn) {
      element.setAttribute("aria-selected", String(name === selected));
      element.tabIndex = name === selected ? 0 : -1;
    }
  }
  focus(name) {
    const found = this.drawn.get(name);
    if (!found) return void this.empty.querySelector("button").focus();
    found.element.focus({ preventScroll: true });
    this.reveal(name);
  }
  reveal(name) {
    const [x, y] = this.#place(name), { height } = this.owner.boxes.get(name), view = this.scroll;
    const near = (at, size, start, room) => (at < start + 10 ? at - 30 : at + size > start + room - 10 ? Math.min(at - 30, at + size + 30 - room) : start);
    view.scrollLeft = near(x * this.zoom, BOX.wide * this.zoom, view.scrollLeft, view.clientWidth);
    view.scrollTop = near(y * this.zoom, height * this.zoom, view.scrollTop, view.clientHeight);
  }
  zoomTo(zoom) {
    const view = this.scroll, middle = [view.scrollLeft + view.clientWidth / 2, view.scrollTop + view.clientHeight / 2].map((value) => value / this.zoom);
    this.zoom = Math.min(Math.max(zoom, 0.06), 2);
    this.#resize();
    [view.scrollLeft, view.scrollTop] = [middle[0] * this.zoom - view.clientWidth / 2, middle[1] * this.zoom - view.clientHeight / 2];
    this.owner.frame.say(`zoom ${Math.round(this.zoom * 100)} percent`);
  }
  fit() {
    if (!this.owner.order.length) return;
    this.zoomTo(Math.min(1, this.scroll.clientWidth / this.size[0], this.scroll.clientHeight / this.size[1]));
    [this.scroll.scrollLeft, this.scroll.scrollTop] = [0, 0];
    this.reveal(this.owner.selected); // of a very large one not all fits
  }
  #resize() {
    const [wide, tall] = this.size ?? [0, 0];
    this.world.style.transform = `scale(${this.zoom})`;
    Object.assign(this.sizer.style, { width: `${wide * this.zoom}px`, height: `${tall * this.zoom}px` });
    Object.assign(this.world.style, { width: `${wide}px`, height: `${tall}px` });
  }

  // Keys ----------------------------------------------------------------------------------------------------

  #key(event) {
    const { owner } = this, { order, boxes, selected } = owner, box = boxes.get(selected);
    if (!box || !event.target.matches(".wb-box")) return;
    const control = event.ctrlKey || event.metaKey, index = order.indexOf(selected);
    const step = (dx, dy) => () => owner.move(selected, [box.place[0] + dx, box.place[1] + dy]);
    const to = (name) => () => name !== undefined && name !== null && this.focus(name);
    const keys = event.altKey
      ? { ArrowLeft: step(-20, 0), ArrowRight: step(20, 0), ArrowUp: step(0, -20), ArrowDown: step(0, 20) }
      : control
        ? { z: () => owner.undo(), Z: () => owner.redo(), y: () => owner.redo() }
        : {
          ArrowDown: to(order[index + 1]), ArrowUp: to(order[index - 1]), ArrowLeft: to(box.parent), ArrowRight: to(order.find((name) => boxes.get(name).parent === selected)),
          Home: to(order[0]), End: to(order.at(-1)), Enter: () => owner.inspector.enter(), n: () => owner.add({ after: selected }), b: () => owner.add({ after: selected, way: "branch" }),
          Delete: () => owner.remove(), Backspace: () => {}, f: () => this.fit(), "+": () => this.zoomTo(this.zoom * 1.2), "=": () => this.zoomTo(this.zoom * 1.2), "-": () => this.zoomTo(this.zoom / 1.2),
        };
    const act = keys[event.key] ?? (control && event.shiftKey && event.key.toLowerCase() === "z" ? keys.Z : keys[event.key.toLowerCase()]);
    if (!act) return;
    act();
    event.preventDefault();
  }
}
