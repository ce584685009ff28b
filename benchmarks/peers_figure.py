"""Tokens per second against the size of the model, a panel for each length, a line for each engine, as SVG.

Drawn from what benchmarks/peers_scale.py wrote. A measurement that was cut off is a hollow point: its rate is
that of the beginnings of the responses.
"""

from __future__ import annotations

import html
import math
from typing import Any, NamedTuple

from shapes import SHAPES, TOY, Shape  # benchmarks/shapes.py

WIDTH, HEIGHT = 280, 262  # of a panel
LEFT, TOP, BOTTOM, HEAD, FOOT = 38, 40, 58, 30, 46
TICKS = [digit * 10**power for power in range(8) for digit in (1, 2, 5)]  # tokens a second
COLOURS = {"equipoise": "ours", "vllm": "peer", "vllm in process": "inside"}
NAMES = {"equipoise": "equipoise", "vllm": "vLLM", "vllm in process": "vLLM in process"}
# It paints its own paper: a page that is dark may hold a light figure, and the reverse.
STYLE = (
    ".paper{fill:#fff}text{font:12.5px system-ui,sans-serif;fill:#333}.title,.ratio,.engine{font-weight:bold}"
    ".ratio{font-size:11.5px}.axis{stroke:#999}.grid{stroke:#e4e7ea}polyline{fill:none;stroke-width:1.8}.point{stroke-width:1.8;fill:#fff}"
    "polyline.ours,line.ours{stroke-width:3}.ours{stroke:#1f6f8b}.peer{stroke:#b84d22}.inside{stroke:#8a6d3b}"
    "polyline.inside{stroke-dasharray:4 3}.whole.ours{fill:#1f6f8b}.whole.peer{fill:#b84d22}.whole.inside{fill:#8a6d3b}"
    "text.engine{stroke:none}text.ours{fill:#1f6f8b}text.peer{fill:#b84d22}text.inside{fill:#8a6d3b}"
    "@media(prefers-color-scheme:dark){.paper{fill:#14181d}text{fill:#ddd}.grid{stroke:#2a3037}.point{fill:#14181d}"
    ".ours{stroke:#5fb3cf}.peer{stroke:#f0936a}.inside{stroke:#d3b578}"
    ".whole.ours,text.ours{fill:#5fb3cf}.whole.peer,text.peer{fill:#f0936a}.whole.inside,text.inside{fill:#d3b578}}"
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
    # From tick to tick; a third of a model's size of air at the sides.
    up = Axis(max(t for t in TICKS if t <= min(rates)), min(t for t in TICKS if t > max(rates)), HEIGHT - BOTTOM, TOP)
    across = Axis(min(sizes) / 1.3, max(sizes) * 1.3, LEFT, WIDTH - 10)
    panels = [
        f'<g transform="translate({number * WIDTH} {HEAD})">\n{_panel(results, work, across, up)}\n</g>'
        for number, work in enumerate(works)
    ]
    width = WIDTH * len(works)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEAD + HEIGHT + FOOT}" role="img">',
            "<title>Tokens per second of the samplers by model size and length</title>",
            f"<style>{STYLE}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            *_legend(results),
            *panels,
            *_notes(),
            "</svg>",
            "",
        ]
    )


def _panel(results: dict[str, Any], work: str, across: Axis, up: Axis) -> str:
    longest, rows = map(int, work.split(" x "))
    floor = HEIGHT - BOTTOM
    parts = [_text(LEFT, 16, f"up to {longest:,} tokens × {rows:,} rows", "start", "title")]
    for tick in TICKS:
        if up.low <= tick <= up.high:
            height = up.at(tick)
            parts.append(f'<path class="grid" d="M{LEFT} {height:.1f}H{WIDTH - 10}"/>')
            parts.append(_text(LEFT - 5, height + 4, _thousands(tick), "end"))
    parts.append(f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{floor}H{WIDTH - 10}"/>')
    for model, found in results.items():
        x = across.at(parameters(model))
        parts.append(_text(x, floor + 18, model.split("-")[-1]))
        times = found.get(work, {}).get("vllm", {}).get("times_as_long")
        if times is not None:
            parts.append(_text(x, floor + 37, f"{times:.3g}" if times < 2 else f"{times:.1f}", kind="ratio"))
    for engine in COLOURS:
        parts += _line(results, work, engine, across, up)
    return "\n".join(parts)


def _line(results: dict[str, Any], work: str, engine: str, across: Axis, up: Axis) -> list[str]:
    """An engine's rates, with its name at the smallest model: ours above the line, a peer's below."""
    colour = COLOURS[engine]
    points = sorted(
        (across.at(parameters(model)), up.at(row["tokens_per_second"]), row["cut"])
        for model, found in results.items()
        if (row := found.get(work, {}).get(engine)) is not None
    )
    if not points:
        return []
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    x, y, _ = points[0]
    name = _text(x - 4, y + (-10 if colour == "ours" else 20), NAMES[engine], "start", f"engine {colour}")
    return [
        f'<polyline class="{colour}" points="{path}"/>',
        *(_point(x, y, colour, cut) for x, y, cut in points),
        *([] if colour == "inside" else [name]),  # that one lies on its sibling
    ]


def _point(x: float, y: float, colour: str, cut: bool = False) -> str:
    """A disc for us and a square for a peer: colours alone are not told apart by everybody."""
    kind = f"point {colour}" if cut else f"point {colour} whole"
    if colour == "ours":
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>'
    return f'<rect class="{kind}" x="{x - 3.6:.1f}" y="{y - 3.6:.1f}" width="7.2" height="7.2"/>'


def _legend(results: dict[str, Any]) -> list[str]:
    seen = {engine for model in results.values() for work in model.values() for engine in work}
    parts, x = [_text(LEFT, 20, "Tokens a second", "start", "title")], LEFT + 130.0
    for engine, colour in COLOURS.items():
        if engine in seen:
            parts.append(f'<line class="{colour}" x1="{x}" x2="{x + 30}" y1="16" y2="16"/>')
            parts.append(_point(x + 15, 16, colour))
            parts.append(_text(x + 37, 20, NAMES[engine], "start", f"engine {colour}"))
            x += 64 + 8 * len(NAMES[engine])
    parts.append(_text(x, 20, "hollow: cut off by the clock", "start"))
    return parts


def _notes() -> list[str]:
    return [
        _text(LEFT, HEAD + HEIGHT + 8, "Bold under a model: vLLM's time over ours, for the tokens both drew.", "start"),
        _text(LEFT, HEAD + HEIGHT + 28, "A hollow point is the rate of the responses' beginnings.", "start"),
    ]


def parameters(model: str) -> int:
    """Of the shape; a tied head counts once."""
    s: Shape = TOY if model == "toy" else SHAPES[model]
    attention = 2 * s.hidden * s.head_dim * (s.heads + s.kv_heads)
    layer = attention + 3 * s.hidden * s.intermediate
    return s.layers * layer + (1 if s.tied else 2) * s.vocabulary * s.hidden


def _longest(work: str) -> int:
    return int(work.split(" x ")[0])


def _thousands(tick: int) -> str:
    return f"{tick // 1000}k" if tick >= 1000 else str(tick)


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
