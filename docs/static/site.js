// What scrolls sideways (code, wide tables, formulas) can be reached and scrolled by keyboard.
function reachable() {
  for (const box of document.querySelectorAll(".highlight pre, .table-wrapper, .formula")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

// Parameters on lines of their own come as a definition list that defines nothing: to a reader it is a plain list.
function plainLists() {
  for (const list of document.querySelectorAll("dt > dl")) {
    list.setAttribute("role", "list");
    for (const item of list.children) item.setAttribute("role", "listitem");
  }
}

addEventListener("DOMContentLoaded", () => {
  reachable();
  plainLists();
});
addEventListener("load", reachable); // formulas have their width by now
addEventListener("resize", reachable);
