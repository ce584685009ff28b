"""What `equipoise theory` prints: the papers' tables, recomputed, with what they leave out beside them."""

import unicodedata
from collections.abc import Sequence

import numpy as np

from equipoise.theory.baseline import (
    average_underestimation,
    baseline_bias,
    conditioned_underestimation,
    debias_constant,
    gradient_gain,
    informative_probability,
)
from equipoise.theory.continuous import beta_rewards, spread_baseline_bias, spread_probability
from equipoise.theory.reweighting import Interval, lambda_interval

DIFFICULTIES = (0.01, 0.05, 0.1, 0.25, 0.4, 0.5, 0.75, 0.9, 0.99)


def render() -> str:
    """All the tables as plain text of at most 100 columns, computed on the spot (about a second)."""
    return "\n\n".join([_bias(), _corollary_1(), _corollaries_2_and_3(), _gain(), _theorem_3(), _theorem_4()])


def _bias() -> str:
    groups = (2, 4, 8, 16, 64)
    return _section(
        "The group baseline is biased, given that the group teaches anything (HA-DW, Theorem 1)",
        """Binary rewards; p = chance of solving the prompt; S = some of the G responses right, not all.
        E[p̂|S] − p = A − E[Â|S]: positive where the advantage is underestimated (hard prompts).
        The limits are +1/G at p = 0 and −1/G at p = 1.""",
        ("p", *(f"G = {G}" for G in groups)),
        [(f"{p:g}", *(f"{baseline_bias(p, G):+.4f}" for G in groups)) for p in DIFFICULTIES],
    )


def _corollary_1() -> str:
    bounds = (1 / 8, 1 / 4, 1 / 2)
    rows = []
    for G in (2, 4, 6, 8):
        pairs = [(average_underestimation(G, a), conditioned_underestimation(G, a)) for a in bounds]
        rows.append((str(G), *(f"{share:.4f}" for pair in pairs for share in pair)))
    return _section(
        "How often an informative group underestimates, p uniform (HA-DW, Corollary 1)",
        """Trap: the paper averages P(A − Â > 0 | S, p) over p with equal weights, although hard prompts
        seldom give an informative group. "given S" weighs by P(S|p): the share one would count.
        Trap: Appendix D.1 tells the direction the wrong way round; its equations, used here, are right.""",
        ("G", "p < 1/8", "given S", "p < 1/4", "given S", "p < 1/2", "given S"),
        rows,
    )


def _corollaries_2_and_3() -> str:
    shares = (average_underestimation, conditioned_underestimation)
    return _section(
        "The same on p < 2/G and on p < 1/G (HA-DW, Corollaries 2 and 3)",
        """Above .78 for G ≥ 6 on p < 2/G by the paper's average; certain on p < 1/G, where one right
        answer is already more than the mean.""",
        ("G", "p < 2/G", "given S", "p < 1/G", "given S"),
        [
            (
                str(G),
                *(f"{f(G, k / G):.4f}" for k in (2, 1) for f in shares),
            )
            for G in (6, 8, 16, 64)
        ],
    )


def _gain() -> str:
    G = 8
    rows = []
    for p in DIFFICULTIES:
        c, seen = debias_constant(p, G), informative_probability(p, G)
        plain, debiased = gradient_gain(p, G), gradient_gain(p, G, c)
        rows.append((f"{p:g}", *(f"{x:.4f}" for x in (seen, c, plain, debiased, plain / seen))))
    return _section(
        f"What the bias does to the gradient, G = {G}",
        """r − c*·p̂ has an unbiased baseline given S. Yet with binary rewards no baseline turns the expected
        gradient of a prompt: it is gain·∇p for every c, and for r − p̂ the gain does not depend on p.
        Dropping and refilling uninformative groups divides it by P(S): there difficulty enters.""",
        ("p", "P(S)", "c*", "gain: r − p̂", "r − c*·p̂", "r − p̂ given S"),
        rows,
    )


def _theorem_3() -> str:
    anchor = 0.5
    rows = []
    for eps, G in ((0.05, 8), (0.1, 8), (0.1, 64)):
        for p_hat in (0.125, 0.25, 0.5, 0.75):
            right, wrong = (lambda_interval(r, p_hat, anchor, G, eps) for r in (1, 0))
            cells = _ends(right), _ends(wrong), _ends(_intersection(right, wrong))
            rows.append((f"{eps:g}", str(G), f"{p_hat:g}", *cells))
    return _section(
        "The λ that keep the reweighted advantage within ε of the true one (HA-DW, Theorem 3)",
        f"""Anchor C = {anchor:g}, δ = 0.1, Δ = 0.05. Trap: an interval can be empty. HA-DW has one λ (1.3) for right
        and wrong responses alike, which the theorem would want in both intervals.""",
        ("ε", "G", "p̂", "λ for r = 1", "λ for r = 0", "λ for both"),
        rows,
    )


def _theorem_4() -> str:
    G, sigmas = 8, (0.1, 0.5, 0.9)
    rows = []
    for a, b in ((1, 1), (1, 3), (2, 6), (0.3, 0.9), (0.05, 0.15)):
        law = beta_rewards(a, b)
        cells = (f"{spread_baseline_bias(law, G, s):+.4f} ({spread_probability(law, G, s):.2g})" for s in sigmas)
        rows.append((f"Beta({a:g}, {b:g})", f"{law.mean:g}", *(cell.replace("-0.0000", "+0.0000") for cell in cells)))
    binary = f"{baseline_bias(0.25, G):+.4f} ({informative_probability(0.25, G):.2g})"
    rows.append(("binary", "0.25", *(binary for _ in sigmas)))
    return _section(
        f"Rewards on [0, 1]: E[p̂|S_σ] − p with S_σ = {{max − min > σ}}, G = {G} (HA-DW, Theorem 4)",
        """P(S_σ) in brackets. The theorem states the opposite sign; ours is that of the first table.
        The less a Beta keeps between 0 and 1, the nearer it comes to binary rewards.""",
        ("rewards", "p", *(f"σ = {s:g}" for s in sigmas)),
        rows,
    )


def _intersection(one: Interval, other: Interval) -> Interval:
    low, high = float(np.maximum(one.low, other.low)), float(np.minimum(one.high, other.high))  # NaN stays NaN
    return Interval(low, high) if low < high else Interval(float("nan"), float("nan"))


def _ends(interval: Interval) -> str:
    return "empty" if interval.empty else f"({interval.low:.3f}, {interval.high:.3f})"


def _section(title: str, notes: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(_columns(row[i]) for row in [header, *rows]) for i in range(len(header))]
    table = [
        "  " + "  ".join(" " * (width - _columns(cell)) + cell for cell, width in zip(row, widths, strict=True))
        for row in [header, *rows]
    ]
    return "\n".join([title, "-" * _columns(title), *(line.strip() for line in notes.splitlines()), "", *table])


def _columns(text: str) -> int:
    """How many columns text takes: the hat of p̂ takes none."""
    return sum(not unicodedata.combining(character) for character in text)
