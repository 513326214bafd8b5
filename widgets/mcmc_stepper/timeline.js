// The decisions in a row on one canvas that follows the scroll: any number of them costs what is in sight.

const CELL = 13, TIME_HIGH = 104;
const KINDS = ["accepted", "rejected", "null"];

class Timeline {
  constructor(frame, { onpick }) {
    this.frame = frame;
    this.items = [];
    this.cursor = 0;
    this.canvas = h("canvas", { class: "wb-timecanvas", "aria-hidden": "true" });
    this.room = h("div", { class: "wb-timeroom" }, this.canvas);
    this.root = h("div", { class: "wb-timeline", role: "slider", tabindex: "0", "aria-label": "Decisions", "aria-orientation": "horizontal", "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", "aria-valuetext": "none yet" }, this.room);
    frame.listen(this.root, "scroll", () => this.draw(), { passive: true });
    frame.listen(this.canvas, "click", (event) => {
      const place = Math.floor((event.clientX - this.canvas.getBoundingClientRect().left + this.root.scrollLeft) / CELL);
      if (place >= 0 && place < this.items.length) onpick(place);
    });
    frame.themed.push(() => this.draw());
    const observer = new ResizeObserver(() => this.draw());
    observer.observe(this.root);
    frame.closers.push(() => observer.disconnect());
  }

  show(items, data) {
    this.items = items;
    this.data = data;
    this.room.style.width = `${Math.max(items.length * CELL + 4, 1)}px`;
    this.root.setAttribute("aria-valuemax", String(Math.max(items.length - 1, 0)));
    this.most = Math.max(...this.sample("log_a").map((value) => Math.abs(Math.asinh(value))), 0.5);
    const paths = this.sample("log_p");
    this.low = Math.min(...paths);
    this.high = Math.max(...paths, this.low + 1e-9);
    this.draw();
  }
  // Finite values of a column, at most some thousands of them: for the scale of the drawing.
  sample(name) {
    const every = Math.ceil(this.items.length / 4000) || 1;
    return this.items.filter((_, place) => place % every === 0).map((index) => this.data[name][index]).filter(Number.isFinite);
  }
  move(cursor, told) {
    this.cursor = cursor;
    this.root.setAttribute("aria-valuenow", String(cursor));
    this.root.setAttribute("aria-valuetext", told);
    const left = cursor * CELL, wide = this.root.clientWidth;
    if (left < this.root.scrollLeft) this.root.scrollLeft = left - CELL;
    else if (left + CELL > this.root.scrollLeft + wide) this.root.scrollLeft = left + 2 * CELL - wide;
    this.draw();
  }

