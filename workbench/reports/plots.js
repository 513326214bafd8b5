"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    for (const box of document.querySelectorAll(".plot")) {
      const spec = JSON.parse(document.getElementById(box.id + "-data").textContent);
      const ink = getComputedStyle(box).color;
      const font = { family: "system-ui, sans-serif", ...spec.layout.font, color: ink };
      Plotly.react(box, spec.data, { ...spec.layout, font }, { displaylogo: false, responsive: true });
    }
  };
  draw();
  dark.addEventListener("change", draw);
})();
