"""A measured bias as one self-contained HTML page: neither script nor network."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from equipoise import theory
from equipoise.audit.bootstrap import Estimate
from equipoise.report.static import static_page
from equipoise.study.bias import MEASURES, PLAIN, Result
from equipoise.study.bias_text import (
    SCALE,
    SYMBOLS,
    TITLES,
    ends,
    head,
    interval_name,
    nothing,
    shares,
    verdict,
)

STYLE = Path(__file__).with_name("bias.css")


def page(result: Result, title: str) -> str:
    if why := nothing(result):
        sections = [_section("Nothing to measure", why, "")]
    else:
        tables = [_table(result, name) for name in MEASURES]
        sections = [_baseline(result), _options(result), _one_of(result), *tables]
    caption = "".join(f"<p>{_words(text)}</p>" for text in (head(result), SYMBOLS))
    header = f"<header><h1>{html.escape(title)}</h1>{caption}</header>"
    body = "\n".join([header, "<main>", *sections, "</main>"])
    return static_page(title, STYLE.read_text(encoding="utf-8"), body)


class Plot:
    """An SVG of points over the success rate. Data coordinates in, markup out."""

    def __init__(self, low: float, high: float, width: int = 700, height: int = 300) -> None:
        self.low, self.high = low, high
        self.width, self.height = width, height
        self.left, self.bottom, self.top = 52, 44, 28
        self.parts: list[str] = []
        self._axes()

    def x(self, p: float) -> float:
        return self.left + p * (self.width - self.left - 12)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.height - self.bottom - share * (self.height - self.bottom - self.top)

    def _axes(self) -> None:
        for value in _ticks(self.low, self.high):
            kind = "zero" if abs(value) < 1e-12 else "grid"
            self.line(0, value, 1, value, kind)
            name = _minus(f"{value:+.3g}") if value else "0"
            self.text(self.left - 6, self.y(value) + 4, name, "end")
        for p in (0, 0.25, 0.5, 0.75, 1):
            self.text(self.x(p), self.height - self.bottom + 18, f"{p:g}", "middle")
        self.text(self.x(0.5), self.height - 5, "success rate of the prompt", "middle")

    def line(self, x0: float, y0: float, x1: float, y1: float, kind: str) -> None:
        start = f'x1="{self.x(x0):.1f}" y1="{self.y(y0):.1f}"'
        end = f'x2="{self.x(x1):.1f}" y2="{self.y(y1):.1f}"'
        self.parts.append(f'<line class="{kind}" {start} {end}/>')

    def text(self, x: float, y: float, text: str, anchor: str, kind: str = "") -> None:
        named = f' class="{kind}"' if kind else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.parts.append(f"<text{named} {place}>{html.escape(text)}</text>")

    def names(self, axis: str) -> None:
        """What the vertical axis is, and the two marks in their colours."""
        self.text(4, 14, axis, "start")
        self.text(self.width - 12, 14, "- - closed form", "end", "of-theory")
        self.text(self.width - 165, 14, "● measured", "end", "of-measured")

    def curve(self, f: Callable[[float], float], kind: str) -> None:
        points = " ".join(f"{self.x(p):.1f},{self.y(f(p)):.1f}" for p in np.linspace(0, 1, 201))
        self.parts.append(f'<polyline class="{kind}" points="{points}"/>')

    def estimate(self, p: float, estimate: Estimate, label: str) -> None:
        if estimate.value is None:
            return
        if estimate.low is not None and estimate.high is not None:
            self.line(p, max(estimate.low, self.low), p, min(estimate.high, self.high), "interval")
        caption = _minus(f"{label}: {estimate.value:+.3f} ({ends(estimate)})")
        self.parts.append(
            f'<circle class="point" cx="{self.x(p):.1f}" cy="{self.y(estimate.value):.1f}" r="4.5">'
            f"<title>{html.escape(caption)}</title></circle>"
        )

    def svg(self, label: str) -> str:
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{html.escape(label)}">'
            + "".join(self.parts)
            + "</svg>"
        )


def _minus(text: str) -> str:
    """Numbers with a minus sign in place of the hyphen."""
    return re.sub(r"-(?=[\d.])", "−", text)


def _words(text: str) -> str:
    """Escaped; a number stays on the line of its percent sign."""
    return html.escape(text).replace(" %", "\N{NO-BREAK SPACE}%")


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers between low and high."""
    raw = (high - low) / 5
    size = 10 ** np.floor(np.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
    return [
        float(round(k * step, 10))
        for k in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)
    ]


