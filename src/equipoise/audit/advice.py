"""An audit in sentences: what is wrong with the objective on this log, how sure, what to change.

A finding needs its whole 95 % interval beyond a floor below which no one would change a
configuration (FLOORS, our choice); an interval wholly below it says there is nothing to do;
anything else is "no evidence". The regime rule of Balanced Aggregation (large length CV and small
gap favour token, the reverse favours sequence) has no thresholds in the paper. Here it is a
comparison of distances: how far the coefficients of either rule are from those of balanced.

Not here: whether a change improves a benchmark. The measures say which balance a rule breaks; what
a sign imbalance costs was measured on three small tasks (docs/study.md). A change is proposed where
the studies found a cost, and none where they found a gain or a tie; the finding says which it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from equipoise.audit import studied
from equipoise.audit.bootstrap import Estimate
from equipoise.audit.measure import Audit

FLOORS = {
    "coupling": 0.05,  # one sign pulls 5 % harder
    "equal_weighting": 0.1,  # token weights spread by 10 %
    "node_learning_tax": 0.01,  # of the gradient mass
    "zero_sum": 0.01,  # of the advantages
    "baseline_bias": 0.01,  # of a success rate
    "hard_share": 0.02,  # of the informative groups
    "degenerate": 0.3,  # of the groups
    "truncated": 0.05,  # of the responses
}
FEW_PROMPTS = 30
PER_RESPONSE = ("sequence", "power")  # rules whose weight falls with the response's own length
ONE_LENGTH = ("token", "constant")
BALANCED = 'objective.aggregation = { name = "balanced", over = "batch" }'
TOKEN = 'objective.aggregation = { name = "token", over = "batch" }'
RECENTRE = 'objective.difficulty = { name = "hadw", recentre = true }'
SEQUENCE_IN = {"TRL": 'loss_type="grpo"', "verl": "loss_agg_mode=seq-mean-token-mean"}


@dataclass(frozen=True)
class Advice:
    """`evidence`: True (a finding), False (nothing to do) or None (the log cannot tell)."""

    topic: str
    evidence: bool | None
    finding: str
    change: str | None = None


def advise(audit: Audit) -> list[Advice]:
    """The advice on the audited objective, one entry per subject."""
    if audit.advantage == "none":
        return [_no_advantage(audit), _truncated(audit)]
    return [
        _coupling(audit),
        *([_starvation(audit)] if _rule(audit) in PER_RESPONSE else []),
        _regime(audit),
        _shared(audit),
        _baseline(audit),
        _degenerate(audit),
        _truncated(audit),
    ]


def beyond(estimate: Estimate, floor: float) -> bool | None:
    """Whether the interval lies above the floor or (False) below; None: neither, or none."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    return True if estimate.low > floor else False if estimate.high <= floor else None


def _unknown(topic: str, why: str) -> Advice:
    return Advice(topic, None, f"no evidence: {why}")


def _no_advantage(audit: Audit) -> Advice:
    name = audit.objective
    return Advice(
        "right against wrong",
        None,
        f"does not apply: {name} takes no advantage of rewards. Each token has its own, of a teacher, which a log does "
        "not hold: how hard right and wrong responses pull, what the group's mean is off by and which groups teach "
        "nothing cannot be said. What rewards would do under another objective: --objective dapo.",
    )


