"""Draw docs/figures/gaps.svg: balanced over the batch less token over the batch, by the length gap of wrong responses.

`python scripts/docs/gaps.py` writes the file from studies/results: the mean difference within seeds, in points, with
its 95 % interval, over the mean length gap within groups at the first step.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equipoise.evaluate.paired import interval
from equipoise.study.effects import within
from equipoise.study.plan import Primary
from equipoise.study.results import REGIME, read_results

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "figures" / "gaps.svg"


class Start(NamedTuple):
    """A study's file, what to call it, of which kind it is, and where its label stands."""

    file: str
    label: str
    kind: str
    dx: int = 9
    dy: int = 4
    anchor: str = "start"


STARTS = (
    Start("long_sums_ahead", "sums, numbers left out", "short", 9, -12),
    Start("parted_skip_only", "half left out", "short"),
    Start("parted_copy_less", "and a fifth copied", "short"),
    Start("weights_spread_again", "and a third copied", "short"),
    Start("weights", "lengths its own", "other", -9, -6, "end"),
    Start("parted_skip_less", "a quarter left out", "other", 6, 56),
    Start("long_sums_start_2", "", "other"),
    Start("long_sums_start_1", "sums of 150 tokens, three starts", "other", 0, -38, "middle"),
    Start("long_sums_weights", "", "other"),
    Start("parted_copy_only", "none left out", "other", 14, 40, "middle"),
    Start("weights_long_wrong", "made long", "other", 9, -8),
    Start("longer_wrong", "longer still", "other", 9, -8),
    Start("gsm8k_15b", "GSM8K, 1.5B", "real", 9, -30),
)
KINDS = {
    "short": "steps left out: wrong responses short, or short and long by turns",
    "other": "other starts of the small models",
    "real": "a real model, accuracy at the end",
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 400, 56, 20, 112
GAPS, POINTS = (-0.35, 0.65), (-2.0, 2.5)  # the ends of the axes
# It paints its own paper: a page that is dark may hold a light figure, and the reverse.
STYLE = (
    ".paper{fill:#fff}text{font:13px system-ui,sans-serif;fill:#1f2328}line,circle{stroke-width:2}"
    ".axis,.zero{stroke:#8c959f;stroke-width:1}.zero{stroke-dasharray:3 3}"
    ".short{fill:#c0562b;stroke:#c0562b}.other{fill:#1f6f8b;stroke:#1f6f8b}.real{fill:#fff;stroke:#57606a}"
    "@media(prefers-color-scheme:dark){.paper{fill:#14181d}text{fill:#e8ebee}.short{fill:#f0936a;stroke:#f0936a}"
    ".other{fill:#5fb3cf;stroke:#5fb3cf}.real{fill:#14181d;stroke:#a9b4bf}}"
)


def found(start: Start) -> tuple[float, float, float, float]:
    """The gap, the mean difference and the ends of its interval, in points."""
    results = read_results(ROOT / f"studies/results/{start.file}.json")
    at = "last" if start.kind == "real" else "mean"
    row = Primary("", "acc@8", "batch_balanced", "batch_token", at)
    differences = [100 * d for d in within(results, row, None)]
    gap = float(np.mean([run["first"][REGIME[0]] for run in results["runs"].values()]))
    return (gap, float(np.mean(differences)), *interval(differences))


def x(gap: float) -> float:
    return LEFT + (WIDTH - LEFT - 20) * (gap - GAPS[0]) / (GAPS[1] - GAPS[0])


def y(points: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (POINTS[1] - points) / (POINTS[1] - POINTS[0])


def draw() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Balanced over the batch less token over the batch, by the length gap</title>",
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        *_axes(),
    ]
    for start in STARTS:
        gap, mean, low, high = found(start)
        parts.append(_line(x(gap), y(low), x(gap), y(high), start.kind))
        parts.append(_dot(x(gap), y(mean), start.kind))
        parts.append(_text(x(gap) + start.dx, y(mean) + start.dy, start.label, start.anchor))
    for row, (kind, words) in enumerate(KINDS.items()):
        below = HEIGHT - BOTTOM + 58 + 20 * row
        parts += [_dot(LEFT + 6, below - 4, kind), _text(LEFT + 20, below, words, "start")]
    return "\n".join([*parts, "</svg>\n"])


def _axes() -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = [_line(LEFT, TOP, LEFT, floor, "axis"), _line(LEFT, floor, WIDTH - 20, floor, "axis")]
    parts.append(_line(LEFT, y(0), WIDTH - 20, y(0), "zero"))
    parts += [_text(LEFT - 8, y(p) + 4, f"{p:+g}".replace("-", "−") if p else "0", "end") for p in range(-2, 3)]
    ticks = [k / 10 for k in range(-3, 7)]
    parts += [_text(x(gap), floor + 17, f"{100 * gap:.0f} %".replace("-", "−"), "middle") for gap in ticks]
    parts.append(
        _text((LEFT + WIDTH) / 2, floor + 36, "wrong responses longer within groups, in the first batch", "middle")
    )
    parts.append(
        _text(LEFT + 8, TOP + 6, "points of accuracy more than token over the batch (DAPO's rule), 95 %", "start")
    )
    return parts


def _line(x0: float, y0: float, x1: float, y1: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>'


def _dot(at: float, height: float, kind: str) -> str:
    return f'<circle class="{kind}" cx="{at:.1f}" cy="{height:.1f}" r="4.5"/>'


def _text(at: float, height: float, words: str, anchor: str) -> str:
    return f'<text x="{at:.1f}" y="{height:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
    print(f"wrote {OUT}")
