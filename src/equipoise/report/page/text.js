// Elements and text. Everything that came from a run reaches the page through h() or shown(), which only make text
// nodes: there is no innerHTML in this page.

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  return element;
}

function h(tag, attributes = {}, ...children) {
  const element = set(document.createElement(tag), attributes);
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = set(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes);
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

// Controls, direction marks, zero-width characters and lone surrogates: what could hide or reorder what a reader sees.
const INVISIBLE = /(?![\n\t])[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}\u200b\u2060\ufeff]/gu;

function shown(text) {
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(text.slice(from, match.index), h("span", { class: "code-point" }, `U+${code}`));
    from = match.index + match[0].length;
  }
  return [...nodes, text.slice(from)];
}

// A name that must break does so after one of these rather than inside a word.
const BREAKS = /(?<=[a-z][+(=/_])/;

function name(text) {
  const parts = String(text).split(BREAKS);
  return h("bdi", {}, parts.map((part, i) => [i > 0 && h("wbr"), shown(part)]));
}

const minus = (text) => text.replace("-", "−");

// Four significant digits or as many as are asked for, or a power of ten where that would be mostly zeros.
function number(value, digits = 4) {
  if (value == null) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-3)
    return minus((+value.toPrecision(digits - 1)).toExponential().replace("e+", "e").replace("e-", "e−"));
  const rounded = +value.toPrecision(Math.max(digits, 1 + Math.floor(Math.log10(size))));
  return minus(size >= 1e4 ? rounded.toLocaleString("en", { maximumFractionDigits: 9 }) : String(rounded));
}

const percent = (value) => (value == null ? "–" : `${minus((100 * value).toFixed(1))} %`);
const formats = { percent, number };
const signed = (value) => (value > 0 ? "+" : "") + number(value);
const several = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

// A wide table scrolls inside itself, by keyboard too, and never widens the page.
function scroller(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);
}

// `rows` are pairs: what heads the row, and its cells; a cell is a td, or what goes into one.
function tableOf(attributes, heads, rows) {
  const cell = (c) => (c instanceof HTMLTableCellElement ? c : h("td", {}, c));
  const head = h(
    "tr",
    {},
    heads.map((c) => h("th", { scope: "col" }, c)),
  );
  const body = rows.map(([first, cells]) => h("tr", {}, h("th", { scope: "row" }, first), cells.map(cell)));
  return h("table", attributes, h("thead", {}, head), h("tbody", {}, body));
}

function copyButton(label, text) {
  const button = h("button", { type: "button", class: "small" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy by hand";
    }
    setTimeout(() => (button.textContent = label), 2000);
  });
  return button;
}

const LONG = 720; // characters of a text shown at once

// A long text shows its beginning and its end until asked for all of it. Of a very long one the page has no middle: it
// comes as two parts, and `cut` says how many characters lie between them.
function longText(value, cut, kind, step) {
  const parts = cut ? value : [value];
  const size = parts.reduce((n, part) => n + part.length, 0);
  const body = h("div", { class: kind, dir: "auto" });
  const gap = (words) => h("span", { class: "gap" }, words);
  const count = (n) => several(n, "character");
  const absent = () => gap(`… ${count(cut)} are not in this page; they are in rollouts/step-${step}.parquet …`);
  const whole = () => (cut ? [shown(parts[0]), absent(), shown(parts[1])] : shown(value)).flat();
  if (!size && !cut) return h("div", { class: `${kind} empty` }, "(empty)");
  if (!cut && !value.trim()) return h("div", { class: `${kind} empty` }, `(white space, ${count(size)})`);
  if (size <= LONG) return (body.append(...whole()), body);
  const head = parts[0].slice(0, (2 * LONG) / 3).replace(/[\ud800-\udbff]$/, "");
  const tail = parts
    .at(-1)
    .slice(-LONG / 3)
    .replace(/^[\udc00-\udfff]/, "");
  const few = () => [...shown(head), gap(`… ${count(size + cut - head.length - tail.length)} …`), ...shown(tail)];
  const button = h(
    "button",
    {
      type: "button",
      class: "small",
      "aria-expanded": "false",
      onclick: () => {
        const open = button.getAttribute("aria-expanded") === "true";
        body.replaceChildren(...(open ? few() : whole()));
        body.classList.toggle("open", !open);
        if (open) body.removeAttribute("tabindex");
        else body.setAttribute("tabindex", "0"); // it scrolls, by keyboard too
        button.setAttribute("aria-expanded", String(!open));
        button.textContent = open ? "Show all" : "Show less";
      },
    },
    "Show all",
  );
  body.append(...few());
  return h("div", {}, body, button);
}
