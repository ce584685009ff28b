// Figures: lines over steps, and peak against last. Drawn as SVG at the width they have, when they come near the
// screen. Arrow keys and the pointer move a cursor; a table holds the same numbers.

const DASHES = ["", "7 3", "2 3", "10 3 2 3", "14 4", "4 2", "10 3 2 3 2 3", "1 4"];
const MARKERS = [
  "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
  "M-3.2 -3.2H3.2V3.2H-3.2Z",
  "M0 -4.2L4 3.2H-4Z",
  "M0 -4.6L4.6 0L0 4.6L-4.6 0Z",
  "M0 4.2L4 -3.2H-4Z",
  "M-4 -1.4H-1.4V-4H1.4V-1.4H4V1.4H1.4V4H-1.4V1.4H-4Z",
  "M-4.5 -2H4.5V2H-4.5Z",
  "M-2 -4.5H2V4.5H-2Z",
];
// Of 24 runs no two have the same colour and the same dash.
const look = (run) => ({
  colour: `run-${run % 8}`,
  dash: DASHES[(run + Math.floor(run / 8)) % 8],
  marker: MARKERS[(run + 3 * Math.floor(run / 8)) % 8],
});

function swatch(run) {
  const { colour, dash, marker } = look(run);
  return svg("svg", { class: `swatch ${colour}`, width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
    svg("line", { class: "line", x1: 1, x2: 29, y1: 6, y2: 6, "stroke-dasharray": dash }),
    svg("path", { class: "mark", d: marker, transform: "translate(15 6)" }));
}

function ticks(low, high, most) {
  const rough = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(+(k * step).toPrecision(12));
  return out;
}

function domain(figure, lines) {
  const solid = lines.flatMap((l) => [l.y, l.low, l.high]).filter(Boolean).flat().filter((v) => v != null);
  // A single wild step must not flatten everything else: of the faint lines, 98 % decide.
  const faint = lines.flatMap((l) => l.faint || []).filter((v) => v != null).sort((a, b) => a - b);
  const some = faint.length ? [faint[Math.floor(faint.length * 0.01)], faint[Math.ceil(faint.length * 0.99) - 1]] : [];
  const values = [...solid, ...some, ...(figure.zero ? [0] : [])];
  let low = values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const least = figure.span || Math.max(Math.abs(high), 1e-9) * 1e-3;
  if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
  const room = (high - low) * 0.06;
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
}

function lineChart(figure, context) {
  const plot = h("div", { class: "plot" });
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const said = h("p", { class: "sr", "aria-live": "polite" });
  const format = formats[figure.unit] || number;
  const chart = { element: h("div", { class: "chart" }, plot, tip, said), draw, update };
  let scale = null;
  let at = null;

  const visible = () => figure.lines.filter((l) => context.shows(l.run));
  const xs = (line) => line.x || context.data.runs[line.run].steps;

  function update(next) {
    figure = next;
    if (scale) draw();
  }

  function draw() {
    const width = plot.clientWidth, height = 220;
    if (!width) return;
    const lines = visible();
    const focused = plot.contains(document.activeElement);
    const label = `${figure.title}: line chart of ${lines.map((l) => context.data.runs[l.run].name).join(", ") || "no run"}. Arrow keys move through the steps.`;
    const root = svg("svg", {
      width, height, viewBox: `0 0 ${width} ${height}`, tabindex: "0", role: "application",
      "aria-roledescription": "chart", "aria-label": label, onkeydown: key, onblur: leave,
      onpointermove: point, onpointerdown: point, onpointerleave: leave,
    });
    const all = lines.flatMap(xs);
    if (lines.length && all.length) {
      const [x0, x1] = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
      const [y0, y1] = domain(figure, lines);
      const rows = ticks(y0, y1, 5);
      const names = rows.map(figure.unit === "percent" ? (v) => `${minus(String(+(100 * v).toPrecision(4)))} %` : number);
      const left = 12 + 6.3 * Math.max(...names.map((n) => n.length)), right = 10, top = 8, bottom = 34;
      const X = (v) => left + (x1 === x0 ? 0.5 : (v - x0) / (x1 - x0)) * (width - left - right);
      const Y = (v) => top + ((y1 - v) / (y1 - y0)) * (height - top - bottom);
      scale = { X, Y, steps: [...new Set(all)].sort((a, b) => a - b), lines, top, bottom: height - bottom, width };
      const clip = `clip-${Math.random().toString(36).slice(2)}`;
      root.append(svg("clipPath", { id: clip }, svg("rect", { x: left - 5, y: 0, width: width - left - right + 10, height: height - bottom + 5 })));
      rows.forEach((v, i) => root.append(
        svg("line", { class: figure.zero && v === 0 ? "zero" : "grid", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }),
        svg("text", { class: "tick", x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, names[i])));
      const columns = x1 === x0 ? [x0] : ticks(x0, x1, Math.max(2, Math.floor(width / 90))).filter(Number.isInteger);
      for (const v of columns) root.append(svg("text", { class: "tick", x: X(v), y: height - bottom + 17, "text-anchor": "middle" }, String(v)));
      root.append(svg("text", { class: "axis", x: width - right, y: height - 3, "text-anchor": "end" }, "step"));
      const area = svg("g", { "clip-path": `url(#${clip})` });
      for (const l of lines) area.append(...(lines.length > 2 ? bars(l, X, Y) : band(l, X, Y)), ...faintLine(l, X, Y, lines.length));
      for (const l of lines) area.append(...boldLine(l, X, Y));
      root.append(area, svg("g", { class: "cursor" }));
    } else {
      scale = { steps: [], lines: [] };
      root.append(svg("text", { class: "axis", x: width / 2, y: height / 2, "text-anchor": "middle" }, "All runs are hidden."));
    }
    plot.replaceChildren(root);
    if (focused) root.focus({ preventScroll: true });
    if (at != null) cursor(Math.min(at, scale.steps.length - 1), false);
  }

  function path(x, y, X, Y) {
    let d = "", pen = false;
    y.forEach((v, i) => {
      if (v == null) pen = false;
      else {
        d += `${pen ? "L" : "M"}${X(x[i]).toFixed(1)} ${Y(v).toFixed(1)}`;
        pen = true;
      }
    });
    return d;
  }

  function band(l, X, Y) {
    const known = l.low ? l.y.map((_, i) => i).filter((i) => l.low[i] != null && l.high[i] != null) : [];
    if (known.length < 2) return [];
    const x = xs(l);
    const up = known.map((i) => `${X(x[i]).toFixed(1)} ${Y(l.high[i]).toFixed(1)}`);
    const down = known.reverse().map((i) => `${X(x[i]).toFixed(1)} ${Y(l.low[i]).toFixed(1)}`);
    return [svg("path", { class: `band ${look(l.run).colour}`, d: `M${up.join("L")}L${down.join("L")}Z` })];
  }

  // Three bands or more on top of each other would be mud: bars, each run a little to the side; of many, the last.
  function bars(l, X, Y) {
    if (!l.low) return [];
    const x = xs(l), n = scale.lines.length, aside = 3 * (scale.lines.indexOf(l) - (n - 1) / 2);
    return l.low.map((low, i) => low == null || l.high[i] == null || (n * l.low.length > 60 && i < l.low.length - 1) ? "" : svg("path", {
      class: `whisker ${look(l.run).colour}`, d: `M${(X(x[i]) + aside).toFixed(1)} ${Y(low).toFixed(1)}V${Y(l.high[i]).toFixed(1)}`,
    }));
  }

  function faintLine(l, X, Y, n) {
    const opacity = Math.max(0.07, Math.min(0.4, 0.9 / n)).toFixed(2);
    return l.faint ? [svg("path", { class: `faint ${look(l.run).colour}`, opacity, d: path(xs(l), l.faint, X, Y) })] : [];
  }

  function boldLine(l, X, Y) {
    const { colour, dash, marker } = look(l.run);
    const x = xs(l), n = l.y.length, gap = Math.ceil(n / 7);
    const marked = l.y.map((_, i) => i).filter((i) => l.y[i] != null && (n <= 12 || i % gap === (l.run * 2) % gap));
    return [
      svg("path", { class: `line ${colour}`, "stroke-dasharray": dash, d: path(x, l.y, X, Y) }),
      ...marked.map((i) => svg("path", { class: `mark ${colour}`, d: marker, transform: `translate(${X(x[i]).toFixed(1)} ${Y(l.y[i]).toFixed(1)})` })),
    ];
  }

  function values(step) {
    return scale.lines.map((l) => {
      const i = xs(l).indexOf(step);
      return i < 0 || l.y[i] == null ? null : { run: l.run, value: l.y[i], low: l.low?.[i], high: l.high?.[i] };
    }).filter(Boolean);
  }

  function cursor(index, announce) {
    if (!scale || !scale.steps.length) return;
    at = Math.max(0, Math.min(index, scale.steps.length - 1));
    const step = scale.steps[at], here = values(step), x = scale.X(step);
    plot.querySelector(".cursor").replaceChildren(
      svg("line", { class: "hair", x1: x, x2: x, y1: scale.top, y2: scale.bottom }),
      ...here.map((v) => svg("circle", { class: `dot ${look(v.run).colour}`, cx: x, cy: scale.Y(v.value), r: 4 })));
    const range = (v) => (v.low == null ? "" : ` (${format(v.low)} to ${format(v.high)})`);
    tip.replaceChildren(h("b", {}, `step ${step}`), ...here.map((v) =>
      h("div", {}, swatch(v.run), name(context.data.runs[v.run].name), h("span", { class: "value" }, format(v.value)))));
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(x + 14, scale.width - tip.offsetWidth))}px`;
    if (x + 14 + tip.offsetWidth > scale.width) tip.style.left = `${Math.max(0, x - 14 - tip.offsetWidth)}px`;
    if (announce) said.textContent = `Step ${step}. ` + here.map((v) => `${context.data.runs[v.run].name} ${format(v.value)}${range(v)}`).join("; ");
  }

  function point(event) {
    if (!scale || !scale.steps.length) return;
    const x = event.clientX - plot.getBoundingClientRect().left;
    let best = 0;
    scale.steps.forEach((s, i) => { if (Math.abs(scale.X(s) - x) < Math.abs(scale.X(scale.steps[best]) - x)) best = i; });
    cursor(best, false);
  }

  function leave() {
    at = null;
    tip.hidden = true;
    plot.querySelector(".cursor")?.replaceChildren();
  }

  function key(event) {
    const n = scale ? scale.steps.length : 0, stride = event.shiftKey ? 10 : 1;
    const to = { ArrowRight: at == null ? 0 : at + stride, ArrowLeft: at == null ? n - 1 : at - stride, Home: 0, End: n - 1 }[event.key];
    if (event.key === "Escape") leave();
    else if (to != null) {
      event.preventDefault();
      cursor(to, true);
    }
  }
  return chart;
}

function lineTable(figure, context) {
  const format = formats[figure.unit] || number;
  const columns = figure.lines.flatMap((l) => {
    const run = context.data.runs[l.run], x = l.x || run.steps;
    const column = (title, y) => ({ title, at: new Map(x.map((step, i) => [step, y[i]])) });
    if (l.faint) return [column(run.name, l.faint), column(`${run.name}, line`, l.y)];
    return [column(run.name, l.y), ...(l.low ? [column(`${run.name}, low`, l.low), column(`${run.name}, high`, l.high)] : [])];
  });
  const steps = [...new Set(columns.flatMap((c) => [...c.at.keys()]))].sort((a, b) => a - b);
  return h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "step"), columns.map((c) => h("th", { scope: "col" }, name(c.title))))),
    h("tbody", {}, steps.map((s) => h("tr", {}, h("th", { scope: "row" }, String(s)), columns.map((c) => h("td", {}, format(c.at.get(s))))))));
}

function peakChart(figure, context) {
  const tiles = h("div", { class: "peaks", tabindex: "0", role: "img" });
  const chart = { element: h("div", { class: "chart" }, tiles), draw, update };
  let drawn = false;

  function update(next) {
    figure = next;
    if (drawn) draw();
  }

  function draw() {
    const rows = figure.rows.map((r) => ({ ...r, marks: r.marks.filter((m) => context.shows(m.run)) })).filter((r) => r.marks.length);
    tiles.replaceChildren(...rows.map(() => h("div", { class: "tile" })));
    tiles.setAttribute("aria-label", rows.map((r) => `${r.label}: ` + r.marks.map((m) =>
      `${context.data.runs[m.run].name} peak ${percent(m.peak)}, last ${percent(m.last)}`).join(", ")).join("; ") || "No run is shown.");
    const ends = rows.map((r) => r.marks.flatMap((m) => [m.peak, m.last])).map((v) => [Math.min(...v), Math.max(...v)]);
    const span = 1.2 * Math.max(0.05, ...ends.map(([low, high]) => high - low));
    rows.forEach((row, i) => {
      const middle = (ends[i][0] + ends[i][1]) / 2;
      tile(tiles.children[i], row, middle - span / 2, middle + span / 2);
    });
    drawn = true;
  }

  function tile(box, row, low, high) {
    const width = box.clientWidth || 300, line = 17, right = 92, height = row.marks.length * line + 22;
    const X = (v) => 8 + ((v - low) / (high - low)) * (width - 8 - right);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const columns = ticks(low, high, 3);
    const each = columns.length > 1 ? X(columns[1]) - X(columns[0]) : width;
    columns.forEach((v, i) => root.append(svg("line", { class: "grid", x1: X(v), x2: X(v), y1: 2, y2: height - 18 }),
      (each > 30 || i % 2 === 0) && X(v) > 13 ? svg("text", { class: "tick", x: X(v), y: height - 4, "text-anchor": "middle" }, minus(String(+(100 * v).toFixed(1)))) : ""));
    row.marks.forEach((m, i) => {
      const y = 10 + i * line, { colour, marker } = look(m.run);
      root.append(svg("line", { class: `line ${colour}`, x1: X(m.last), x2: X(m.peak), y1: y, y2: y }),
        svg("path", { class: `mark hollow ${colour}`, d: marker, transform: `translate(${X(m.last)} ${y})` }),
        svg("path", { class: `mark ${colour}`, d: marker, transform: `translate(${X(m.peak)} ${y})${m.peak === m.last ? " scale(.55)" : ""}` }),
        svg("text", { class: "tick", x: width - 2, y: y + 4, "text-anchor": "end" },
          `${(100 * m.peak).toFixed(1)} → ${(100 * m.last).toFixed(1)}`));
    });
    box.replaceChildren(h("b", {}, name(row.label)), root);
  }
  return chart;
}

function peakTable(figure, context) {
  const heads = ["metric", "run", "peak", "at step", "last", "drop"];
  return h("table", {}, h("thead", {}, h("tr", {}, heads.map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, figure.rows.flatMap((r) => r.marks.map((m) => h("tr", {}, h("th", { scope: "row" }, name(r.label)),
      h("td", { class: "words" }, name(context.data.runs[m.run].name)), h("td", {}, percent(m.peak)), h("td", {}, String(m.peak_step)),
      h("td", {}, percent(m.last)), h("td", {}, percent(m.drop)))))));
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      near.unobserve(entry.target);
      entry.target.chart.draw();
      widths.observe(entry.target);
      if (!performance.getEntriesByName("first-chart").length) performance.mark("first-chart");
    }
  }
}, { rootMargin: "500px" });

const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (target.drawnAt !== undefined && target.drawnAt !== contentRect.width) target.chart.draw();
    target.drawnAt = contentRect.width;
  }
});

function figureView(figure, context) {
  const [make, table] = { lines: [lineChart, lineTable], peaks: [peakChart, peakTable] }[figure.kind];
  const chart = make(figure, context);
  const box = scroller(`${figure.title}, data table`);
  const numbers = h("details", { class: "numbers" }, h("summary", {}, "Data table", h("span", { class: "sr" }, ` of ${figure.title}`)), box);
  const fill = () => numbers.open && box.replaceChildren(table(figure, context));
  numbers.addEventListener("toggle", fill);
  const element = h("figure", { class: `card ${figure.kind}`, id: `figure-${figure.id}` },
    h("figcaption", {}, h("h3", {}, name(figure.title)),
      figure.metric && figure.metric !== figure.title ? h("code", {}, name(figure.metric)) : null,
      figure.sentence ? h("p", {}, figure.sentence) : null, figure.means ? h("p", { class: "means" }, figure.means) : null),
    chart.element, numbers);
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
