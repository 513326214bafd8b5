// The residual view of one token: a row per layer, the last on top, as the stream flows upwards.

const CHANCE_EDGES = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9];

function lensCell([label, p]) {
  const shade = CHANCE_EDGES.filter((edge) => p >= edge).length;
  return h("span", { class: `wb-lens wb-s${shade}`, title: `${plainLabel(label)}: ${num(p)}` }, h("span", { class: "wb-word" }, labelNodes(label)), h("small", {}, num(p)));
}

// A bar to the left or right of a middle line, for values from -1 to 1.
function signed(value) {
  const share = Math.abs(value ?? 0) * 50;
  return h("span", { class: `wb-signed ${value < 0 ? "wb-minus" : "wb-plus"}`, style: `--share:${share.toFixed(2)}%` }, num(value));
}

// Returns the card; `whose` says which token rank and p are of; `layer` is the marked row (an index), `pick` is called with another one.
function layersCard(told, layer, pick, whose = "the chosen token") {
  if (!told.layer) return card("Residual stream by layer", note(told.note));
  const most = Math.max(...told.norm);
  const names = Object.keys(told.cosines);
  const lens = told.top.length > 0;
  const columns = ["layer", "norm", ...(lens ? ["rank", "p"] : []), ...names.map((name) => `cos ${name}`), ...(lens ? told.top[0].map((_, i) => `${i + 1}`) : [])];
  const rows = [...told.layer.keys()].reverse().map((i) => {
    const norm = h("span", { class: "wb-bar wb-norm", style: `--share:${(100 * told.norm[i] / most).toFixed(2)}%` }, num(told.norm[i]));
    const cells = [String(told.layer[i]), norm, ...(lens ? [num(told.rank[i]), barred(told.probability[i])] : []),
      ...names.map((name) => signed(told.cosines[name][i])), ...(lens ? told.top[i].map(lensCell) : [])];
    return h("tr", { class: i === layer ? "wb-here" : "", onclick: () => pick(i), "data-layer": told.layer[i] },
      cells.map((cell, n) => h(n ? "td" : "th", n ? {} : { scope: "row" }, cell)));
  });
  const caption = lens ? `Norm, and what each layer would say (logit lens). Rank and p: of ${whose}. Lowest layer below.` : "Norm by layer, lowest layer below";
  return card("Residual stream by layer", table(caption, columns, rows, { class: "wb-scroll wb-layers" }), note(told.note));
}

// One head's weights: a profile over all positions, and the positions that got most.
function attentionCard(frame, told, ask, pick) {
  if (!told.layers.length || !told.keys) return card("Attention", note(told.note));
  const layer = frame.choice("Layer", told.layers.map(String), String(told.layer), (value) => ask(Number(value), told.head));
  const heads = [...Array(told.heads).keys()].map(String);
  const head = frame.choice("Head", heads, String(told.head), (value) => ask(told.layer, Number(value)));
  const weights = floats(told.weights);
  const rows = told.keys.map(([item, position, label, weight]) => [
    h("button", { type: "button", class: "wb-link wb-word", onclick: () => pick(item), title: `Go to this token` }, labelNodes(label)), String(position), barred(weight),
  ]);
  return card("Attention", h("div", { class: "wb-tools" }, layer, head), profile(weights),
    table(`Most attended positions, layer ${told.layer}, head ${told.head}`, ["token", "position", "weight"], rows, { class: "wb-scroll wb-attended" }));
}

// Weights over positions as one path; many positions share a column, which shows the largest of them.
function profile(weights) {
  const wide = 480, high = 36, columns = Math.min(weights.length, wide);
  const tops = new Float32Array(columns);
  weights.forEach((weight, i) => {
    const column = Math.floor(i * columns / weights.length);
    tops[column] = Math.max(tops[column], weight);
  });
  const most = Math.max(...tops, 1e-9), each = wide / columns;
  const path = [...tops].map((top, i) => `M${(i * each).toFixed(1)} ${high}v${(-high * top / most).toFixed(1)}h${Math.max(each - 1, 0.5).toFixed(1)}V${high}z`).join("");
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "path");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${wide} ${high}`, class: "wb-profile", role: "img", preserveAspectRatio: "none",
    "aria-label": `Attention weights over ${weights.length} positions, largest ${num(most)}` })) svg.setAttribute(name, value);
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

// Scrolls a row's own table to it, and nothing else: scrollIntoView would move the notebook too.
function showRow(row) {
  const box = row.closest(".wb-scroll");
  const head = box.querySelector("thead").offsetHeight;
  const top = row.getBoundingClientRect().top - box.getBoundingClientRect().top;
  if (top < head) box.scrollTop += top - head;
  else if (top + row.offsetHeight > box.clientHeight) box.scrollTop += top + row.offsetHeight - box.clientHeight;
}
