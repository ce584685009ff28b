"""Tokens per second against the size of the model, a panel for each length, a line for each engine, as SVG.

Drawn from what benchmarks/peers_scale.py wrote. A measurement that was cut off is an open circle: its rate is
that of the beginnings of the responses.
"""

from __future__ import annotations

import html
import math
from typing import Any, NamedTuple

from shapes import SHAPES, TOY, Shape  # benchmarks/shapes.py

WIDTH, HEIGHT = 300, 250  # of a panel
LEFT, TOP, BOTTOM, FOOT = 52, 34, 40, 24
TICKS = [digit * 10**power for power in range(8) for digit in (1, 2, 5)]  # tokens a second
COLOURS = {"equipoise": "ours", "vllm": "peer", "vllm in process": "inside"}
# It paints its own paper: a page that is dark may hold a light figure, and the reverse.
STYLE = (
    ".paper{fill:#fff}text{font:11px sans-serif;fill:#333}.title{font-weight:bold}.axis{stroke:#999}"
    "polyline{fill:none;stroke-width:1.5}circle{stroke-width:1.5;fill:#fff}"
    ".ours{stroke:#1f6f8b}.peer{stroke:#c0562b}.inside{stroke:#8a6d3b;stroke-dasharray:4 3}"
    "circle.ours.whole{fill:#1f6f8b}circle.peer.whole{fill:#c0562b}circle.inside.whole{fill:#8a6d3b}"
    "@media(prefers-color-scheme:dark){.paper{fill:#14181d}text{fill:#ddd}circle{fill:#14181d}.ours{stroke:#5fb3cf}"
    ".peer{stroke:#f0936a}circle.ours.whole{fill:#5fb3cf}circle.peer.whole{fill:#f0936a}}"
)


class Axis(NamedTuple):
    """A logarithmic one: from `low` to `high` over the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def picture(results: dict[str, Any]) -> str:
    works = sorted({work for model in results.values() for work in model if work != "failed"}, key=_longest)
    rates = [
        row["tokens_per_second"] for model in results.values() for work in works for row in model.get(work, {}).values()
    ]
    sizes = [parameters(model) for model in results]
    # From tick to tick; half a model's size of air at the sides.
    up = Axis(max(t for t in TICKS if t <= min(rates)), min(t for t in TICKS if t > max(rates)), HEIGHT - BOTTOM, TOP)
    across = Axis(min(sizes) / 1.5, max(sizes) * 1.5, LEFT, WIDTH - 10)
    panels = [
        f'<g transform="translate({number * WIDTH} 0)">\n{_panel(results, work, across, up)}\n</g>'
        for number, work in enumerate(works)
    ]
    width = WIDTH * len(works)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + FOOT}" role="img">',
            "<title>Tokens per second of the samplers by model size and length</title>",
            f"<style>{STYLE}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            *panels,
            *_legend(results),
            "</svg>",
            "",
        ]
    )


def _panel(results: dict[str, Any], work: str, across: Axis, up: Axis) -> str:
    longest, rows = map(int, work.split(" x "))
    parts = [_text(LEFT, 16, f"up to {longest:,} tokens, {rows:,} rows", "start", "title")]
    parts.append(f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - 10}"/>')
    for tick in TICKS:
        if up.low <= tick <= up.high:
            parts.append(_text(LEFT - 6, up.at(tick) + 4, f"{tick:,}", "end"))
    for model in results:
        parts.append(_text(across.at(parameters(model)), HEIGHT - BOTTOM + 15, model.split("-")[-1]))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, "parameters"))
    for engine, colour in COLOURS.items():
        points = sorted(
            (across.at(parameters(model)), up.at(row["tokens_per_second"]), row["cut"])
            for model, found in results.items()
            if (row := found.get(work, {}).get(engine)) is not None
        )
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="{colour}" points="{path}"/>')
        for x, y, cut in points:
            kind = colour if cut else f"{colour} whole"
            parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    return "\n".join(parts)


def _legend(results: dict[str, Any]) -> list[str]:
    seen = {engine for model in results.values() for work in model.values() for engine in work}
    parts, x = [], 8.0
    for engine, colour in COLOURS.items():
        if engine in seen:
            label = f"{engine}, own process" if engine == "vllm" else engine
            parts.append(f'<line class="{colour}" x1="{x}" x2="{x + 20}" y1="{HEIGHT + 8}" y2="{HEIGHT + 8}"/>')
            parts.append(_text(x + 26, HEIGHT + 12, label, "start"))
            x += 46 + 6.2 * len(label)
    parts.append(_text(x, HEIGHT + 12, "tokens a second; open: cut off", "start"))
    return parts


def parameters(model: str) -> int:
    """Of the shape; a tied head counts once."""
    s: Shape = TOY if model == "toy" else SHAPES[model]
    attention = 2 * s.hidden * s.head_dim * (s.heads + s.kv_heads)
    layer = attention + 3 * s.hidden * s.intermediate
    return s.layers * layer + (1 if s.tied else 2) * s.vocabulary * s.hidden


def _longest(work: str) -> int:
    return int(work.split(" x ")[0])


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
