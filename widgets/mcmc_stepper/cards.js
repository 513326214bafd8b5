// What is known about one decision: verdict, terms, tokens, cache, contrast.

// A bar to the left or right of a middle line, as long as the value's share of the largest.
function signedBar(value, largest) {
  const share = largest ? Math.min(Math.abs(value) / largest, 1) * 50 : 0;
  return h("span", { class: `wb-signed ${value < 0 ? "wb-minus" : "wb-plus"}`, style: `--share:${share.toFixed(2)}%` }, num(value));
}
const word = (label) => h("span", { class: "wb-word" }, labelNodes(label));
const hex = (words) => words.map((each) => each.toString(16).padStart(8, "0")).join(" ");

function verdictLine(detail, count) {
  const { verdict } = detail;
  const sign = verdict.log_u < verdict.log_a ? "<" : "≥";
  const words = { accepted: "accepted", rejected: "rejected", null: "null: the proposal was what stood" }[verdict.kind];
  const parts = [h("b", { class: `wb-kind wb-${verdict.kind}` }, { accepted: "● ", rejected: "× ", null: "○ " }[verdict.kind], words),
    ` · decision ${detail.index} of ${count} · log u ${num(verdict.log_u)} ${sign} log A ${num(verdict.log_a)}`];
  if (verdict.flagged) parts.push(h("b", { class: "wb-flagged" }, " · too close to call: in another precision it might have gone the other way"));
  return h("p", { class: "wb-headline" }, parts);
}

function termsCard({ terms, verdict, alpha, tau }) {
  const largest = Math.max(...terms.rows.map(([, , added]) => Math.abs(added)));
  const rows = terms.rows.map(([name, value, added], i) => h("tr", { class: i === terms.rows.length - 1 ? "wb-total" : "" },
    h("th", { scope: "row" }, name), h("td", {}, num(value)), h("td", {}, signedBar(added, largest))));
  const many = verdict.tries > 1 ? `Of ${verdict.tries} tries this one was put forward. The ratio that decided, log A ${num(verdict.log_a)}, weighs all of them: the sum here is that of this one alone.` : null;
  return card("Terms of log A", table(`alpha ${num(alpha)}, tau ${num(tau)}; in nats`, ["term", "value", "adds to log A"], rows, { class: "wb-scroll wb-terms" }), note(many));
}

// u, log u and log A on one axis: whatever lies left of log A is accepted.
function axisCard({ verdict }) {
  const { log_u: logU, log_a: logA } = verdict;
  const wide = 460, high = 92, left = 14, known = [logU, logA].filter(Number.isFinite);
  const low = Math.min(...known, -1) - 0.4, most = Math.max(logA ?? 0, 0) + 0.4;
  const x = (value) => left + (wide - 2 * left) * (Math.min(Math.max(value, low), most) - low) / (most - low);
  const near = (value, room) => ({ x: Math.min(Math.max(x(value), left), wide - left), "text-anchor": x(value) > wide - room ? "end" : x(value) < room ? "start" : "middle" });
  const ticks = [1, 0.5, 0.1, 0.01, 1e-4, 1e-8, 1e-16].filter((u) => Math.log(u) >= low);
  const spaced = ticks.filter((u, i) => !i || Math.abs(x(Math.log(u)) - x(Math.log(ticks[i - 1]))) > 24);
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "wb-chart wb-axis", role: "img", "aria-label": `log u ${num(logU)}, log A ${num(logA)}: ${verdict.accepted ? "accepted" : "rejected"}` },
    logA === null ? null : svg("rect", { x: left, y: 42, width: Math.max(x(logA) - left, 0), height: 8, class: "wb-region" }),
    svg("line", { x1: left, x2: wide - left, y1: 50, y2: 50, class: "wb-base" }),
    spaced.map((u) => [svg("line", { x1: x(Math.log(u)), x2: x(Math.log(u)), y1: 50, y2: 54, class: "wb-base" }), svg("text", { x: x(Math.log(u)), y: 64, class: "wb-mid" }, `u ${num(u)}`)]).flat(),
    logU === null ? null : [svg("path", { d: `M${x(logU)} 49l-5 -10h10z`, class: "wb-u" }), svg("text", { ...near(logU, 80), y: 34, class: "wb-strong" }, `log u ${num(logU)}`)],
    logA === null ? null : [svg("path", { d: `M${x(logA)} 51v-34`, class: "wb-a" }), svg("text", { ...near(logA, 80), y: 13, class: "wb-strong" }, `log A ${num(logA)}`)],
    svg("text", { x: left, y: 84 }, "accepted left of log A"));
  return card("u against A", drawing, factsList([["u", num(verdict.u)], ["log u", num(logU)], ["log A", num(logA)], ["margin (log A − log u)", num(verdict.margin)], ["verdict", verdict.accepted ? "accepted" : "rejected"]]));
}