def _reach(estimates: Sequence[Estimate], least: float) -> float:
    """How far the axis must go on either side to hold the estimates and their intervals."""
    seen = [abs(v) for e in estimates for v in (e.value, e.low, e.high) if v is not None]
    return 1.1 * max([least, *seen])


def _baseline(result: Result) -> str:
    """The paper's Figure 1b: the group baseline's bias by difficulty, and Theorem 1's."""
    found = [b.measured for b in result.bins]
    reach = _reach(found, 1 / result.group)
    plot = Plot(-reach, reach, 520, 290)
    plot.names("E[p̂|S] − p")
    plot.curve(lambda p: float(theory.baseline_bias(p, result.group)), "theory")
    for b in result.bins:
        if b.success is not None:
            plot.estimate(b.success, b.measured, f"success rate {interval_name(b)}")
    drawing = plot.svg("measured bias of the group baseline by success rate, with the closed form")
    caption = (
        f"E[p̂|S] − p with {result.group} responses a group: points are measured, with 95 % intervals over prompts; the "
        "dashed line is the closed form (HA-DW, Theorem 1). Above 0 the advantage is underestimated. "
        + verdict(result)
    )
    return _section("The group baseline", caption, f'<figure class="wide">{drawing}</figure>')


def _options(result: Result) -> str:
    every = [e for found in result.options.values() for e in found["scale_free"]]
    reach = _reach(every, 1 / result.group)
    figures = []
    for name, found in result.options.items():
        plot = Plot(-reach, reach, 320, 230)
        plot.text(4, 14, "b − p", "start")
        plot.curve(lambda p: float(theory.baseline_bias(p, result.group)), "theory")
        for b, estimate in zip(result.bins, found["scale_free"], strict=True):
            if b.success is not None:
                plot.estimate(b.success, estimate, f"{name}, {interval_name(b)}")
        drawing = plot.svg(f"{name}: bias without scale by success rate")
        figures.append(f"<figure><h3>{html.escape(name)}</h3>{drawing}</figure>")
    caption = (
        f"{_sentence(TITLES['scale_free'])}. The dashed line is the closed form for {PLAIN}, for comparison: an "
        "advantage without bias would lie on 0."
    )
    return _section("Every advantage", caption, f'<div class="many">{"".join(figures)}</div>')


def _one_of(result: Result) -> str:
    """The paper's Figure 6."""
    items = "".join(f"<p>{_words(line)}</p>" for line in shares(result))
    caption = "Sampled again, is a prompt harder than a lucky group made it look, and easier than an unlucky one?"
    return _section("One success, one failure", caption, items)


def _table(result: Result, measure: str) -> str:
    header = "".join(f'<th scope="col">{html.escape(interval_name(b))}</th>' for b in result.bins)
    head = f'<thead><tr><th scope="col">advantage</th>{header}</tr></thead>'
    rows = []
    for name, found in result.options.items():
        cells = "".join(f"<td>{_cell(estimate)}</td>" for estimate in found[measure])
        rows.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    caption = "By success rate of the prompt, with 95 % intervals over prompts."
    if measure != "scale_free":
        caption = f"{caption} {SCALE}"
    title = _sentence(TITLES[measure])
    box = f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(title)}">'
    return _section(
        title, caption, f"{box}<table>{head}<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(estimate: Estimate) -> str:
    if estimate.value is None:
        return "–"
    return _minus(f"{estimate.value:+.3f}<small>{html.escape(ends(estimate))}</small>")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _section(title: str, caption: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2><p>{_words(caption)}</p>{content}</section>"
