"""Draw docs/figures/gaps.svg: balanced over the batch less token over the batch, by the length gap of wrong responses.

`python scripts/docs/gaps.py` writes the file from studies/results: the mean difference within seeds, in points, with
its 95 % interval, over the mean length gap within groups of the runs with token over the batch.
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
    Start("long_sums_ahead", "numbers left out", "sums"),
    Start("parted_skip_only", "steps left out", "chains", -9, 24, "end"),
    Start("parted_copy_less", "", "chains"),
    Start("weights_spread_again", "", "chains"),
    Start("weights", "", "chains"),
    Start("parted_skip_less", "", "chains"),
    Start("parted_copy_only", "", "chains"),
    Start("weights_long_wrong", "", "chains"),
    Start("longer_wrong", "", "chains"),
    Start("long_sums_start_2", "", "sums"),
    Start("long_sums_start_1", "", "sums"),
    Start("long_sums_weights", "", "sums"),
    Start("tree_search_less", "", "search"),
    Start("tree_search_short", "", "search"),
    Start("tree_search_start_1", "", "search"),
    Start("tree_search", "", "search"),
    Start("gsm8k_15b", "GSM8K, 1.5B", "real", -9, -30, "end"),
)
KINDS = {
    "chains": "the built-in task, responses of 17 tokens",
    "sums": "long sums, of 150",
    "search": "searches of a tree, of 25 to 50",
    "real": "a real model, accuracy at the end",
}
# The outlines of the kinds, around 0: told apart without their colours.
MARKS = {
    "chains": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
    "sums": "M-4 -4H4V4H-4Z",
    "search": "M0 -5L4.8 3.6H-4.8Z",
    "real": "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 434, 56, 34, 132
GAPS, POINTS = (-0.2, 1.4), (-2.0, 2.5)  # the ends of the axes
# It paints its own paper: a page that is dark may hold a light figure, and the reverse.
STYLE = (
    ".paper{fill:#fff}text{font:13px system-ui,sans-serif;fill:#1f2328}line,path{stroke-width:2}"
    ".axis,.zero{stroke:#8c959f;stroke-width:1}.zero{stroke-dasharray:3 3}"
    ".chains{fill:#1f6f8b;stroke:#1f6f8b}.sums{fill:#c0562b;stroke:#c0562b}.search{fill:#5b7f2b;stroke:#5b7f2b}"
    ".real{fill:#fff;stroke:#57606a}"
    "@media(prefers-color-scheme:dark){.paper{fill:#14181d}text{fill:#e8ebee}.chains{fill:#5fb3cf;stroke:#5fb3cf}"
    ".sums{fill:#f0936a;stroke:#f0936a}.search{fill:#a5cf6d;stroke:#a5cf6d}.real{fill:#14181d;stroke:#a9b4bf}}"
)


def found(start: Start) -> tuple[float, float, float, float]:
    """The gap, the mean difference and the ends of its interval, in points."""
    results = read_results(ROOT / f"studies/results/{start.file}.json")
    at = "last" if start.kind == "real" else "mean"
    row = Primary("", "acc@8", "batch_balanced", "batch_token", at)
    differences = [100 * d for d in within(results, row, None)]
    token = [run["run"] for key, run in results["runs"].items() if key.startswith("batch_token/")]
    gap = float(np.mean([run[REGIME[0]] for run in token]))
    return (gap, float(np.mean(differences)), *interval(differences))


def x(gap: float) -> float:
    """Even around 0, logarithmic farther off: most starts lie below a tenth."""
    low, at, high = np.arcsinh(np.array([GAPS[0], gap, GAPS[1]]) / 0.05)
    return float(LEFT + (WIDTH - LEFT - 20) * (at - low) / (high - low))


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
        parts.append(_mark(x(gap), y(mean), start.kind))
        parts.append(_text(x(gap) + start.dx, y(mean) + start.dy, start.label, start.anchor))
    for row, (kind, words) in enumerate(KINDS.items()):
        below = HEIGHT - BOTTOM + 58 + 20 * row
        parts += [_mark(LEFT + 6, below - 4, kind), _text(LEFT + 20, below, words, "start")]
    return "\n".join([*parts, "</svg>\n"])


def _axes() -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = [_line(LEFT, TOP, LEFT, floor, "axis"), _line(LEFT, floor, WIDTH - 20, floor, "axis")]
    parts.append(_line(LEFT, y(0), WIDTH - 20, y(0), "zero"))
    parts += [_text(LEFT - 8, y(p) + 4, f"{p:+g}".replace("-", "−") if p else "0", "end") for p in range(-2, 3)]
    ticks = (-0.1, 0, 0.05, 0.1, 0.2, 0.5, 1)
    parts += [_text(x(gap), floor + 17, f"{100 * gap:.0f} %".replace("-", "−"), "middle") for gap in ticks]
    parts.append(
        _text((LEFT + WIDTH) / 2, floor + 36, "wrong responses longer within groups, on average over the run", "middle")
    )
    parts.append(
        _text(LEFT, TOP - 12, "points of accuracy more than token over the batch (DAPO's rule), 95 %", "start")
    )
    return parts


def _line(x0: float, y0: float, x1: float, y1: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>'


def _mark(at: float, height: float, kind: str) -> str:
    return f'<path class="{kind}" d="{MARKS[kind]}" transform="translate({at:.1f} {height:.1f})"/>'


def _text(at: float, height: float, words: str, anchor: str) -> str:
    return f'<text x="{at:.1f}" y="{height:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
    print(f"wrote {OUT}")
