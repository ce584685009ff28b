// Puts the page together, and keeps it up to date while a run is watched.

const context = {
  data: JSON.parse(document.getElementById("data").textContent),
  hidden: new Set(), // names: a watched folder may number its runs anew
  single: false, // runs one by one, where they could be grouped by variant
  view: () => (context.data.variants && !context.single ? context.data.variants : context.data),
  series: () => context.view().runs, // what a line of a figure stands for: variants, or runs
  look: (i) => look(context.series()[i].look ?? i),
  swatch: (i) => swatch(context.series()[i].look ?? i),
  shows: (i) => !context.hidden.has(context.series()[i].name),
};
const root = document.documentElement;
let views = [];
let own = null; // the views that outlive a change of panels: samples and settings

const MOST_ROWS = 24; // of a table that stands whole on the page

function tableView(panel) {
  const box = scroller(`${panel.title}, table`);
  const cell = (c) => {
    const td = h("td", {}, name(c.text));
    if (c.bar != null) {
      const bar = h("i", { class: "cell-bar", "aria-hidden": "true" });
      bar.style.width = `${Math.round(100 * Math.abs(c.bar))}%`;
      td.append(h("span", { class: "cell-track" }, bar));
    }
    return td;
  };
  const head = (r) => [
    r.run == null ? name(r.head) : [context.swatch(r.run), name(context.series()[r.run].name)],
    r.below ? h("small", {}, name(r.below)) : null,
  ];
  const update = ({ table }) => {
    const heads = table.columns.map((c, k) => [table.runs_across && k ? context.swatch(k - 1) : null, name(c)]);
    const rows = table.rows.map((r) => [head(r), r.cells.map(cell)]);
    box.style.setProperty("--columns", table.columns.length - 1);
    box.classList.toggle("whole", table.rows.length <= MOST_ROWS);
    box.replaceChildren(tableOf({ class: table.runs_across ? "overview across" : "overview" }, heads, rows));
  };
  update(panel);
  return { element: box, update };
}

// On paper the bar with the runs is far away: there, and only there, every section with figures says who is who.
const legendItems = () =>
  (context.series().length > 1 ? context.series() : [])
    .map((run, i) => context.shows(i) && h("span", {}, context.swatch(i), name(run.name)))
    .filter(Boolean);

function panelView(panel) {
  const table = panel.table ? tableView(panel) : null;
  const figures = new Map((panel.figures || []).map((f) => [f.id, figureView(f, context)]));
  const grid = figures.size
    ? h(
        "div",
        { class: "grid-of-figures" },
        [...figures.values()].map((f) => f.element),
      )
    : null;
  const title = h("h2", { id: `${panel.id}-title` }, panel.title);
  const lead = h("p", { class: "lead" }, panel.sentence);
  const still = h("p", { class: "still" });
  const tell = (p) => {
    still.hidden = !p.still?.length;
    const nowhere = p.nothing ? "Nowhere above 10⁻⁶, which is rounding" : "0 at every step of every run";
    still.textContent = still.hidden ? "" : `${nowhere}: ${p.still.join(", ")}.`;
  };
  tell(panel);
  const legend = grid && h("p", { class: "legend", "aria-hidden": "true" }, legendItems());
  const inner = [lead, table?.element, legend, grid, still];
  const element = h(
    "section",
    { id: panel.id, "aria-labelledby": `${panel.id}-title` },
    panel.closed
      ? [title, h("details", {}, h("summary", {}, `Show ${several(figures.size, "more figure")}`), inner)]
      : [title, inner],
  );
  return {
    element,
    redraw: () => figures.forEach((f) => f.redraw()),
    update(next) {
      lead.textContent = next.sentence;
      tell(next);
      table?.update(next);
      (next.figures || []).forEach((f) => figures.get(f.id).update(f));
    },
  };
}

