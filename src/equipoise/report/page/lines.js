// Lines over steps, drawn as SVG at the width they have. The pointer and the arrow keys move a cursor.

function domain(figure, lines) {
  const solid = lines
    .flatMap((l) => (figure.band ? [l.y, ...within(lines, l)] : [l.y, l.low, l.high]))
    .filter(Boolean)
    .flat()
    .filter((v) => v != null);
  // A single wild step must not flatten everything else: of the faint lines, 98 % decide.
  const faint = lines
    .flatMap((l) => l.faint || [])
    .filter((v) => v != null)
    .sort((a, b) => a - b);
  const some = faint.length ? [faint[Math.floor(faint.length * 0.01)], faint[Math.ceil(faint.length * 0.99) - 1]] : [];
  const values = [...solid, ...some, ...(figure.zero ? [0] : [])];
  let low = values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const size = Math.max(Math.abs(low), Math.abs(high));
  const constant = high - low <= 1e-9 * size;
  if (size === 0) [low, high] = [0, figure.span || 1]; // nearly always a share, and none is below 0
  const least = figure.span || (constant ? size || 1 : 1e-3 * size);
  if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
  const room = (high - low) * 0.06;
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
}

// Few seeds have wide intervals: the lines keep a third of the height, and a band beyond that is cut off.
function within(lines, line) {
  const all = lines.flatMap((l) => l.y).filter((v) => v != null);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const room = Math.max(high - low, 1e-9);
  const kept = (values) => (values || []).map((v) => v && Math.max(low - room, Math.min(high + room, v)));
  return [kept(line.low), kept(line.high)];
}

const SCREEN = { height: 220 }; // its width is the card's
const PAPER = { height: 180, width: 340 }; // half of an A4 page or of a letter
const MARGIN = { top: 8, bottom: 34 };
const MOST_BANDS = 4; // more on top of each other are mud: bars instead

