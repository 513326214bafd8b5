// What scrolls sideways (code, wide tables, formulas) can be reached and scrolled by keyboard.
function reachable() {
  for (const box of document.querySelectorAll(".highlight pre, .table-wrapper, .formula")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

addEventListener("DOMContentLoaded", reachable);
addEventListener("resize", reachable);