// Both suffixes side by side, aligned at the pivot, a hundred rows at a time.
function suffixCard(frame, detail, turn) {
  const { tokens, largest, rows: sizes, pivot } = detail;
  const most = Math.max(sizes.old, sizes.new), stop = Math.min(tokens.start + tokens.size, most);
  const half = (row) => (row ? [word(row[0]), num(row[1]), num(row[2]), signedBar(row[3], largest)] : ["", "", "", ""]);
  const lines = [...Array(stop - tokens.start).keys()].map((i) => {
    const place = tokens.start + i, [old, fresh] = [tokens.old[i], tokens.new[i]];
    const same = old && fresh && old[0] === fresh[0];
    const cells = [String(pivot + place), ...half(old), ...half(fresh)];
    return h("tr", { class: pivot + place === detail.difference ? "wb-here" : same ? "wb-same" : "", "data-row": place }, cells.map((cell, n) => h(n ? "td" : "th", n ? { class: n === 5 ? "wb-side2" : null } : { scope: "row" }, ...[cell].flat())));
  });
  const caption = `Positions ${pivot + tokens.start} to ${pivot + stop - 1}; the pivot is ${pivot}. Bars: what a token adds to log A, nats`;
  const body = table(caption, ["position", "old", "log p", "log q", "adds", "new", "log p", "log q", "adds"], lines, { class: "wb-scroll wb-suffixes" });
  const pager = most > tokens.size ? h("div", { class: "wb-buttons" },
    frame.button("Earlier", () => turn(tokens.start - tokens.size), { disabled: tokens.start === 0 }), frame.button("Later", () => turn(tokens.start + tokens.size), { disabled: stop >= most })) : null;
  return card("Old and new suffix", body, pager ?? "", note(detail.said.suffixes));
}

function cacheCard({ cache, said }, prose) {
  if (!cache) return card("Keys and values", note(prose.uncached));
  const [shared, kept, taken, fed, dropped, restored, after] = cache.rows.map(([, count]) => count);
  const stays = fed - dropped, total = Math.max(after, shared + kept + taken, 1), wide = 460;
  let at = 0;
  const box = (count, kind, told) => {
    if (!count) return [];
    const x = at, w = wide * count / total;
    at += w;
    return [svg("rect", { x, y: 2, width: Math.max(w - 1, 1), height: 18, class: kind }, svg("title", {}, `${told}: ${count}`))];
  };
  const drawing = svg("svg", { viewBox: `0 0 ${wide} 24`, class: "wb-chart", role: "img", "aria-label": `Row after the decision: ${after} positions` },
    box(shared, "wb-c0", "shared"), box(kept, "wb-c1", "kept"), box(restored, "wb-c2", "put back"), box(stays, "wb-c3", "computed"));
  const key = [["wb-c0", "shared with all chains"], ["wb-c1", "kept"], ["wb-c2", "put back"], ["wb-c3", "computed"]].map(([kind, text]) => h("span", { class: "wb-swatch" }, svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, svg("rect", { width: 12, height: 12, class: kind })), text));
  return card("Keys and values", drawing, h("p", { class: "wb-legend" }, key), table("In positions of the chain's row", cache.columns, cache.rows.map(([name, count]) => [name, num(count)]), { class: "wb-scroll wb-cache" }), note(said.cache));
}

// Old against new at the first token that differs, lowest layer below, as the residual stream flows upwards.
function contrastCard(frame, told, compute, prose) {
  if (told.missing !== undefined) {
    const button = told.can ? frame.button("Compute now", compute, { title: "Three passes of the model" }) : null;
    return card("Residual difference", note(told.can ? prose.uncontrasted : told.missing), button ?? "");
  }
  const most = Math.max(...told.rows.map((row) => row[4]), 1e-30);
  const rows = [...told.rows].reverse().map(([hook, layer, old, fresh, apart, relative, cosine]) => [
    h("span", { title: hook }, layer < 0 ? hook : String(layer)), num(old), num(fresh), barred(apart / most, "wb-norm"), num(apart), num(relative), num(cosine)]);
  const caption = ["At position ", String(told.position), ": ", word(told.pair[0]), " against ", word(told.pair[1])];
  return card("Residual difference", h("p", { class: "wb-note" }, caption, ` (${told.source})`),
    table("Layer by layer", ["layer", "‖old‖", "‖new‖", "share of the largest", "‖new − old‖", "over ‖old‖", "cosine"], rows, { class: "wb-scroll wb-contrast" }));
}

function standsCard(texts) {
  const rows = texts.map(({ chain, text, length, log_p: logP }) => [String(chain), String(length), num(logP), h("span", { class: "wb-word wb-running" }, text)]);
  return card("Where the chains stand", table("A state, from which a later proposal may change any part", ["chain", "tokens", "log p", "text"], rows, { class: "wb-scroll wb-stands" }));
}