function lineChart(figure, context) {
  const plot = h("div", { class: "plot" });
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const said = h("p", { class: "sr", "aria-live": "polite" });
  const format = formats[figure.unit] || number;
  let scale = null; // of what is drawn: steps, lines, and X, Y from numbers to pixels
  let at = null; // the cursor, as an index of scale.steps

  const nameOf = (line) => context.series()[line.run].name;
  const xs = (line) => line.x || context.series()[line.run].steps;

  function update(next) {
    figure = next;
    if (scale) draw();
  }

  function draw() {
    if (!plot.clientWidth) return;
    const { height, width } = onPaper ? PAPER : { ...SCREEN, width: plot.clientWidth };
    const lines = figure.lines.filter((l) => context.shows(l.run));
    const [focused, cursorAt] = [plot.contains(document.activeElement), at];
    const who = lines.map(nameOf).join(", ") || "no run";
    const root = svg("svg", {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      tabindex: "0",
      role: "application",
      "aria-roledescription": "chart",
      "aria-label": `${figure.title}: line chart of ${who}. ${figure.holes || ""} Arrow keys move through the steps.`,
      onkeydown: key,
      onblur: leave,
      onpointermove: point,
      onpointerdown: point,
      onpointerleave: leave,
    });
    const all = lines.flatMap(xs);
    scale = { steps: [...new Set(all)].sort((a, b) => a - b), lines, height };
    if (all.length) root.append(...axes(width), ...curves());
    else
      root.append(
        svg("text", { class: "axis", x: width / 2, y: height / 2, "text-anchor": "middle" }, "All runs are hidden."),
      );
    plot.replaceChildren(root);
    if (focused) root.focus({ preventScroll: true });
    if (cursorAt != null) cursor(cursorAt, false);
  }

  function axes(width) {
    const { top, bottom } = MARGIN;
    const { height } = scale;
    const [x0, x1] = [scale.steps[0], scale.steps.at(-1)];
    const [y0, y1] = domain(figure, scale.lines);
    const right = Math.max(10, 3.5 * number(x1).length); // half of the last step's label stands beyond it
    const rows = ticks(y0, y1, 5);
    const names = tickNames(rows, figure.unit);
    const left = 12 + 6.3 * Math.max(...names.map((n) => n.length));
    const X = (v) => left + (x1 === x0 ? 0.5 : (v - x0) / (x1 - x0)) * (width - left - right);
    const Y = (v) => top + ((y1 - v) / (y1 - y0)) * (height - top - bottom);
    Object.assign(scale, { X, Y, width, left, right });
    const columns = x1 === x0 ? [x0] : ticks(x0, x1, Math.max(2, Math.floor(width / 90))).filter(Number.isInteger);
    return [
      ...rows.flatMap((v, i) => [
        svg("line", {
          class: figure.zero && v === 0 ? "zero" : "grid",
          x1: left,
          x2: width - right,
          y1: Y(v),
          y2: Y(v),
        }),
        svg("text", { class: "tick", x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, names[i]),
      ]),
      ...columns.map((v) =>
        svg("text", { class: "tick", x: X(v), y: height - bottom + 17, "text-anchor": "middle" }, number(v)),
      ),
      svg("text", { class: "axis", x: width - right, y: height - 3, "text-anchor": "end" }, "step"),
      // Beside the axis' name, where nothing moves when a watched run gets its first hole.
      figure.holes ? svg("text", { class: "axis", x: left, y: height - 3 }, figure.holes) : "",
    ];
  }

  // A wild step of a faint line may lie outside the axes: the clip keeps it there.
  function curves() {
    const { lines, X, Y, width, height, left, right } = scale;
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    const inside = { x: left - 5, y: 0, width: width - left - right + 10, height: height - MARGIN.bottom + 5 };
    const spread = lines.length > (figure.band ? MOST_BANDS : 2) ? bars : band;
    return [
      svg("clipPath", { id: clip }, svg("rect", inside)),
      svg(
        "g",
        { "clip-path": `url(#${clip})` },
        lines.map((l) => [...spread(l, X, Y), ...faintLine(l, X, Y, lines.length)]),
        lines.map((l) => boldLine(l, X, Y)),
      ),
      svg("g", { class: "cursor" }),
    ];
  }

  // A point between two holes has no line: one of no length, which its round cap makes a dot.
  function path(x, y, X, Y) {
    const has = (i) => y[i] != null;
    const piece = (i) => {
      const to = `${X(x[i]).toFixed(1)} ${Y(y[i]).toFixed(1)}`;
      if (has(i - 1)) return `L${to}`;
      return has(i + 1) ? `M${to}` : `M${to}h0`;
    };
    return y.map((_, i) => (has(i) ? piece(i) : "")).join("");
  }

  function band(l, X, Y) {
    const known = l.low ? l.y.map((_, i) => i).filter((i) => l.low[i] != null && l.high[i] != null) : [];
    if (known.length < 2) return bars(l, X, Y);
    const x = xs(l);
    const up = known.map((i) => `${X(x[i]).toFixed(1)} ${Y(l.high[i]).toFixed(1)}`);
    const down = known.reverse().map((i) => `${X(x[i]).toFixed(1)} ${Y(l.low[i]).toFixed(1)}`);
    return [svg("path", { class: `band ${context.look(l.run).colour}`, d: `M${up.join("L")}L${down.join("L")}Z` })];
  }

  // Bars, each run a little to the side; where they would be many, at the last point alone.
  function bars(l, X, Y) {
    if (!l.low) return [];
    const x = xs(l),
      n = scale.lines.length,
      aside = 3 * (scale.lines.indexOf(l) - (n - 1) / 2),
      beyond = (v) => Math.max(0, X(v) + 1.5 * (n - 1) - (scale.width - scale.right + 3)), // the set stays inside
      room = (v) => X(v) + aside - beyond(v);
    return l.low.map((low, i) =>
      low == null || l.high[i] == null || (n * l.low.length > 60 && i < l.low.length - 1)
        ? ""
        : svg("path", {
            class: `whisker ${context.look(l.run).colour}`,
            d: `M${room(x[i]).toFixed(1)} ${Y(low).toFixed(1)}V${Y(l.high[i]).toFixed(1)}`,
          }),
    );
  }

  function faintLine(l, X, Y, n) {
    const opacity = Math.max(0.07, Math.min(0.4, 0.9 / n)).toFixed(2);
    return l.faint
      ? [svg("path", { class: `faint ${context.look(l.run).colour}`, opacity, d: path(xs(l), l.faint, X, Y) })]
      : [];
  }

  function boldLine(l, X, Y) {
    const { colour, dash, marker } = context.look(l.run);
    const x = xs(l),
      n = l.y.length,
      gap = Math.ceil(n / 7);
    const marked = l.y.map((_, i) => i).filter((i) => l.y[i] != null && (n <= 12 || i % gap === (l.run * 2) % gap));
    return [
      svg("path", { class: `line ${colour}`, "stroke-dasharray": dash, d: path(x, l.y, X, Y) }),
      ...marked.map((i) =>
        svg("path", {
          class: `mark ${colour}`,
          d: marker,
          transform: `translate(${X(x[i]).toFixed(1)} ${Y(l.y[i]).toFixed(1)})`,
        }),
      ),
    ];
  }

  // Runs of different length have points at different steps: the nearest one, if it stands for this step too.
  function values(step) {
    return scale.lines
      .map((l) => {
        const x = xs(l);
        const i = x.reduce((best, v, k) => (Math.abs(v - step) < Math.abs(x[best] - step) ? k : best), 0);
        const reach = x.length > 1 ? (x.at(-1) - x[0]) / (x.length - 1) / 2 : 0;
        const here = Math.abs(x[i] - step) <= reach && l.y[i] != null;
        return here ? { run: l.run, value: l.y[i], low: l.low?.[i], high: l.high?.[i] } : null;
      })
      .filter(Boolean);
  }

  function cursor(index, announce) {
    if (!scale || !scale.steps.length) return;
    at = Math.max(0, Math.min(index, scale.steps.length - 1));
    const step = scale.steps[at],
      here = values(step),
      x = scale.X(step);
    plot
      .querySelector(".cursor")
      .replaceChildren(
        svg("line", { class: "hair", x1: x, x2: x, y1: MARGIN.top, y2: scale.height - MARGIN.bottom }),
        ...here.map((v) => svg("circle", { class: `dot ${context.look(v.run).colour}`, cx: x, cy: scale.Y(v.value), r: 4 })),
      );
    const range = (v) => (v.low == null ? "" : ` (${format(v.low)} to ${format(v.high)})`);
    tip.replaceChildren(
      h("b", {}, `step ${step}`),
      ...here.map((v) =>
        h(
          "div",
          {},
          context.swatch(v.run),
          name(context.series()[v.run].name),
          h("span", { class: "value" }, format(v.value), h("small", {}, range(v).replace(/[()%]| (?=%)/g, ""))),
        ),
      ),
    );
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(x + 14, scale.width - tip.offsetWidth))}px`;
    if (x + 14 + tip.offsetWidth > scale.width) tip.style.left = `${Math.max(0, x - 14 - tip.offsetWidth)}px`;
    if (announce)
      said.textContent =
        `Step ${step}. ` + here.map((v) => `${context.series()[v.run].name} ${format(v.value)}${range(v)}`).join("; ");
  }

  function point(event) {
    if (!scale || !scale.steps.length) return;
    const x = event.clientX - plot.getBoundingClientRect().left;
    let best = 0;
    scale.steps.forEach((s, i) => {
      if (Math.abs(scale.X(s) - x) < Math.abs(scale.X(scale.steps[best]) - x)) best = i;
    });
    cursor(best, false);
  }

  function leave() {
    at = null;
    tip.hidden = true;
    plot.querySelector(".cursor")?.replaceChildren();
  }

  function key(event) {
    const n = scale ? scale.steps.length : 0,
      stride = event.shiftKey ? 10 : 1;
    const to = {
      ArrowRight: at == null ? 0 : at + stride,
      ArrowLeft: at == null ? n - 1 : at - stride,
      Home: 0,
      End: n - 1,
    }[event.key];
    if (event.key === "Escape") leave();
    else if (to != null) {
      event.preventDefault();
      cursor(to, true);
    }
  }
  return { element: h("div", { class: "chart" }, plot, tip, said), draw, update };
}

function lineTable(figure, context) {
  const format = formats[figure.unit] || number;
  const columns = figure.lines.flatMap((l) => {
    const run = context.series()[l.run],
      x = l.x || run.steps;
    const column = (title, y) => ({ title, at: new Map(x.map((step, i) => [step, y[i]])) });
    if (l.faint) return [column(run.name, l.faint), column(`${run.name}, line`, l.y)];
    return [
      column(run.name, l.y),
      ...(l.low ? [column(`${run.name}, low`, l.low), column(`${run.name}, high`, l.high)] : []),
    ];
  });
  const steps = [...new Set(columns.flatMap((c) => [...c.at.keys()]))].sort((a, b) => a - b);
  const rows = steps.map((step) => [String(step), columns.map((c) => format(c.at.get(step)))]);
  return tableOf({}, ["step", ...columns.map((c) => name(c.title))], rows);
}