def _coupling(audit: Audit) -> Advice:
    mine, name = audit.overall.objectives[audit.objective], audit.objective
    ratio = mine["coupling"]
    weaker = beyond(_inverse(ratio), 1 + FLOORS["coupling"])
    stronger = beyond(ratio, 1 + FLOORS["coupling"])
    topic = "sign-length coupling"
    if ratio.value is None:
        return _unknown(topic, f"under {name} no advantage pulls against another on this log.")
    if weaker is False and stronger is False:
        said = f"right and wrong responses pull equally hard, {_times(ratio)} to 1."
        return Advice(topic, False, f"Under {name} {said}")
    if not (weaker or stronger):
        few = ", by too few groups for an interval" if ratio.low is None else ""
        said = f"right responses pull {_times(ratio)} times as hard as wrong ones{few}."
        return _unknown(topic, said)
    by_length = _rule(audit) not in ("sequence", "balanced")
    by_advantage = bool(beyond(mine["zero_sum"], FLOORS["zero_sum"]))
    causes = []
    if by_length:
        gap = audit.overall.log["within_gap"]
        causes.append(f"wrong responses are {_longer(gap)} within a group")
    if by_advantage:
        causes.append(f"{_zero_sum_cause(audit)} leaves advantages that do not sum to 0")
    finding = f"Under {name} right responses pull {_times(ratio)} times as hard as wrong ones: {' and '.join(causes)}."
    if stronger:
        return Advice(topic, True, f"{finding} {studied.RIGHT_PULL}")
    finding += f" {studied.WRONG_PULL}"
    changes = []
    if by_length and (audit.overall.log["within_gap"].value or 0) < studied.LONG:
        finding += f" {studied.SMALL_GAP}"
    elif by_length:
        finding += f" {studied.LONG_OVER_BATCH if _is_over_batch(audit) else studied.LONG_WRONG}"
        finding += f" {studied.EARLY}" if _is_early(audit) else ""
        changes.append(BALANCED)
    if by_advantage and _difficulty(audit) == "hadw":
        changes.append(RECENTRE)
    return Advice(topic, True, finding + _price(audit, changes), "; ".join(changes) or None)


def _price(audit: Audit, changes: list[str]) -> str:
    """What balanced would cost, where the audit measured it."""
    other = _balanced(audit)
    if not changes or "balanced" not in changes[0] or other is None:
        return ""
    now, then = audit.overall.objectives[audit.objective], audit.overall.objectives[other]
    ratio = then["coupling"].value
    before = now["exchangeability"].value
    after = then["exchangeability"].value
    if ratio is None or before is None or after is None:
        return ""
    return (
        f" {other} makes it {ratio:.2f}, and moves the exchangeability residual of shared tokens from {before:.2f} "
        f"to {after:.2f}."
    )


def _balanced(audit: Audit) -> str | None:
    """The name of the audited objective under balanced, where the audit measured that."""
    names = ("balanced", f"balanced+{_difficulty(audit)}")
    return next((name for name in names if name in audit.overall.objectives), None)


def _starvation(audit: Audit) -> Advice:
    topic = "length starvation"
    spread = audit.overall.objectives[audit.objective]["equal_weighting"]
    found = beyond(spread, FLOORS["equal_weighting"])
    tenths = [w for w in audit.overall.token_weight[audit.objective] if w.value is not None]
    if spread.value is None:
        return _unknown(topic, f"under {audit.objective} no token weighs anything here.")
    if not found:
        said = "Tokens weigh alike"
        if found is None:
            said = "no evidence that tokens of long responses weigh less"
        return Advice(topic, found, f"{said}: their weights spread by {_number(spread)}.")
    finding = (
        f"Under {audit.objective} a token in the longest tenth of the responses weighs {_times(tenths[-1])} times the "
        f"mean, one in the shortest {_times(tenths[0])} times."
    )
    other = _balanced(audit)
    weights = audit.overall.token_weight.get(other or "", [])
    longest = [w.value for w in weights if w.value is not None]
    finding += f" Under {other} the former is {longest[-1]:.2f}." if longest else ""
    if _rule(audit) == "sequence":
        return Advice(topic, True, f"{finding} {studied.TIED}")
    return Advice(topic, True, finding, TOKEN if _loss_of_balanced(audit) else BALANCED)


