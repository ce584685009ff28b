// A figure: its words, its chart, its data table. A chart is drawn when it comes near the screen, so that a page of fifty
// opens as fast as a page of five.

const near = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        entry.target.chart.draw();
        widths.observe(entry.target);
        if (!performance.getEntriesByName("first-chart").length) performance.mark("first-chart");
      }
    }
  },
  { rootMargin: "500px" },
);

const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (target.drawnAt !== undefined && target.drawnAt !== contentRect.width) target.chart.draw();
    target.drawnAt = contentRect.width;
  }
});

// Paper has no scrolling and a width of its own: every chart is drawn for it, and for the screen again afterwards.
let onPaper = false;
function drawAll(paper) {
  onPaper = paper;
  document.querySelectorAll(".chart").forEach((element) => element.chart.draw());
}
addEventListener("beforeprint", () => drawAll(true));
addEventListener("afterprint", () => drawAll(false));

function figureView(figure, context) {
  const [make, table] = { lines: [lineChart, lineTable], peaks: [peakChart, peakTable] }[figure.kind];
  const chart = make(figure, context);
  const box = scroller(`${figure.title}, data table`);
  const numbers = h(
    "details",
    { class: "numbers" },
    h("summary", {}, "Data table", h("span", { class: "sr" }, ` of ${figure.title}`)),
    box,
  );
  const fill = () => numbers.open && box.replaceChildren(table(figure, context));
  numbers.addEventListener("toggle", fill);
  const element = h(
    "figure",
    { class: `card ${figure.kind}${figure.rows?.length === 1 ? " one-tile" : ""}`, id: `figure-${figure.id}` },
    h(
      "figcaption",
      {},
      h("h3", {}, name(figure.title)),
      figure.metric && figure.metric !== figure.title ? h("code", {}, name(figure.metric)) : null,
      figure.sentence ? h("p", {}, [figure.sentence, figure.spread].filter(Boolean).join(" ")) : null,
      figure.means ? h("p", { class: "means" }, figure.means) : null,
    ),
    chart.element,
    numbers,
  );
  chart.element.chart = chart;
  near.observe(chart.element);
  return {
    element,
    redraw: () => chart.element.drawnAt !== undefined && chart.draw(),
    update(next) {
      figure = next;
      chart.update(next);
      const top = box.scrollTop;
      fill();
      box.scrollTop = top;
    },
  };
}
