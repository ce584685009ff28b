"""What `equipoise theory` prints: the papers' tables recomputed, and what they leave out."""

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.arguments import Array
from equipoise.theory.baseline import (
    average_underestimation,
    baseline_bias,
    conditioned_underestimation,
    debias_constant,
    gradient_gain,
    informative_probability,
)
from equipoise.theory.continuous import (
    RewardLaw,
    beta_rewards,
    spread_baseline_bias,
    spread_probability,
    truncated_normal_rewards,
)
from equipoise.theory.reweighted import reweighted_baseline_bias, reweighted_bias, reweighted_gain
from equipoise.theory.reweighting import Interval, correction_interval, lambda_interval

DIFFICULTIES = (0.01, 0.05, 0.1, 0.25, 0.4, 0.5, 0.75, 0.9, 0.99)
PAPERS_LAMBDA = 1.3


def render() -> str:
    """All the tables as plain text of at most 100 columns, computed on the spot (about a second)."""
    sections = (
        _bias(),
        _corollary_1(),
        _corollaries_2_and_3(),
        _gain(),
        _reweighted_gain(),
        _theorem_3(),
        _conclusion(),
        _where_it_shrinks(),
        _theorem_4(),
        _truncated_normal(),
    )
    return "\n\n".join(sections)


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
        [(str(G), *(f"{f(G, k / G):.4f}" for k in (2, 1) for f in shares)) for G in (6, 8, 16, 64)],
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


def _reweighted_gain() -> str:
    G, anchors = 8, (0.3, 0.5, 0.7)
    gains = {
        p: [reweighted_gain(p, G, anchor, 1.0) for anchor in anchors]
        for p in (0.02, *DIFFICULTIES, 0.98)
    }
    return _section(
        f"What HA-DW does to a prompt's expected gradient, G = {G}, λ = 1",
        f"""Gain as above: the expected gradient of a prompt is gain·∇p under Φ too; without Φ it is {1 - 1 / G:g}.
        λ multiplies all of it. Hard prompts gain over easy ones only with the anchor C above ½: at C = ½
        both ends gain alike, below it the easy ones gain more.""",
        ("p", *(f"C = {anchor:g}" for anchor in anchors)),
        [(f"{p:g}", *(f"{gain:.2f}" for gain in gains[p])) for p in sorted(gains)],
    )


def _theorem_3() -> str:
    anchor = 0.5
    rows = []
    for eps, G in ((0.05, 8), (0.1, 8), (0.1, 64)):
        for p_hat in (0.125, 0.25, 0.5, 0.75):
            right, wrong = (lambda_interval(r, p_hat, anchor, G, eps) for r in (1, 0))
            cells = (
                _ends(correction_interval(p_hat, G, eps)),
                _ends(right),
                _ends(wrong),
                _serves(right, wrong),
            )
            rows.append((f"{eps:g}", str(G), f"{p_hat:g}", *cells))
    return _section(
        "The λ that keep the reweighted advantage within ε of the true one (HA-DW, Lemma 1 and Theorem 3)",
        f"""Anchor C = {anchor:g}, δ = 0.1, Δ = 0.05. ε_δ and (c_low, c_high) are Lemma 1's. Theorem 3 takes λ from the
        union of the two intervals: each serves the responses of its own reward. Trap: one can be empty.
        The last column says whom HA-DW's one λ = {PAPERS_LAMBDA:g} serves.""",
        (
            "ε",
            "G",
            "p̂",
            "(c_low, c_high)",
            "λ for r = 1",
            "λ for r = 0",
            f"{PAPERS_LAMBDA:g} serves",
        ),
        rows,
    )


def _serves(right: Interval, wrong: Interval) -> str:
    intervals = {"right": right, "wrong": wrong}
    served = [name for name, at in intervals.items() if at.low < PAPERS_LAMBDA < at.high]
    return " and ".join(served) or "neither"


def _conclusion() -> str:
    G, anchor, anchors = 8, 0.5, (0.3, 0.5, 0.7)
    rows = []
    for p in DIFFICULTIES:
        plain = float(baseline_bias(p, G))
        raw = [reweighted_bias(r, p, G, anchor, PAPERS_LAMBDA) for r in (1, 0)]
        free = [reweighted_baseline_bias(p, G, C) for C in anchors]
        cells = [f"{x:+.3f}" for x in (-plain, *raw, plain, *free)]
        rows.append((f"{p:g}", *(cell.replace("-0.000", "+0.000") for cell in cells)))
    return _section(
        f"Is the advantage nearer to the truth after Φ? (HA-DW, Theorem 3's conclusion), G = {G}",
        f"""Raw: E[ΦÂ|S] − A at λ = {PAPERS_LAMBDA:g}, C = {anchor:g}. Part of it is scale: a learning rate undoes it.
        Scale-free: b − p, with b the baseline that gives right and wrong responses the same ratio of
        advantages; λ cancels. Without Φ it is E[p̂|S] − p. Φ turns with p̂ here, as it does in training.""",
        ("p", "raw: Â", "ΦÂ, r = 1", "r = 0", "scale-free: Â", *(f"C = {C:g}" for C in anchors)),
        rows,
    )


