"""An audit for the terminal: what the log is like, what objectives make of it, the advice."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from shutil import get_terminal_size

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.audit.advice import FEW_PROMPTS, Advice, advise
from equipoise.audit.bootstrap import Estimate
from equipoise.audit.data_path import Counts, DataPath, data_path
from equipoise.audit.measure import Audit, Measures, measure
from equipoise.audit.read import read, run_objective

WIDTH = 100
PER_TABLE = 4  # objectives side by side at 100 columns
ROWS = {
    "coupling": "pull of right : wrong",
    "positive_share": "gradient mass on right",
    "mass_imbalance": "imbalance of a group's pull",
    "shortest": "token weight, shortest tenth",
    "longest": "token weight, longest tenth",
    "equal_weighting": "spread of token weights",
    "exchangeability": "push left on a shared token",
    "net_push": "  with its sign",
    "node_learning_tax": "mass on tokens all share",
    "zero_sum": "advantages off zero-sum",
}
DATA_PATH = {  # the share of cut responses is in the first table
    "truncated_wrong": "wrong responses cut at the limit",
    "reward_beyond_limit": "what the limit may have cost in mean reward",
    "discarded": "sampled groups not trained on",
    "filtered": "  of those with equal rewards",
    "discarded_informative": "  of the others",
    "kept_reward": "mean reward, trained less sampled",
    "kept_length": "mean length, trained over sampled, less 1",
    "lost": "visits of prompts lost",
    "repeated": "visits of prompts repeated",
    "missing_steps": "steps without rows",
    "sampler_distance": "log μ − log π of a token",
}
BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 32


def main_text(
    files: Sequence[str],
    objective: str | None = None,
    against: Sequence[str] | None = None,
    *,
    columns: dict[str, str] | None = None,
    tokenizer: str | None = None,
    as_json: bool = False,
    color: bool = False,
    counts: Counts | None = None,
) -> str:
    """What `equipoise audit` prints; `counts` are what `data_path` asks of the user."""
    log = read(list(files), columns, tokenizer)
    audit = measure(log, objective or run_objective(list(files)), against)
    path = data_path(log, **(counts or {}))
    if as_json:
        advice = [vars(a) for a in advise(audit)]
        record = {**audit.to_json(), "data_path": asdict(path), "advice": advice}
        return json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False)
    console = Console(
        file=io.StringIO(), width=WIDTH, force_terminal=color, no_color=not color, highlight=False
    )
    with console.capture() as capture:
        console.print(page(audit, advise(audit), path))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def page(audit: Audit, advice: Sequence[Advice], path: DataPath | None = None) -> RenderableType:
    """Everything, as a rich renderable."""
    names = list(audit.stacks)
    wide = [names[i : i + PER_TABLE] for i in range(0, len(names), PER_TABLE)]
    parts: list[RenderableType] = [_head(audit), _log_table(audit)]
    tables = (_objective_table(audit, some) for some in wide)
    parts += [table for table in tables if table.row_count]
    if audit.rewards is not None and audit.advantage != "none":
        parts.append(_baseline_table(audit))
    if len(audit.steps) > 1:
        parts.append(_trend_table(audit))
    if path is not None and any(name in path.estimates for name in DATA_PATH):
        parts.append(_data_path_table(path))
    # Sentences take the terminal's width; the tables above need theirs, and cells may not be cut.
    parts.append(Constrain(_advice(advice), get_terminal_size((WIDTH, 24)).columns))
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def _data_path_table(path: DataPath) -> Table:
    table = _table("Before the loss", "", "", left=(0,))
    for name, label in DATA_PATH.items():
        found = path.estimates.get(name)
        if found is not None:
            bounds = found.value is None and found.low is not None
            table.add_row(
                label, f"{found.low:+.3f} to {found.high:+.3f}" if bounds else _shown(found)
            )
    table.show_header = False
    return table


def _head(audit: Audit) -> Text:
    o = audit.overall
    low, high = audit.group_size
    source = {"table": "a log"}.get(audit.source, f"a log of {audit.source}")
    size = f"{low}" if low == high else f"{low} to {high}"
    text = Text()
    text.append("equipoise audit", "bold")
    text.append(
        f"  {source}: {_count(len(audit.steps), 'step')}, {o.responses:,} responses to {_count(o.prompts, 'prompt')} "
        f"in groups of {size}\n"
    )
    if audit.source != "equipoise" and audit.columns:
        read_from = ", ".join(f"{role} = {column}" for role, column in audit.columns.items())
        text.append(f"Read: {read_from}\n", "dim")
    text.append(f"{audit.objective}", "bold")
    text.append(f"  {audit.stacks[audit.objective]}\n")
    text.append("± is half a 95 % interval over prompts; right is A > 0, wrong A < 0.", "dim")
    warnings = list(audit.notes)
    if audit.unit == "characters":
        warnings.append(
            "lengths are characters, a stand-in for tokens: --tokenizer MODEL counts those"
        )
    if o.prompts < FEW_PROMPTS:
        warnings.append(f"only {_count(o.prompts, 'prompt')}: the intervals are rough")
    for warning in warnings:
        text.append(f"\nnote: {warning}", "yellow")
    return text


def _log_table(audit: Audit) -> Table:
    log = audit.overall.log
    cells = [
        ("mean reward", log["reward_mean"]),
        ("length CV", log["length_cv"]),
        (f"mean length, {audit.unit}", log["length_mean"]),
        ("  within groups", log["within_cv"]),
        ("groups with equal rewards", log["degenerate"]),
        ("gap of lengths, (T̄− − T̄+)/T̄", log["length_gap"]),
        ("responses cut at the limit", log["truncated"]),
        ("  within groups", log["within_gap"]),
        ("distance to balanced, token", log["token_distance"]),
        ("  sequence", log["sequence_distance"]),
    ]
    table = _table("The log", "", "", "", "", left=(0, 2))
    for (left, a), (right, b) in zip(cells[::2], cells[1::2], strict=True):
        table.add_row(left, _shown(a), f"  {right}", _shown(b))
    table.show_header = False
    return table


def _objective_table(audit: Audit, names: Sequence[str]) -> Table:
    table = _table("What an objective makes of it", "", *names)
    for key, label in ROWS.items():
        cells = [_cell(audit, name, key) for name in names]
        if any(e.value is not None for e in cells):
            table.add_row(label, *map(_shown, cells))
    return table


def _cell(audit: Audit, name: str, key: str) -> Estimate:
    if key in ("shortest", "longest"):
        tenths = [w for w in audit.overall.token_weight[name] if w.value is not None]
        return tenths[0 if key == "shortest" else -1] if tenths else Estimate(None)
    return audit.overall.objectives[name][key]


def _baseline_table(audit: Audit) -> Table:
    o = audit.overall
    ranges = {"hard": "hard, p < 1/4", "moderate": "moderate", "easy": "easy, p > 3/4"}
    table = _table("The group baseline by difficulty", "", *ranges.values())
    table.add_row("share of the informative groups", *(_shown(o.baseline_share[s]) for s in ranges))
    table.add_row(
        Text("bias of the baseline, E[p̂|S] − p"), *(_shown(o.baseline_bias[s]) for s in ranges)
    )
    return table


def _trend_table(audit: Audit) -> Table:
    ends = [f"step {m.step}" for m in (audit.steps[0], audit.steps[-1])]
    table = _table("Over the steps", "", *ends, "", left=(0, 3))
    mine = audit.objective
    rows: dict[str, Callable[[Measures], Estimate]] = {
        "mean reward": lambda m: m.log["reward_mean"],
        f"mean length, {audit.unit}": lambda m: m.log["length_mean"],
        "length CV": lambda m: m.log["length_cv"],
        "gap of lengths within groups": lambda m: m.log["within_gap"],
        f"pull of right : wrong, {mine}": lambda m: m.objectives[mine]["coupling"],
        "groups with equal rewards": lambda m: m.log["degenerate"],
    }
    for label, take in rows.items():
        values = [take(m) for m in audit.steps]
        if all(v.value is None for v in values):
            continue
        line = spark([v.value for v in values])
        table.add_row(label, _shown(values[0]), _shown(values[-1]), line)
    return table


def spark(values: Sequence[float | None]) -> str:
    """A line of bars from the lowest to the highest value; averaged where there are too many."""
    bins = min(MOST_BARS, len(values))
    cuts = [i * len(values) // bins for i in range(bins + 1)]
    parts = [values[a:b] for a, b in pairwise(cuts)]
    kept = [[v for v in part if v is not None] for part in parts]
    means = [sum(b) / len(b) if b else None for b in kept]
    known = [m for m in means if m is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    flat = high - low <= 1e-9 * max(abs(low), abs(high))  # exact but for rounding
    scale = 0.0 if flat else (len(BARS) - 1) / (high - low)
    return "".join(" " if m is None else BARS[round((m - low) * scale)] for m in means)


def _advice(advice: Sequence[Advice]) -> Table:
    table = _table("Advice", "")
    table.add_column()
    table.show_header = False
    for a in sorted(advice, key=lambda a: {True: 0, None: 1, False: 2}[a.evidence]):
        style = "bold red" if a.evidence else "dim" if a.evidence is None else "green"
        body = Text(a.finding, "" if a.evidence else "dim")
        if a.change:
            body.append(f"\n→ {a.change}", "bold")
        mark = {True: "!", None: "?", False: "✓"}[a.evidence]
        table.add_row(Text(f"{mark} {a.topic}", style), body)
    return table


def _table(title: str, *columns: str, left: tuple[int, ...] = (0,)) -> Table:
    table = Table(box=None, padding=(0, 1), title=title, title_justify="left")
    table.title_style, table.header_style = "bold", "dim"
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i in left else "right", no_wrap=True)
    return table


def _shown(e: Estimate) -> str:
    """A value ± half its interval, to the digits the interval leaves."""
    if e.value is None:
        return "–"
    digits = 1 if abs(e.value) >= 10 else 2 if abs(e.value) >= 1 else 3
    if e.low is None or e.high is None:
        return f"{e.value:.{digits}f}      "
    half = (e.high - e.low) / 2
    shown = f"{e.value:.{digits}f}"
    return f"{shown.removeprefix('-') if float(shown) == 0 else shown} ± {half:.{digits}f}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
