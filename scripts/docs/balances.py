"""Draw docs/figures/balances.svg: which pairs of mass balance and exchangeability a group allows, and where rules lie.

`python scripts/docs/balances.py` writes the file. Coefficients that turn no sign have, with x = Σc/Σ|c| and
y = ΣcT/Σ|c|T,

    artanh y = artanh x + ½ log(L+/L−)

where L± are the |c|-weighted mean lengths of right and wrong responses (docs/mathematics.md). So the pairs that a group
allows are a band between two curves, and the rules are points in it, computed here by `Objective.assign`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from equipoise import Objective

OUT = Path(__file__).parents[2] / "docs" / "figures" / "balances.svg"
# Right and wrong lengths of a group each: ranges that meet, and ranges that do not.
GROUPS = {
    "Lengths meet: both balances exist": ((10, 14, 18, 26), (16, 22, 30, 36)),
    "Lengths apart: no rule keeps both": ((10, 12, 14, 16), (22, 26, 30, 36)),
}
RULES = {"token": "token", "sequence": "sequence", "balanced": "balanced"}
SIDE, GAP, TOP, LEFT, STRIP = 300, 60, 46, 50, 96
EDGE = 0.7  # the axes go from −EDGE to EDGE
# It paints its own paper: a page that is dark may hold a light figure, and the reverse.
STYLE = (
    ".paper{fill:#fff}.ink{fill:#1f2328}.soft{fill:#57606a}.band{fill:#d7e6f7}.frame{fill:none;stroke:#d0d7de}"
    ".zero{stroke:#8c959f;stroke-dasharray:3 3}.hole{fill:none;stroke:#0b57a4;stroke-width:2}.range{opacity:.35}"
    ".both{fill:#0b57a4}.right{fill:#1a7f37}.wrong{fill:#b42318}"
    "@media(prefers-color-scheme:dark){.paper{fill:#14181d}.ink{fill:#e8ebee}.soft{fill:#a9b4bf}.band{fill:#1d3350}"
    ".frame{stroke:#3a434d}.hole{stroke:#7db4f0}.both{fill:#7db4f0}.right{fill:#57c776}.wrong{fill:#ff8d7a}}"
)


def balances(rule: str, cancellation: str, right: Sequence[int], wrong: Sequence[int]) -> tuple[float, float]:
    """(Σc/Σ|c|, ΣcT/Σ|c|T) of one group under an objective."""
    lengths = torch.tensor([*right, *wrong], dtype=torch.float64)
    rewards = [1.0] * len(right) + [0.0] * len(wrong)
    objective = Objective.preset("dapo", aggregation=rule, cancellation=cancellation)
    c = objective.assign(rewards, ["q"] * len(rewards), lengths.long()).coefficient.double()
    return float(c.sum() / c.abs().sum()), float((c * lengths).sum() / (c.abs() * lengths).sum())


def allowed(x: float, right: Sequence[int], wrong: Sequence[int]) -> tuple[float, float]:
    """The least and the greatest ΣcT/Σ|c|T at Σc/Σ|c| = x, over all coefficients that turn no sign."""
    least, greatest = min(right) / max(wrong), max(right) / min(wrong)
    return tuple(math.tanh(math.atanh(x) + math.log(ratio) / 2) for ratio in (least, greatest))


def draw() -> str:
    width = LEFT + 2 * SIDE + GAP + 30
    height = TOP + SIDE + STRIP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<title>Mass balance against exchangeability, in a group whose lengths meet and in one whose do not</title>",
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
    ]
    for place, (title, (right, wrong)) in enumerate(GROUPS.items()):
        parts += _panel(LEFT + place * (SIDE + GAP), title, right, wrong)
    return "\n".join([*parts, "</svg>\n"])


def _panel(left: float, title: str, right: Sequence[int], wrong: Sequence[int]) -> list[str]:
    def at(x: float, y: float) -> tuple[float, float]:
        return left + SIDE * (x + EDGE) / (2 * EDGE), TOP + SIDE * (EDGE - y) / (2 * EDGE)

    parts = [_text(left + SIDE / 2, 24, title, weight="600")]
    parts.append(f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" class="frame"/>')
    parts.append(_band(at, right, wrong))
    for (x0, y0), (x1, y1) in ((at(-EDGE, 0), at(EDGE, 0)), (at(0, -EDGE), at(0, EDGE))):
        parts.append(f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" class="zero"/>')
    parts.append(_text(left + SIDE / 2, TOP + SIDE + 18, "Σc / Σ|c|   (0: exchangeability)"))
    if left == LEFT:
        middle = TOP + SIDE / 2
        parts.append(
            f'<text transform="translate({left - 14} {middle}) rotate(-90)" text-anchor="middle" '
            'class="ink">ΣcT / Σ|c|T   (0: mass balance)</text>'
        )
    for name, rule in RULES.items():
        x, y = at(*balances(rule, "none", right, wrong))
        beside = {"token": (10, 4), "sequence": (0, -10), "balanced": (0, 20)}[name]
        anchor = "start" if name == "token" else "middle"
        parts += [_dot(x, y, "ink"), _text(x + beside[0], y + beside[1], name, anchor)]
    if max(right) >= min(wrong) and max(wrong) >= min(right):
        x, y = at(*balances("balanced", "both", right, wrong))
        parts += [_dot(x, y, "both"), _text(x - 9, y - 9, "both", "end", kind="both")]
    else:
        x, y = at(0, 0)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="hole"/>')
        parts.append(_text(x - 9, y - 9, "out of reach", "end", kind="both"))
    return parts + _strip(left, right, wrong)


def _band(at, right: Sequence[int], wrong: Sequence[int]) -> str:
    """The region of allowed pairs, cut at the panel's edge."""
    xs = [EDGE * k / 40 for k in range(-40, 41)]
    ends = [allowed(x, right, wrong) for x in xs]
    low = [at(x, max(min(least, EDGE), -EDGE)) for x, (least, _) in zip(xs, ends, strict=True)]
    high = [at(x, max(min(greatest, EDGE), -EDGE)) for x, (_, greatest) in zip(xs, ends, strict=True)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*low, *reversed(high)])
    return f'<polygon points="{points}" class="band"/>'


def _strip(left: float, right: Sequence[int], wrong: Sequence[int]) -> list[str]:
    """The lengths themselves, right above wrong, each with its range."""
    parts = []
    longest = 40
    for row, (name, lengths) in enumerate((("right", right), ("wrong", wrong))):
        y = TOP + SIDE + 46 + 22 * row
        places = [left + 46 + (SIDE - 46) * length / longest for length in lengths]
        parts.append(_text(left, y + 4, name, "start", kind=name))
        span = f'x="{places[0]:.1f}" y="{y - 1.5}" width="{places[-1] - places[0]:.1f}" height="3"'
        parts.append(f'<rect {span} class="{name} range"/>')
        parts += [_dot(x, y, name) for x in places]
    parts.append(_text(left + SIDE, TOP + SIDE + 90, "length in tokens, 0 to 40", "end", kind="soft"))
    return parts


def _dot(x: float, y: float, kind: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="{kind}"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle", *, kind: str = "ink", weight: str = "400") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" class="{kind}">{words}</text>'


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
    print(f"wrote {OUT}")