def _where_it_shrinks() -> str:
    cells = 10_000  # of (0, 1): a share of p is that of their middles
    p = (np.arange(cells) + 0.5) / cells
    rows = []
    for G in (4, 8, 16):
        for C in (0.3, 0.5, 0.7):
            before = np.abs(baseline_bias(p, G))
            after = np.abs(reweighted_baseline_bias(p, G, C))
            raw = [_shrinks_raw(p, G, C, lam) for lam in (0.8, 1.0, PAPERS_LAMBDA)]
            shares = [f"{100 * share:.0f} %" for share in raw]
            rows.append((str(G), f"{C:g}", *shares, _ranges(p, after < before)))
    return _section(
        "Where |bias| is smaller after Φ than before",
        """Raw: the share of p in (0, 1) at which it shrinks for right and for wrong responses alike.
        Scale-free: the p at which it shrinks; λ plays no part.""",
        ("G", "C", "λ = 0.8", "λ = 1", f"λ = {PAPERS_LAMBDA:g}", "scale-free: p in"),
        rows,
    )


def _shrinks_raw(p: Array, G: int, anchor: float, lam: float) -> float:
    before = np.abs(baseline_bias(p, G))
    after = np.maximum(*(np.abs(reweighted_bias(r, p, G, anchor, lam)) for r in (1, 0)))
    return float(np.mean(after < before))


def _ranges(x: Array, inside: NDArray[np.bool_]) -> str:
    """The intervals of x where `inside` holds, by their first and last points."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(int)))
    pairs = zip(edges[::2], edges[1::2] - 1, strict=True)
    return ", ".join(f"{x[first]:.3f}–{x[last]:.3f}" for first, last in pairs) or "nowhere"


def _theorem_4() -> str:
    G, sigmas = 8, (0.1, 0.5, 0.9)
    parameters = ((1, 1), (1, 3), (2, 6), (0.3, 0.9), (0.05, 0.15))
    rows = [
        _spread_row(f"Beta({a:g}, {b:g})", beta_rewards(a, b), G, sigmas) for a, b in parameters
    ]
    binary = f"{baseline_bias(0.25, G):+.4f} ({informative_probability(0.25, G):.2g})"
    rows.append(("binary", "0.25", *(binary for _ in sigmas)))
    return _section(
        f"Rewards on [0, 1]: E[p̂|S_σ] − p with S_σ = {{max − min > σ}}, G = {G} (HA-DW, Theorem 4)",
        """P(S_σ) in brackets. The theorem states the opposite sign; ours is that of the first table.
        The less a Beta keeps between 0 and 1, the nearer it comes to binary rewards.""",
        ("rewards", "p", *(f"σ = {s:g}" for s in sigmas)),
        rows,
    )


def _truncated_normal() -> str:
    G, sigmas = 8, (0.1, 0.5, 0.9)
    parameters = ((0.5, 0.2), (0.25, 0.2), (0.1, 0.2), (0.0, 0.5), (0.9, 0.2))
    rows = [
        _spread_row(f"N({mu:g}, {s:g}²)", truncated_normal_rewards(mu, s), G, sigmas)
        for mu, s in parameters
    ]
    return _section(
        f"The same with a normal law cut to [0, 1], G = {G} (HA-DW, Theorem 4 and Corollary 5)",
        """N(μ, s²) before the cut; p is the mean after it. The bias is small where S_σ is nearly certain, and
        follows the side of ½ on which p lies.""",
        ("rewards", "p", *(f"σ = {s:g}" for s in sigmas)),
        rows,
    )


def _spread_row(name: str, law: RewardLaw, G: int, sigmas: Sequence[float]) -> tuple[str, ...]:
    cells = (
        f"{spread_baseline_bias(law, G, s):+.4f} ({spread_probability(law, G, s):.2g})"
        for s in sigmas
    )
    return name, f"{law.mean:.3g}", *(cell.replace("-0.0000", "+0.0000") for cell in cells)


def _ends(interval: Interval) -> str:
    return "empty" if interval.empty else f"({interval.low:.3f}, {interval.high:.3f})"


def _section(title: str, notes: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, *rows]
    widths = [max(map(_columns, column)) for column in zip(*lines, strict=True)]
    table = []
    for line in lines:
        cells = [
            " " * (width - _columns(cell)) + cell for cell, width in zip(line, widths, strict=True)
        ]
        table.append("  " + "  ".join(cells))
    sentences = [line.strip() for line in notes.splitlines()]
    return "\n".join([title, "-" * _columns(title), *sentences, "", *table])


def _columns(text: str) -> int:
    """How many columns text takes: the hat of p̂ takes none."""
    return sum(not unicodedata.combining(character) for character in text)