def _regime(audit: Audit) -> Advice:
    log = audit.overall.log
    difference = log["token_minus_sequence"]
    token = log["token_distance"]
    sequence = log["sequence_distance"]
    signs = (
        "both A > 0 and A < 0" if _takes_no_baseline(audit) else "both right and wrong responses"
    )
    if difference.value is None:
        return _unknown("regime", f"no group has {signs}.")
    if difference.low is None or difference.high is None:
        return _unknown("regime", f"too few groups have {signs}.")
    where = (
        f"Lengths vary by CV {_number(log['within_cv'])} in a group, "
        f"where wrong ones are {_longer(log['within_gap'])}"
    )
    loss = _loss_of_balanced(audit)
    if _rule(audit) == "balanced" and loss is not None:
        early = f" {studied.EARLY}" if _is_early(audit) else ""
        return Advice("regime", True, f"{where}. {loss}{early}", TOKEN)
    if difference.low <= 0 <= difference.high:
        said = f"no evidence for token or for sequence: {where[0].lower()}{where[1:]}"
        return Advice(
            "regime", None, f"{said}; distances from balanced differ by {_number(difference)}."
        )
    best = "token" if difference.value < 0 else "sequence"
    finding = (
        f"{where}: of the two classic rules {best} is nearer to balanced (token's coefficients are {token.value:.2f} "
        f"away, sequence's {sequence.value:.2f}; difference {_number(difference)})."
    )
    if _rule(audit) in (best, "balanced"):
        return Advice("regime", False, finding)
    if best == "token" or (log["within_gap"].value or 0) < 0:
        return Advice("regime", False, f"{finding} {studied.UNDECIDED}")
    if _is_over_batch(audit):
        return Advice("regime", False, f"{finding} {studied.OVER_BATCH.format(rule=best)}")
    host = SEQUENCE_IN.get(audit.source)
    change = 'if not balanced, objective.aggregation = "sequence"'
    change += f" ({audit.source}: {host})" if host else ""
    return Advice("regime", True, f"{finding} {studied.LARGE_GAP}", change)


def _shared(audit: Audit) -> Advice:
    topic, mine = "shared prefixes", audit.overall.objectives[audit.objective]
    if not audit.has_tokens:
        return _unknown(topic, "the log has no token ids, so what responses share cannot be seen.")
    tax = mine["node_learning_tax"]
    if tax.value is None:
        return _unknown(topic, f"under {audit.objective} no token weighs anything here.")
    found = beyond(tax, FLOORS["node_learning_tax"])
    said = f"{audit.objective} spends {_percent(tax)} of its gradient mass on tokens that all of a group share"
    if not found:
        start = "no evidence of a cost: " if found is None else ""
        return Advice(topic, found, f"{start}{said}.")
    finding = f"{said}, where it can teach nothing."
    if _rule(audit) not in ONE_LENGTH:
        finding += f" {studied.PREFIX}"
    unbalanced = beyond(mine["zero_sum"], FLOORS["zero_sum"]) and _difficulty(audit) == "hadw"
    return Advice(topic, True, finding, RECENTRE if unbalanced else None)


def _baseline(audit: Audit) -> Advice:
    topic, o = "baseline bias", audit.overall
    if _takes_no_baseline(audit):
        return Advice(topic, False, f"{audit.objective} takes no group baseline.")
    if audit.rewards is None:
        why = "the closed form is for rewards of two values, and this log has not two."
        return _unknown(topic, why)
    hard, share = o.baseline_bias["hard"], o.baseline_share["hard"]
    if hard.value is None or share.value is None:
        return _unknown(topic, "no informative group comes from a hard prompt (p < 1/4).")
    found = beyond(hard, FLOORS["baseline_bias"])
    # the bias of prompts that may not be there
    if found and not beyond(share, FLOORS["hard_share"]):
        found = None
    said = (
        f"on hard prompts (p < 1/4, {_percent(share)} of the informative groups) the group's mean reward overstates "
        f"the success rate by {_number(hard)}"
    )
    if not found:
        start = "no evidence that it matters: " if found is None else "Small: "
        return Advice(topic, found, f"{start}{said}.")
    said = (
        f"O{said[1:]}, so that advantages there are too low by as much; "
        "the direction of the gradient is not affected."
    )
    choice = audit.choices[audit.objective]["difficulty"]
    if choice["name"] != "none" and not choice.get("recentre", False):
        said += f" difficulty = {_difficulty(audit)} is there to make up for it."
        return Advice(topic, False, said)
    return Advice(topic, True, f"{said} {studied.NO_COST}")


