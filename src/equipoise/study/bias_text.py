"""A measured bias as the terminal shows it, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from equipoise.audit.advice import FEW_PROMPTS
from equipoise.audit.bootstrap import Estimate
from equipoise.study.bias import MEASURES, PLAIN, BiasedShare, Bin, Result

TITLES = {
    "right": "right responses: mean of Â − A",
    "wrong": "wrong responses: mean of Â − A",
    "scale_free": "without scale: b − p, b the baseline the advantages amount to (0 is none; the same for any scale)",
}
SYMBOLS = (
    "p̂ is the success rate of a group, p that of its prompt by the further responses, S that the group is mixed, Â the "
    "advantage and A = r − p the true one. A prompt's bin is made of one half of the further responses and p of the "
    "other, so that luck in the one cannot pass for a bias."
)
SCALE = "grpo divides by σ, maxrl by p̂, HA-DW multiplies by λ: most of their distance is scale, which b − p leaves out."
WIDTH = 110


def as_json(result: Result, about: dict[str, Any]) -> str:
    record = {**about, **dataclasses.asdict(result)}
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def head(result: Result) -> str:
    """What was sampled and how it was judged, in a few sentences."""
    left = ""
    if result.unscored:
        left = f"; {result.unscored} prompts left out, which the verifier could not judge"
    total = sum(result.verdicts.values())
    others = {kind: n / total for kind, n in result.verdicts.items() if kind != "correct"}
    rest = ", ".join(f"{100 * share:.1f} % {kind}" for kind, share in others.items())
    return (
        f"{result.prompts} prompts, each sampled {result.groups} × {result.group} times for the estimate and "
        f"{result.samples} times for the truth{left}. "
        f"{100 * result.success:.1f} % of the responses for the estimate are right; "
        f"{100 * result.informative:.0f} % of the groups are mixed."
        + (f" Of all responses: {rest}." if rest else "")
    )


def nothing(result: Result) -> str | None:
    """Why there is nothing to show, where no group is mixed."""
    if result.informative > 0:
        return None
    text = "No group has both right and wrong responses, so every advantage is 0 and there is no bias to measure."
    unread = result.verdicts.get("unparsed", 0)
    if 2 * unread > sum(result.verdicts.values()):
        text += (
            " The verifier found no answer in most responses: --task.suffix can tell the model how to write it, "
            "--task.answer_in where it is read."
        )
    return text


def verdict(result: Result) -> str:
    """Whether the measured bias of r − p̂ is that of Theorem 1."""
    known = [b for b in result.bins if b.closed_form is not None and b.measured.low is not None]
    inside = [b for b in known if agrees(b)]
    if not known:
        return "Too few mixed groups to compare with the closed form."
    text = f"The closed form lies inside the measured 95 % interval in {len(inside)} of {len(known)} bins."
    few = ", ".join(interval_name(b) for b in known if b.prompts < FEW_PROMPTS)
    if few:
        return f"{text} Intervals of fewer than {FEW_PROMPTS} prompts ({few}) can be too narrow."
    return text


def agrees(b: Bin) -> bool:
    low, high, closed = b.measured.low, b.measured.high, b.closed_form
    return low is not None and high is not None and closed is not None and low <= closed <= high


def shares(result: Result) -> list[str]:
    """HA-DW's measure of the bias, in a sentence each."""
    G = result.group

    def sentence(share: BiasedShare, kind: str, where: str, rate: str) -> str:
        if share.share.value is None:
            return f"No group had exactly one {kind} among {G}."
        return (
            f"Groups with exactly one {kind} among {G}: {share.groups}; "
            f"the prompt's success rate is {where} {rate} in {_percent(share.share)} of them."
        )

    return [
        sentence(result.one_success, "success", "below", f"1/{G}"),
        sentence(result.one_failure, "failure", "above", f"{G - 1}/{G}"),
    ]


def _percent(share: Estimate) -> str:
    assert share.value is not None
    if share.low is None or share.high is None:
        return f"{100 * share.value:.0f} %"
    ends = f"{100 * share.low:.0f} to {100 * share.high:.0f}"
    return f"{100 * share.value:.0f} % ({ends})"


def show(result: Result, title: str) -> None:
    console = Console(width=WIDTH, highlight=False, markup=False)
    console.print(f"{title}\n{head(result)}\n")
    if why := nothing(result):
        console.print(why)
        return
    console.print(f"{SYMBOLS}\n")
    console.print(
        f"The group baseline, E[p̂|S] − p ({PLAIN}; positive: the advantage is underestimated)"
    )
    console.print(_baseline_table(result.bins), verdict(result), "", sep="\n")
    console.print(f"{SCALE}\n")
    for measure in MEASURES:
        console.print(TITLES[measure], _option_table(result, measure), "", sep="\n")
    console.print(*shares(result), sep="\n")


def _baseline_table(bins: Sequence[Bin]) -> Table:
    columns = (
        "success rate",
        "prompts",
        "mixed groups",
        "mean p",
        "measured",
        "95 %",
        "closed form",
        "",
    )
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for b in bins:
        table.add_row(
            interval_name(b),
            str(b.prompts),
            f"{b.groups:g}",
            _number(b.success, ".3f"),
            _number(b.measured.value),
            ends(b.measured),
            _number(b.closed_form),
            _mark(b),
        )
    return table


def _mark(b: Bin) -> str:
    if b.closed_form is None or b.measured.low is None:
        return ""
    return "inside" if agrees(b) else "outside"


def _option_table(result: Result, measure: str) -> Table:
    table = Table("advantage", *map(interval_name, result.bins), box=None, padding=(0, 2, 0, 0))
    for name, found in result.options.items():
        table.add_row(name, *(_with_error(estimate) for estimate in found[measure]))
    return table


def interval_name(b: Bin) -> str:
    return f"{b.low:g}–{b.high:g}"


def ends(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.low:+.3f} to {estimate.high:+.3f}"


def _with_error(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:+.3f}"
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:+.3f} ±{half:.3f}"


def _number(value: float | None, form: str = "+.3f") -> str:
    return "-" if value is None else format(value, form)
