// What cards are made of: a titled section, a remark, named facts, and elements of a drawing.

function card(title, ...content) {
  return h("section", { class: "wb-card", "aria-label": title }, h("div", { class: "wb-cardtitle", role: "heading", "aria-level": "4" }, title), ...content);
}
const note = (text) => (text ? h("p", { class: "wb-note" }, text) : "");
function factsList(facts) {
  return h("dl", { class: "wb-facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "number" ? num(value) : value))));
}
function svg(tag, properties, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties ?? {})) if (value !== null && value !== undefined) element.setAttribute(name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