def _degenerate(audit: Audit) -> Advice:
    topic, share = "degenerate groups", audit.overall.log["degenerate"]
    said = f"{_percent(share)} of the groups have equal rewards throughout"
    if _takes_no_baseline(audit):
        kept = f"{audit.objective} takes no baseline, so they teach where that reward is not 0"
        return Advice(topic, False, f"{said}; {kept}.")
    found = beyond(share, FLOORS["degenerate"])
    start = "no evidence that it is too many: " if found is None else ""
    change = "rollout.dynamic_sampling = true" if found else None
    return Advice(topic, found, f"{start}{said} and teach nothing.", change)


def _truncated(audit: Audit) -> Advice:
    topic, share = "truncation", audit.overall.log["truncated"]
    if not audit.has_truncated:
        return _unknown(topic, "the log does not say which responses were cut at the limit.")
    found = beyond(share, FLOORS["truncated"])
    said = f"{_percent(share)} of the responses were cut at the limit"
    if not found:
        start = "no evidence that it is too many: " if found is None else ""
        return Advice(topic, found, f"{start}{said}.")
    said += "; their rewards say little of them."
    return Advice(topic, True, said, "a larger rollout.max_tokens")


def _rule(audit: Audit) -> str:
    return str(audit.choices[audit.objective]["aggregation"]["name"])


def _is_over_batch(audit: Audit) -> bool:
    over = audit.choices[audit.objective]["aggregation"].get("over")
    return _rule(audit) == "constant" or bool(over == "batch")


def _loss_of_balanced(audit: Audit) -> str | None:
    """What balanced lost in our studies where lengths were like these, if it did."""
    gap = audit.overall.log["within_gap"]
    return studied.LEVEL_LOSS if beyond(gap, studied.LEVEL) is False else None


def _is_early(audit: Audit) -> bool:
    """The log spans fewer batches than the runs whose gaps it is held against."""
    numbers = [measures.step for measures in audit.steps if measures.step is not None]
    return max(numbers) - min(numbers) + 1 < studied.BATCHES


def _difficulty(audit: Audit) -> str:
    return str(audit.choices[audit.objective]["difficulty"]["name"])


def _takes_no_baseline(audit: Audit) -> bool:
    return audit.advantage == "reward"


def _zero_sum_cause(audit: Audit) -> str:
    if _difficulty(audit) != "none":
        return f"difficulty = {_difficulty(audit)}"
    return f"advantage = {audit.advantage}"


def _inverse(e: Estimate) -> Estimate:
    if not e.value or e.low is None or e.high is None:
        return Estimate(None)
    return Estimate(1 / e.value, 1 / e.high, 1 / e.low if e.low > 0 else inf)


def _number(e: Estimate) -> str:
    return _with_interval(e, "{:.2f}" if e.value is None or abs(e.value) >= 0.1 else "{:.3f}")


def _times(e: Estimate) -> str:
    return _with_interval(e, "{:.2f}")


def _longer(gap: Estimate) -> str:
    if gap.value is None or gap.value >= 0:
        return f"{_percent(gap)} longer"
    ends = [None if x is None else -x for x in (gap.value, gap.high, gap.low)]
    return f"{_percent(Estimate(*ends))} shorter"


def _percent(e: Estimate) -> str:
    ends = [None if x is None else 100 * x for x in (e.value, e.low, e.high)]
    text = _with_interval(
        Estimate(*ends), "{:.0f}" if ends[0] is None or abs(ends[0]) >= 10 else "{:.1f}"
    )
    number, bracket, rest = text.partition(" [")
    return text if e.value is None else f"{number} %{bracket}{rest}"


def _with_interval(e: Estimate, form: str) -> str:
    if e.value is None:
        return "unknown"
    if e.low is None or e.high is None:
        return form.format(e.value)
    return f"{form.format(e.value)} [{form.format(e.low)}, {form.format(e.high)}]"
