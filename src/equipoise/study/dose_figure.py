"""Dose curves as one SVG: a panel per measure, the mean over seeds at each dose and its 95 % interval.

A seed's own level is taken out first, because runs are compared within seeds: the interval is of the distance from the
seed's mean over the doses, so it shows what the test sees. The line is the mean of the seeds' slopes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.study import results as found_in
from equipoise.study.compare import interval
from equipoise.study.effects import by_dose
from equipoise.study.plan import Primary, parse

WIDTH, HEIGHT = 300, 230
LEFT, BOTTOM, TOP = 52, 40, 34
STYLE = (
    "text{font:11px sans-serif;fill:#333}.title{font-weight:bold}.axis{stroke:#999}.bar{stroke:#1f6f8b;stroke-width:2}"
    ".mean{fill:#1f6f8b}.slope{stroke:#c0562b;stroke-width:1.5;stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def figure(results: Mapping[str, Any]) -> str:
    """Empty where the study has no dose, or fewer than two whole seeds."""
    study = parse({key: value for key, value in results.items() if key != "runs"}, "results")
    rows = {(row.metric, row.at): row for row in study.primary if row.dosed}
    panels: list[str] = []
    for row in rows.values():
        assert study.dose is not None
        outcomes = by_dose(results, row, study.dose)
        if len(outcomes) > 1:
            panels.append(_panel(outcomes, study.dose.values, study.dose.name, row, len(panels)))
    if not panels:
        return ""
    size = f"{WIDTH * len(panels)} {HEIGHT}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">'
    return "\n".join(
        [head, f"<title>{html.escape(study.question)}</title>", f"<style>{STYLE}</style>", *panels, "</svg>", ""]
    )


def _panel(outcomes: np.ndarray, doses: Sequence[float], name: str, row: Primary, place: int) -> str:
    unit = 100.0 if found_in.is_share(row.metric) else 1.0
    outcomes = unit * outcomes
    centred = outcomes - outcomes.mean(1, keepdims=True) + outcomes.mean()
    means = centred.mean(0)
    bounds = [interval(column.tolist()) for column in centred.T]
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    pad = 0.08 * (high - low) or 0.5
    low, high = low - pad, high + pad

    def x(dose: float) -> float:
        return LEFT + 8 + (dose - doses[0]) / (doses[-1] - doses[0]) * (WIDTH - LEFT - 24)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    parts = [f'<g transform="translate({place * WIDTH} 0)">']
    when = {"last": "at the end", "mean": "mean over the run", "jitter": "jitter"}[row.at]
    title = row.metric.removeprefix("run/") if row.metric.startswith("run/") else f"{row.metric}, {when}"
    parts.append(f'<text class="title" x="{LEFT}" y="16">{html.escape(title)}</text>')
    parts.append(_line(LEFT, HEIGHT - BOTTOM, WIDTH - 8, HEIGHT - BOTTOM, "axis"))
    parts.append(_line(LEFT, TOP, LEFT, HEIGHT - BOTTOM, "axis"))
    for value in np.linspace(low, high, 4):
        parts.append(
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.{_digits(high - low)}f}</text>'
        )
    slope = np.polyfit(doses, means, 1)
    ends = [float(np.polyval(slope, dose)) for dose in (doses[0], doses[-1])]
    parts.append(_line(x(doses[0]), y(ends[0]), x(doses[-1]), y(ends[1]), "slope"))
    for dose, mean, (below, above) in zip(doses, means, bounds, strict=True):
        parts.append(_line(x(dose), y(below), x(dose), y(above), "bar"))
        parts.append(f'<circle class="mean" cx="{x(dose):.1f}" cy="{y(mean):.1f}" r="3.5"/>')
        parts.append(f'<text x="{x(dose):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{dose:g}</text>')
    middle = (LEFT + WIDTH) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(name)}</text></g>')
    return "\n".join(parts)


def _line(x0: float, y0: float, x1: float, y1: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>'


def _digits(spread: float) -> int:
    """So many that neighbouring ticks differ."""
    return max(0, 1 - math.floor(math.log10(max(spread, 1e-9))))
