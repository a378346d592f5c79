"use strict";
(async () => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const specs = read("specs");
  const config = read("config");
  const views = new Map();
  const options = {
    renderer: "svg",
    actions: false,
    ast: true,
    config,
    tooltip: { disableDefaultStyle: true },
  };

  const draw = async (chart) => {
    const result = await window.vegaEmbed(chart, specs[chart.id], options);
    views.set(chart.id, result.view);
    chart.dataset.drawn = "true";
  };

  for (const chart of document.querySelectorAll(".chart")) {
    await draw(chart);
    await new Promise((done) => setTimeout(done)); // let the reader scroll between two charts
  }
  document.documentElement.dataset.drawn = "all";

  const pick = async (figure, name) => {
    for (const button of figure.querySelectorAll(".legend button")) {
      button.setAttribute("aria-pressed", String(button.dataset.series === name));
    }
    for (const chart of figure.querySelectorAll(".chart")) {
      const view = views.get(chart.id);
      if (view) await view.signal("pick", name).runAsync();
    }
  };
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") === "true";
      pick(button.closest("figure"), pressed ? null : button.dataset.series);
    });
  }

  // Paper is narrower than a window: the charts take the width they find there, and go back after.
  const refit = () => window.dispatchEvent(new Event("resize"));
  window.addEventListener("beforeprint", refit);
  window.addEventListener("afterprint", refit);
})();