  draw() {
    const wide = this.root.clientWidth, scale = window.devicePixelRatio || 1;
    if (!wide) return;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${TIME_HIGH}px`;
    this.canvas.width = wide * scale;
    this.canvas.height = TIME_HIGH * scale;
    const pen = this.canvas.getContext("2d"), css = getComputedStyle(this.frame.root);
    const ink = (name) => css.getPropertyValue(`--wb-${name}`).trim();
    pen.scale(scale, scale);
    pen.font = `10px ${ink("sans")}`;
    const offset = this.root.scrollLeft, first = Math.max(Math.floor(offset / CELL) - 1, 0), last = Math.min(Math.ceil((offset + wide) / CELL) + 1, this.items.length);
    if (this.items.length) {
      pen.fillStyle = ink("here");
      pen.fillRect(this.cursor * CELL - offset, 0, CELL, TIME_HIGH);
    }
    pen.strokeStyle = ink("rule");
    pen.beginPath();
    pen.moveTo(0, 44.5);
    pen.lineTo(wide, 44.5);
    pen.stroke();
    for (let place = first; place < last; place++) this.mark(pen, ink, place, place * CELL - offset + CELL / 2);
    this.path(pen, ink, first, last, offset);
    if (this.items.length) {
      pen.strokeStyle = ink("ink");
      pen.lineWidth = 1.5;
      pen.strokeRect(this.cursor * CELL - offset + 0.5, 0.75, CELL - 1, TIME_HIGH - 1.5);
    }
  }
  // One decision: its verdict as a shape, log A as a bar, and where its block begins a line.
  mark(pen, ink, place, x) {
    const index = this.items[place], kind = this.data.kind[index], size = 3.6;
    pen.lineWidth = 1.6;
    pen.strokeStyle = pen.fillStyle = ink(["link", "gone", "soft"][kind]);
    pen.beginPath();
    if (kind === 1) {
      pen.moveTo(x - size, 12 - size);
      pen.lineTo(x + size, 12 + size);
      pen.moveTo(x + size, 12 - size);
      pen.lineTo(x - size, 12 + size);
      pen.stroke();
    } else {
      pen.arc(x, 12, size, 0, 7);
      if (kind) pen.stroke();
      else pen.fill();
    }
    const value = this.data.log_a[index];
    if (Number.isFinite(value)) pen.fillRect(x - 3, 44, 6, -20 * Math.asinh(value) / this.most);
    const block = this.data.block[index];
    if (!place || this.data.block[this.items[place - 1]] !== block) {
      pen.fillStyle = pen.strokeStyle = ink("soft");
      pen.lineWidth = 0.8;
      pen.setLineDash([2, 2]);
      pen.beginPath();
      pen.moveTo(x - CELL / 2, 0);
      pen.lineTo(x - CELL / 2, TIME_HIGH);
      pen.stroke();
      pen.setLineDash([]);
      pen.fillText(`block ${block}`, x - CELL / 2 + 3, TIME_HIGH - 3);
    }
  }
  path(pen, ink, first, last, offset) {
    pen.strokeStyle = ink("ink");
    pen.lineWidth = 1.2;
    pen.beginPath();
    for (let place = first; place < last; place++) {
      const share = (this.data.log_p[this.items[place]] - this.low) / (this.high - this.low);
      pen[place === first ? "moveTo" : "lineTo"](place * CELL - offset + CELL / 2, 90 - 20 * share);
    }
    pen.stroke();
  }
}

// The same as a table, a hundred rows at a time.
class DecisionsTable {
  constructor(view) {
    this.view = view;
    this.button = view.frame.button("Decisions as table", () => this.toggle(), { "aria-expanded": "false" });
    this.body = h("div", { hidden: true });
    this.root = h("div", {}, h("div", { class: "wb-tools" }, this.button), this.body);
  }
  toggle() {
    this.body.hidden = !this.body.hidden;
    this.button.setAttribute("aria-expanded", String(!this.body.hidden));
    this.fill();
  }
  mark() {
    if (this.body.hidden) return;
    if (Math.floor(this.view.at / 100) !== this.page) this.fill();
    else for (const row of this.body.querySelectorAll("tr[data-place]")) row.classList.toggle("wb-here", Number(row.dataset.place) === this.view.at);
  }
  fill() {
    if (this.body.hidden) return;
    const { at, items, columns, frame } = this.view;
    this.page = Math.floor(at / 100);
    const start = this.page * 100, stop = Math.min(start + 100, items.length);
    const names = ["chain", "block", "iteration", "pivot", "old", "new", "log_a", "log_u", "log_p"];
    const rows = items.slice(start, stop).map((index, i) => h("tr", { class: start + i === at ? "wb-here" : "", "data-place": start + i, onclick: () => this.view.select(start + i) },
      h("th", { scope: "row" }, String(index)), h("td", {}, KINDS[columns.kind[index]], columns.flagged[index] ? " (close)" : null), names.map((name) => h("td", {}, num(columns[name][index])))));
    const turn = (text, place, on) => frame.button(text, () => this.view.select(place), { disabled: !on });
    this.body.replaceChildren(table(`Decisions ${start + 1} to ${stop} of ${items.length} in this list`, ["decision", "verdict", "chain", "block", "iteration", "pivot", "old tokens", "new tokens", "log A", "log u", "log p"], rows, { class: "wb-scroll wb-decisions" }),
      h("div", { class: "wb-buttons" }, turn("Earlier", start - 100, start > 0), turn("Later", stop, stop < items.length)));
  }
}
