// What tells runs apart, and round numbers for axes.

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
  return svg(
    "svg",
    { class: `swatch ${colour}`, width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
    svg("line", { class: "line", x1: 1, x2: 29, y1: 6, y2: 6, "stroke-dasharray": dash }),
    svg("path", { class: "mark", d: marker, transform: "translate(15 6)" }),
  );
}

function ticks(low, high, most) {
  const rough = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(+(k * step).toPrecision(12));
  return out;
}

// The names of an axis' ticks: one notation and as many decimals for all of them; 0 is 0.
function tickNames(rows, unit) {
  const values = unit === "percent" ? rows.map((v) => +(100 * v).toPrecision(12)) : rows;
  const largest = Math.max(...values.map(Math.abs));
  const step = values.length > 1 ? values[1] - values[0] : largest;
  const powers = largest && (largest < 1e-3 || largest >= 1e7);
  const digits = Math.max(4, 3 + Math.ceil(Math.log10(largest / step)) || 0);
  const decimals = Math.max(0, ...values.map((v) => (String(v).split(".")[1] || "").length));
  const plain = (v) => minus(v.toLocaleString("en", { minimumFractionDigits: decimals, useGrouping: Math.abs(v) >= 1e4 }));
  const named = (v) => (v === 0 ? "0" : powers ? number(v, digits) : plain(v));
  return values.map((v) => named(v) + (unit === "percent" ? " %" : ""));
}
