"""Dose curves as one SVG: a panel per measure, the mean over seeds and its 95 % interval.

A seed's own level is taken out first, because runs are compared within seeds: the interval is of
the distance from the seed's mean over the doses, so it shows what the test sees. The dashed line is
what is tested: the mean of the seeds' slopes, or of their parabolas where a bend is among the
effects named beforehand.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from equipoise.evaluate.paired import interval
from equipoise.study import results as found_in
from equipoise.study.effects import by_dose
from equipoise.study.plan import Dose, Primary, of_results

WIDTH, HEIGHT = 300, 230  # of a panel
LEFT = 52
BOTTOM = 40
TOP = 34
FOOT = 20
TICKS = 4  # about so many on the vertical axis
SEGMENTS = 24  # of a drawn parabola
SCALE = 1.35  # from these units to pixels, where the page does not say how wide
# It paints its own paper: a page that is dark may hold a light figure, and the reverse.
STYLE = (
    ".paper{fill:#fff}"
    "text{font:11px sans-serif;fill:#333}.title{font-weight:bold}.axis{stroke:#999}.bar{stroke:#1f6f8b;stroke-width:2}"
    ".mean{fill:#1f6f8b}.fit{fill:none;stroke:#c0562b;stroke-width:1.5;stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){.paper{fill:#14181d}text{fill:#ddd}.bar{stroke:#5fb3cf}"
    ".mean{fill:#5fb3cf}.fit{stroke:#f0936a}}"
)


def figure(results: Mapping[str, Any]) -> str:
    """Empty where the study has no dose, or fewer than two whole seeds."""
    study = of_results(results)
    rows = {(row.metric, row.at): row for row in study.primary if row.dosed}
    bent = {(row.metric, row.at) for row in study.primary if row.shape == "bend"}
    columns = 2 if len(rows) <= 4 else 3  # three side by side are too small to read on a page
    panels: list[str] = []
    seeds = 0
    for key, row in rows.items():
        assert study.dose is not None
        outcomes = by_dose(results, row, study.dose)
        if len(outcomes) < 2:
            continue
        down, across = divmod(len(panels), columns)
        drawn = _panel(outcomes, study.dose, row, degree=2 if key in bent else 1)
        panels.append(f'<g transform="translate({across * WIDTH} {down * HEIGHT})">\n{drawn}\n</g>')
        seeds = len(outcomes)
    if not panels:
        return ""
    width, height = WIDTH * min(columns, len(panels)), HEIGHT * math.ceil(len(panels) / columns)
    size = f'width="{SCALE * width:.0f}" height="{SCALE * (height + FOOT):.0f}"'
    view = f'{size} viewBox="0 0 {width} {height + FOOT}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {view} role="img">',
            f"<title>{html.escape(study.question)}</title>",
            f"<style>{STYLE}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            *panels,
            _text(
                8,
                height + 12,
                f"mean of {seeds} seeds, 95 % within seeds; dashed: the fit",
                "start",
            ),
            "</svg>",
            "",
        ]
    )


def _panel(outcomes: np.ndarray, dose: Dose, row: Primary, degree: int) -> str:
    if found_in.is_share(row.metric):
        outcomes = 100 * outcomes
    doses = dose.values
    centred = outcomes - outcomes.mean(1, keepdims=True) + outcomes.mean()
    means = centred.mean(0)
    bounds = [interval(column.tolist()) for column in centred.T]
    ticks = _ticks(min(below for below, _ in bounds), max(above for _, above in bounds))
    low, high = ticks[0], ticks[-1]

    def x(at: float) -> float:
        return LEFT + 8 + (at - doses[0]) / (doses[-1] - doses[0]) * (WIDTH - LEFT - 24)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    parts = [_text(LEFT, 16, _title(row), "start", "title")]
    parts.append(_line(LEFT, HEIGHT - BOTTOM, WIDTH - 8, HEIGHT - BOTTOM, "axis"))
    parts.append(_line(LEFT, TOP, LEFT, HEIGHT - BOTTOM, "axis"))
    digits = _digits(ticks[1] - ticks[0])
    names = [f"{value:.{digits}f}".replace("-", "−") for value in ticks]
    places = [y(value) + 4 for value in ticks]
    parts.extend(_text(LEFT - 6, at, name, "end") for at, name in zip(places, names, strict=True))
    # The fit of the means is the mean of the seeds' fits: least squares is linear in the outcomes.
    fit = np.polyfit(doses, means, degree)
    along = np.linspace(doses[0], doses[-1], SEGMENTS + 1)
    points = " ".join(f"{x(at):.1f},{y(float(np.polyval(fit, at))):.1f}" for at in along)
    parts.append(f'<polyline class="fit" points="{points}"/>')
    for at, mean, (below, above) in zip(doses, means, bounds, strict=True):
        parts.append(_line(x(at), y(below), x(at), y(above), "bar"))
        parts.append(f'<circle class="mean" cx="{x(at):.1f}" cy="{y(mean):.1f}" r="3.5"/>')
        parts.append(_text(x(at), HEIGHT - BOTTOM + 15, f"{at:g}".replace("-", "−")))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, dose.name))
    return "\n".join(parts)


def _title(row: Primary) -> str:
    when = {"last": "at the end", "mean": "mean over the run", "jitter": "jitter"}[row.at]
    unit = "" if not found_in.is_share(row.metric) else ", %"
    if row.metric.startswith("run/"):
        return f"{row.metric.removeprefix('run/')}, mean over the run"
    return f"{row.metric}, {when}{unit}"


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that enclose both, about `TICKS` of them."""
    rough = max(high - low, 1e-9) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * k for k in range(first, max(last, first + 1) + 1)]


def _digits(step: float) -> int:
    """So many that neighbouring ticks differ."""
    return max(0, -math.floor(math.log10(step) + 1e-9))
