// The sample viewer: groups of responses side by side, filtered by run, step, verdict, reward, length and words.
// ← → move between responses, ↑ ↓ between groups, Home and End to the first and the last response.

const VERDICTS = { correct: "✓", wrong: "✗" };

function samplesView(context) {
  const filter = { run: "", step: "", verdict: "", leastReward: "", mostReward: "", leastLength: "", mostLength: "", text: "" };
  let matching = [];
  let at = 0;
  let focused = 0;

  const choice = (key, label) => {
    const select = h("select", {
      id: `filter-${key}`,
      onchange: () => {
        filter[key] = select.value;
        apply();
      },
    });
    return { key, select, element: h("div", { class: "one" }, h("label", { for: select.id }, label), select) };
  };
  const bound = (key, label, placeholder) => {
    const input = h("input", {
      type: "number",
      step: "any",
      inputmode: "decimal",
      placeholder,
      "aria-label": label,
      oninput: () => {
        filter[key] = input.value;
        apply();
      },
    });
    return { key, input };
  };
  const choices = [choice("run", "Run"), choice("step", "Step"), choice("verdict", "Verdict")];
  const bounds = [
    bound("leastReward", "Least reward", "from"),
    bound("mostReward", "Most reward", "to"),
    bound("leastLength", "Least length", "from"),
    bound("mostLength", "Most length", "to"),
  ];
  const text = h("input", {
    type: "search",
    id: "filter-text",
    oninput: () => {
      filter.text = text.value;
      apply();
    },
  });
  const pair = (label, a, b) =>
    h("div", { class: "pair", role: "group", "aria-label": label }, h("span", {}, label), a.input, b.input);
  const clear = h(
    "button",
    {
      type: "button",
      class: "small",
      onclick: () => {
        Object.keys(filter).forEach((k) => (filter[k] = ""));
        choices.forEach((c) => (c.select.value = ""));
        bounds.forEach((b) => (b.input.value = ""));
        text.value = "";
        apply();
      },
    },
    "Clear filters",
  );
  const count = h("p", { class: "count", role: "status" });
  const before = h("button", { type: "button", onclick: () => go(at - 1) }, "← Previous group");
  const after = h("button", { type: "button", onclick: () => go(at + 1) }, "Next group →");
  const head = h("div", { class: "group-head" });
  const list = h("div", { class: "responses", role: "group", "aria-label": "Responses of the group", onkeydown: key });
  const left = h("div", { class: "left-out" });
  const viewer = h(
    "div",
    { class: "viewer" },
    h(
      "div",
      { class: "filters" },
      choices.map((c) => c.element),
      pair("Reward", bounds[0], bounds[1]),
      pair("Length, tokens", bounds[2], bounds[3]),
      h("div", { class: "one" }, h("label", { for: text.id }, "Says"), text),
      clear,
    ),
    h("div", { class: "walk" }, before, after, count),
    head,
    list,
    h(
      "p",
      { class: "keys" },
      "In a response: ",
      h("kbd", {}, "←"),
      " ",
      h("kbd", {}, "→"),
      " move between responses, ",
      h("kbd", {}, "↑"),
      " ",
      h("kbd", {}, "↓"),
      " between groups.",
    ),
  );
  const element = h(
    "section",
    { id: "samples", "aria-labelledby": "samples-title" },
    h("h2", { id: "samples-title" }, "Samples"),
    h(
      "p",
      { class: "lead" },
      "What the policy wrote, and what the objective made of it: the advantage A, the weight w of each token, and the ",
      "coefficient c = w·A that its gradient is multiplied by.",
    ),
    viewer,
    left,
  );

  const groups = () =>
    context.data.runs
      .flatMap((run, i) => run.groups.map((g) => ({ ...g, run: i })))
      .sort((a, b) => a.step - b.step || a.order - b.order || a.run - b.run);
  const id = (g) => `${context.data.runs[g.run].name}/${g.step}/${g.order}`;
  const place = (wanted) => matching.findIndex((g) => id(g) === wanted);
  const within = (v, least, most) =>
    (least === "" || (v != null && v >= +least)) && (most === "" || (v != null && v <= +most));
  const says = (r) => [r.text].flat().join(" ").toLowerCase().includes(filter.text.toLowerCase());
  const fits = (r) =>
    (filter.verdict === "" || r.verdict === filter.verdict) &&
    within(r.reward, filter.leastReward, filter.mostReward) &&
    within(r.length, filter.leastLength, filter.mostLength) &&
    says(r);

  function update() {
    const all = groups();
    fillChoice(
      choices[0],
      "All runs",
      context.data.runs.map((r) => [r.name, r.name]),
    );
    fillChoice(
      choices[1],
      "All steps",
      [...new Set(all.map((g) => g.step))].map((s) => [String(s), String(s)]),
    );
    fillChoice(
      choices[2],
      "All verdicts",
      [...new Set(all.flatMap((g) => g.responses.map((r) => r.verdict)))]
        .filter(Boolean)
        .sort()
        .map((v) => [v, v]),
    );
    viewer.hidden = all.length === 0;
    left.replaceChildren(
      all.length
        ? h(
            "p",
            {},
            "In this page: whole groups from the first, the last and evenly spaced steps, in the order of the files. ",
            "The rest is in each run's rollouts folder.",
          )
        : "",
      h(
        "ul",
        {},
        context.data.runs.map((r) => h("li", {}, name(r.name), ": ", r.left_out)),
      ),
    );
    apply();
  }

  function fillChoice({ key, select }, everything, options) {
    const wanted = [["", everything], ...options];
    if (JSON.stringify(wanted) === select.dataset.options) return;
    select.dataset.options = JSON.stringify(wanted);
    select.replaceChildren(...wanted.map(([value, label]) => h("option", { value }, label.replace(INVISIBLE, "�"))));
    select.value = wanted.some(([value]) => value === filter[key]) ? filter[key] : (filter[key] = "");
  }

  function apply() {
    const current = matching[at] && id(matching[at]);
    const all = groups();
    matching = all
      .filter(
        (g) =>
          (filter.run === "" || context.data.runs[g.run].name === filter.run) &&
          (filter.step === "" || g.step === +filter.step),
      )
      .map((g) => ({ ...g, found: g.responses.map((r, i) => [r, i]).filter(([r]) => fits(r)) }))
      .filter((g) => g.found.length);
    at = Math.max(0, place(current));
    clear.disabled = Object.values(filter).every((v) => v === "");
    const total = all.reduce((n, g) => n + g.responses.length, 0),
      found = matching.reduce((n, g) => n + g.found.length, 0);
    count.dataset.found = found;
    count.dataset.total = total;
    show();
  }

  function show() {
    const g = matching[at];
    const [found, total] = [+count.dataset.found, +count.dataset.total];
    const whole = several(total, "response");
    const match = found === total ? whole : `${found.toLocaleString("en")} of ${whole} match`;
    count.textContent = g ? `Group ${at + 1} of ${matching.length}. ${match}.` : `None of ${whole} match.`;
    before.disabled = at <= 0;
    after.disabled = at >= matching.length - 1;
    const alike = (o) => o.step === g.step && o.prompt_id === g.prompt_id && o.run !== g.run;
    const elsewhere = g ? matching.filter(alike) : [];
    const state = g ? JSON.stringify([context.data.runs[g.run].name, g, elsewhere.map(id)]) : "";
    if (list.state === state) return; // a refresh that changes nothing here keeps what is open and focused
    list.state = state;
    const had = list.contains(document.activeElement);
    if (!g) return void (head.replaceChildren(), list.replaceChildren());
    const facts = [
      ["mean reward", number(g.reward)],
      ["mass balance", g.mass_balance == null ? "–" : signed(g.mass_balance)],
      ["exchangeability", number(g.exchangeability)],
    ];
    head.replaceChildren(
      h(
        "p",
        { class: "where" },
        swatch(context.data.runs[g.run].look),
        h("b", {}, name(context.data.runs[g.run].name)),
        ` step ${g.step}`,
        g.level ? [", level ", name(g.level)] : null,
        `, ${g.found.length === g.responses.length ? "" : `${g.found.length} of `}${g.responses.length} responses`,
      ),
      h(
        "dl",
        { class: "facts" },
        facts.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, v))),
      ),
      elsewhere.length
        ? h(
            "p",
            { class: "elsewhere" },
            "The same prompt at this step: ",
            elsewhere.map((o) =>
              h(
                "button",
                { type: "button", class: "small", onclick: () => go(place(id(o))) },
                name(context.data.runs[o.run].name),
              ),
            ),
          )
        : "",
      h("h3", { class: "sr" }, "Prompt"),
      longText(g.prompt, g.prompt_cut, "prompt", g.step),
    );
    const largest = Math.max(...g.responses.map((r) => Math.abs(r.coefficient || 0)));
    focused = Math.min(focused, g.found.length - 1);
    list.replaceChildren(...g.found.map(([r, i], k) => card(g, r, i, k, largest)));
    if (had) list.children[focused].focus();
  }

  function card(g, r, i, k, largest) {
    const rows = [
      ["advantage A", number(r.advantage)],
      ...("phi" in r ? [["Φ, part of A", number(r.phi)]] : []),
      ["weight w", number(r.weight)],
      ["coefficient c", number(r.coefficient)],
    ];
    const share = largest && r.coefficient != null ? r.coefficient / largest : null;
    const bar = h(
      "div",
      { class: "pull", "aria-hidden": "true" },
      share == null ? null : h("i", { class: share < 0 ? "down" : "up" }),
    );
    if (share != null) bar.firstChild.style.width = `${50 * Math.abs(share)}%`;
    return h(
      "article",
      {
        class: "response",
        tabindex: k === focused ? "0" : "-1",
        "aria-label":
          `Response ${i + 1} of ${g.responses.length}: ${r.verdict}, reward ${number(r.reward)}, ` +
          `${number(r.length)} tokens, coefficient ${number(r.coefficient)}`,
        onfocus: () => settle(k),
      },
      h(
        "header",
        {},
        h(
          "span",
          { class: `verdict ${r.verdict === "correct" || r.verdict === "wrong" ? r.verdict : ""}` },
          VERDICTS[r.verdict] || "?",
          " ",
          name(r.verdict || "none"),
        ),
        h("span", {}, `reward ${number(r.reward)}`),
        h("span", {}, `${number(r.length)} tokens`),
        r.finish === "length" ? h("span", { class: "cut" }, "cut off") : null,
      ),
      h(
        "dl",
        {},
        rows.map(([a, b]) => h("div", {}, h("dt", {}, a), h("dd", {}, b))),
      ),
      bar,
      longText(r.text, r.cut, "text", g.step),
    );
  }

  function settle(k) {
    list.children[focused]?.setAttribute("tabindex", "-1");
    focused = k;
    list.children[k].setAttribute("tabindex", "0");
  }

  function go(to) {
    if (to < 0 || to >= matching.length) return;
    at = to;
    show();
  }

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = list.children.length - 1;
    const to = { ArrowRight: focused + 1, ArrowLeft: focused - 1, Home: 0, End: last }[event.key];
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (to == null && move == null) return;
    event.preventDefault();
    if (move) go(at + move);
    else list.children[Math.max(0, Math.min(to, last))].focus();
  }

  update();
  return { element, update };
}
