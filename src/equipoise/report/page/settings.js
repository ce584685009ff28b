// The settings of the runs: what differs, what is the same, and the command that trains each again.

function settingsView(context) {
  const box = h("div");
  const element = h("section", { id: "settings", "aria-labelledby": "settings-title" }, h("h2", { id: "settings-title" }, "Settings"), box);

  function table(keys, label) {
    const runs = context.data.runs;
    return scroller(label, h("table", { class: "settings" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "option"), runs.map((r, i) => h("th", { scope: "col" }, swatch(i), name(r.name))))),
      h("tbody", {}, keys.map((k) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name(k))), runs.map((r) =>
        h("td", { class: r.settings[k] === undefined ? "words unset" : "words" }, name(r.settings[k] ?? "not set"))))))));
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
    box.replaceChildren(
      compared ? h("p", { class: "lead" }, differ.length ? `The runs differ in ${differ.length} of ${keys.length} options, beside their directory.` : "The runs have the same settings, beside their directory.") : "",
      compared && differ.length ? table(differ, "Options that differ") : "",
      same.length ? h("details", {}, h("summary", {}, compared ? `${same.length} options that are the same` : `All ${same.length} options`), table(same, "Options that are the same")) : "",
      h("h3", {}, "Run it again"),
      h("p", { class: "lead" }, "The configuration holds every option with its value, so the same version of equipoise on the same hardware draws the same prompts and the same responses."),
      h("div", { class: "commands" }, runs.map((r, i) => h("article", { class: "card" }, h("h4", {}, swatch(i), name(r.name)),
        r.command ? [h("pre", { tabindex: "0", "aria-label": `Command of ${r.name}` }, ...shown(r.command)), copyButton("Copy command", () => r.command),
          h("details", {}, h("summary", {}, "config.toml"), h("pre", { tabindex: "0", "aria-label": `Configuration of ${r.name}` }, ...shown(r.toml)), copyButton("Copy configuration", () => r.toml))]
          : h("p", {}, "Its settings are not known."),
        r.notes.map((n) => h("p", { class: "note" }, ...shown(n)))))));
  }
  update();
  return { element, update };
}
