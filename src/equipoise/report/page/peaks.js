// Peak against last: a small tile per held-out metric, all on one scale, each around its own middle.

const LINE = 17; // pixels of a run's line
const PAPER_TILE = 215; // a third of an A4 page

function peakChart(figure, context) {
  const tiles = h("div", { class: "peaks", tabindex: "0", role: "img" });
  const chart = { element: h("div", { class: "chart" }, tiles), draw, update };
  let drawn = false;

  function update(next) {
    figure = next;
    if (drawn) draw();
  }

  const visible = () =>
    figure.rows
      .map((r) => ({ ...r, marks: r.marks.filter((m) => context.shows(m.run)) }))
      .filter((r) => r.marks.length);
  const height = (row) => row.marks.length * LINE + 22;

  // Empty tiles of the height they will have: nothing below moves when they are drawn.
  function lay(rows) {
    tiles.replaceChildren(...rows.map((r) => h("div", { class: "tile" }, h("b", {}, name(r.label)))));
    rows.forEach((r, i) => (tiles.children[i].style.minHeight = `calc(${height(r)}px + 1.5em)`));
  }

  function draw() {
    const rows = visible();
    lay(rows);
    const said = (m) => `${context.series()[m.run].name} peak ${percent(m.peak)}, last ${percent(m.last)}`;
    const label = rows.map((r) => `${r.label}: ${r.marks.map(said).join(", ")}`).join("; ");
    tiles.setAttribute("aria-label", label || "No run is shown.");
    const ends = rows.map((r) => r.marks.flatMap((m) => [m.peak, m.last])).map((v) => [Math.min(...v), Math.max(...v)]);
    const span = 1.2 * Math.max(0.05, ...ends.map(([low, high]) => high - low));
    rows.forEach((row, i) => {
      const middle = (ends[i][0] + ends[i][1]) / 2;
      tile(tiles.children[i], row, middle - span / 2, middle + span / 2);
    });
    drawn = true;
  }

  function tile(box, row, low, high) {
    const width = onPaper ? PAPER_TILE : box.clientWidth || 300,
      right = 92,
      bottom = height(row);
    const X = (v) => 8 + ((v - low) / (high - low)) * (width - 8 - right);
    const root = svg("svg", { width, height: bottom, viewBox: `0 0 ${width} ${bottom}`, "aria-hidden": "true" });
    const columns = ticks(low, high, 3);
    const each = columns.length > 1 ? X(columns[1]) - X(columns[0]) : width;
    columns.forEach((v, i) =>
      root.append(
        svg("line", { class: "grid", x1: X(v), x2: X(v), y1: 2, y2: bottom - 18 }),
        (each > 30 || i % 2 === 0) && X(v) > 13
          ? svg(
              "text",
              { class: "tick", x: X(v), y: bottom - 4, "text-anchor": "middle" },
              minus(String(+(100 * v).toFixed(1))),
            )
          : "",
      ),
    );
    row.marks.forEach((m, i) => {
      const y = 10 + i * LINE,
        { colour, marker } = context.look(m.run);
      root.append(
        svg("line", { class: `line ${colour}`, x1: X(m.last), x2: X(m.peak), y1: y, y2: y }),
        svg("path", { class: `mark hollow ${colour}`, d: marker, transform: `translate(${X(m.last)} ${y})` }),
        svg("path", {
          class: `mark ${colour}`,
          d: marker,
          transform: `translate(${X(m.peak)} ${y})${m.peak === m.last ? " scale(.55)" : ""}`,
        }),
        svg(
          "text",
          { class: "tick", x: width - 2, y: y + 4, "text-anchor": "end" },
          `${(100 * m.peak).toFixed(1)} → ${(100 * m.last).toFixed(1)}`,
        ),
      );
    });
    box.append(root);
  }
  lay(visible());
  return chart;
}

function peakTable(figure, context) {
  const cells = (m) => [
    h("td", { class: "words" }, name(context.series()[m.run].name)),
    percent(m.peak),
    String(m.peak_step),
    percent(m.last),
    percent(m.drop),
  ];
  const rows = figure.rows.flatMap((r) => r.marks.map((m) => [name(r.label), cells(m)]));
  return tableOf({}, ["metric", "run", "peak", "at step", "last", "drop"], rows);
}