function header() {
  const { title, about } = context.data;
  const { panels } = context.view();
  const live = root.dataset.mode === "live";
  const places = [...panels.map((p) => [p.id, p.title]), ["samples", "Samples"], ["settings", "Settings"]];
  document.getElementById("top").replaceChildren(
    h("p", { class: "brand" }, "equipoise"),
    h("h1", {}, name(title)),
    about ? h("p", { class: "about" }, name(about)) : "",
    live ? h("p", { id: "state", role: "status" }, "Live") : "",
    h(
      "nav",
      { "aria-label": "Sections" },
      h(
        "ul",
        {},
        places.map(([id, label]) => h("li", {}, h("a", { href: `#${id}` }, label))),
      ),
    ),
  );
}

function bar() {
  const runs = context.series();
  const chips = runs.map((run, i) => {
    const chip = h(
      "button",
      {
        type: "button",
        class: "chip",
        title: run.name.replace(INVISIBLE, "�"),
        "aria-pressed": String(context.shows(i)),
        onclick: () => {
          if (context.shows(i)) context.hidden.add(run.name);
          else context.hidden.delete(run.name);
          chip.setAttribute("aria-pressed", String(context.shows(i)));
          document.querySelectorAll(".legend").forEach((l) => l.replaceChildren(...legendItems()));
          views.forEach((v) => v.redraw?.());
        },
      },
      context.swatch(i),
      name(run.name),
    );
    return chip;
  });
  const switchTo = context.single ? "Group by variant" : "Single runs";
  const grouping = context.data.variants
    ? h("button", { type: "button", class: "grouping", onclick: regroup }, switchTo)
    : "";
  const theme = h("button", { type: "button", class: "theme", onclick: toggle });
  document
    .getElementById("bar")
    .replaceChildren(
      h("div", { class: "chips", role: "group", "aria-label": "Runs to show in the figures" }, chips),
      grouping,
      theme,
    );
  paint(kept());
}

const dark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

// A page opened from disk may have no storage; the choice then lasts as long as the page.
function kept() {
  try {
    return localStorage.getItem("equipoise-theme");
  } catch {
    return null;
  }
}

function keep(theme) {
  try {
    localStorage.setItem("equipoise-theme", theme);
  } catch {
    return;
  }
}

function paint(theme) {
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  document.querySelector(".theme").textContent = dark() ? "Light theme" : "Dark theme";
}

function toggle() {
  paint(dark() ? "light" : "dark");
  keep(root.dataset.theme);
}

// The other view has other panels: the reader stays at the section that was on the screen.
function regroup() {
  const at = [...document.querySelectorAll("main > section")].find((s) => s.getBoundingClientRect().bottom > 80);
  context.single = !context.single;
  build();
  document.getElementById(at?.id)?.scrollIntoView({ behavior: "instant" });
  document.querySelector(".grouping").focus({ preventScroll: true });
}

function build() {
  near.disconnect();
  widths.disconnect();
  header();
  bar();
  own ??= [samplesView(context), settingsView(context)];
  views = [...context.view().panels.map(panelView), ...own];
  document.getElementById("main").replaceChildren(...views.map((v) => v.element));
}

const shape = ({ runs, panels }) =>
  JSON.stringify([runs.map((r) => r.name), panels.map((p) => [p.id, !!p.table, (p.figures || []).map((f) => f.id)])]);

function refresh(next) {
  const before = shape(context.view());
  const top = scrollY,
    at = document.activeElement;
  context.data = next;
  const same = shape(context.view()) === before;
  if (same) context.view().panels.forEach((panel, i) => views[i].update(panel));
  else build();
  own.forEach((v) => v.update());
  if (!same) {
    if (at.isConnected) at.focus({ preventScroll: true });
    scrollTo({ top, behavior: "instant" });
  }
}

async function follow() {
  let tag = null;
  const ask = async () => {
    try {
      return await fetch("/data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    } catch {
      return null;
    }
  };
  for (;;) {
    await new Promise((resume) => setTimeout(resume, document.hidden ? 10000 : 2000));
    const answer = await ask();
    if (answer?.status === 200) {
      tag = answer.headers.get("ETag");
      refresh(await answer.json());
    }
    const state =
      answer?.ok || answer?.status === 304 ? "Live" : "No answer from equipoise watch: these are its last figures.";
    const place = document.getElementById("state");
    if (place.textContent !== state) place.textContent = state;
  }
}

build();
document.getElementById(location.hash.slice(1))?.scrollIntoView();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint(null));
if (root.dataset.mode === "live") follow();
