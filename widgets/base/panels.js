// What is known about one token: facts, events and actions, distributions before and after the mods.

// Before and after in one table: one bar each, what a mask took at the end.
function candidatesCard({ rows, removed_mass: removed, note: said }) {
  if (!rows.length) return card("Distribution", note(said || "Nothing was recorded here."));
  const lines = rows.map((row) => [
    h("span", { class: "wb-word" }, labelNodes(row.label)),
    barred(row.model_p), barred(row.p, "wb-after"),
    [row.chosen ? h("b", {}, "chosen") : null, row.drawn && !row.chosen ? "drawn, replaced" : null].filter(Boolean),
  ]);
  const told = table("Likeliest tokens", ["token", "model p", "p after mods", ""], lines, { class: "wb-scroll wb-candidates" });
  const taken = removed === null ? null : h("p", { class: "wb-removed" }, "Masks took ", barred(removed, "wb-mass"), " of the model's own probability.");
  return card("Distribution before and after mods", told, taken, note(said));
}

// Events in order; actions below the event that they answer.
function eventsCard(lines) {
  if (!lines.length) return card("Events and actions", note("No records: a prompt token, or a trace without them."));
  const rows = lines.map((line) => {
    const isAction = line.kind === "action";
    const what = h("span", { class: "wb-what" }, line.what);
    const by = line.mod ? h("span", { class: "wb-mod" }, line.mod) : null;
    const status = line.status ? h("span", { class: `wb-state wb-${line.status}` }, line.status) : null;
    const words = line.tokens.map((label) => h("span", { class: "wb-word" }, labelNodes(label)));
    if (line.more) words.push(h("span", {}, `and ${line.more} more`));
    return h("li", { class: `wb-event wb-kind-${line.kind} ${isAction ? "wb-answer" : ""}` },
      h("span", { class: "wb-step" }, `step ${line.step}`), what, by, status, words.length ? h("span", { class: "wb-words" }, words) : null,
      line.note ? h("span", { class: "wb-said" }, line.note) : null);
  });
  return card("Events and actions", h("ol", { class: "wb-events wb-scroll", tabindex: "0", role: "list", "aria-label": "Events and actions" }, rows));
}

// The strip as a table, a hundred rows at a time.
function itemsTable(items, from, turn) {
  const size = 100;
  const start = Math.floor(from / size) * size, stop = Math.min(start + size, items.count);
  const rows = [];
  for (let i = start; i < stop; i++) {
    const { uid, position, step, removed_step: gone, p, model_p: model, entropy } = items.data;
    rows.push([String(uid[i]), String(position[i]), h("span", { class: "wb-word" }, labelNodes(items.labels[i])), items.origin(i), items.by[i] ?? "",
      String(step[i]), num(p[i]), num(model[i]), num(entropy[i]), gone[i] < 0 ? "" : `step ${gone[i]}`]);
  }
  const names = ["uid", "position", "token", "origin", "by", "step", "p", "model p", "entropy", "taken back"];
  const caption = `Tokens ${start + 1} to ${stop} of ${items.total}`;
  const button = (text, place, on) => h("button", { type: "button", class: "wb-button", disabled: !on, onclick: () => turn(place) }, text);
  return h("div", { class: "wb-itemstable" }, table(caption, names, rows),
    h("div", { class: "wb-buttons" }, button("Earlier", start - size, start > 0), button("Later", start + size, stop < items.count)));
}
