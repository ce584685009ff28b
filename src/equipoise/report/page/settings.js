// The settings of the runs: what differs, what is the same, and the command that trains each again.

// A line may end before an option, not inside "--train.out".
const unbroken = (command) =>
  command.split(/(?<=\s)(--[\w.]+)/).map((part, i) => (i % 2 ? h("span", { class: "option" }, part) : shown(part)));

function settingsView(context) {
  const box = h("div");
  const element = h(
    "section",
    { id: "settings", "aria-labelledby": "settings-title" },
    h("h2", { id: "settings-title" }, "Settings"),
    box,
  );

  function table(keys, label) {
    const runs = context.data.runs;
    const cell = (value) => h("td", { class: value === undefined ? "words unset" : "words" }, name(value ?? "not set"));
    const heads = ["option", ...runs.map((r) => [swatch(r.look), name(r.name)])];
    const rows = keys.map((k) => [h("code", {}, name(k)), runs.map((r) => cell(r.settings[k]))]);
    const box = scroller(label, tableOf({ class: "settings" }, heads, rows));
    box.style.setProperty("--columns", runs.length);
    return box;
  }

  function again(run, i) {
    const config = h(
      "details",
      {},
      h("summary", {}, "config.toml"),
      h("pre", { tabindex: "0", "aria-label": `Configuration of ${run.name}` }, shown(run.toml)),
      copyButton("Copy configuration", () => run.toml),
    );
    const known = [
      h("pre", { tabindex: "0", "aria-label": `Command of ${run.name}` }, unbroken(run.command)),
      copyButton("Copy command", () => run.command),
      config,
    ];
    return h(
      "article",
      { class: "card" },
      h("h4", {}, swatch(run.look), name(run.name)),
      run.command ? known : h("p", {}, "Its settings are not known."),
      run.notes.map((n) => h("p", { class: "note" }, shown(n))),
    );
  }

  function update() {
    const runs = context.data.runs;
    const state = JSON.stringify(runs.map((r) => [r.name, r.toml, r.command, r.notes]));
    if (box.state === state) return;
    box.state = state;
    const keys = [...new Set(runs.flatMap((r) => Object.keys(r.settings)))].filter((k) => k !== "train.out");
    const same = keys.filter((k) => new Set(runs.map((r) => r.settings[k])).size === 1);
    const differ = keys.filter((k) => !same.includes(k));
    const compared = runs.length > 1;
    const found = differ.length
      ? `The runs differ in ${differ.length} of ${keys.length} options`
      : "The runs have the same settings";
    const all = same.length === 1 ? "Its only option" : `All ${same.length} options`;
    const rest = compared ? `${several(same.length, "option that is", "options that are")} the same` : all;
    box.replaceChildren(
      compared ? h("p", { class: "lead" }, `${found}, beside their directory.`) : "",
      differ.length ? table(differ, "Options that differ") : "",
      same.length ? h("details", {}, h("summary", {}, rest), table(same, rest)) : "",
      h("h3", {}, "Run it again"),
      h(
        "p",
        { class: "lead" },
        "The configuration holds every option with its value: the same version of equipoise on the same ",
        "hardware draws the same prompts and the same responses.",
      ),
      h("div", { class: "commands" }, runs.map(again)),
    );
  }

  update();
  return { element, update };
}
