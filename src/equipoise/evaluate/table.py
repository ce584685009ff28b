"""An evaluation as a table, for the terminal and as Markdown: percent with 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from equipoise.evaluate.summary import estimates
from equipoise.toml import toml

Table = tuple[Sequence[str], list[list[str]]]


def tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Columns and rows by title: of a run, peak and last and then the last checkpoint; of a model,
    the benchmarks and their average, then levels and subjects of those that have them.
    """
    if "checkpoints" in result:
        last = str(result["steps"][-1])
        of_last = tables(result["checkpoints"][last])
        return {
            "peak and last": _peaks(result),
            **{f"step {last}: {title}": t for title, t in of_last.items()},
        }
    benchmarks = result["benchmarks"]
    names = _metrics(benchmarks.values())
    rows = [
        [
            name,
            str(summary["problems"]),
            *(_shown(summary, column) for column in names),
            f"{summary['length']:.0f}",
            f"{100 * summary['truncated']:.0f} %",
        ]
        for name, summary in benchmarks.items()
    ]
    if result["average"]:
        known = {"acc": next(iter(names)), **{name: name for name in names}}
        shown = {known[name]: found for name, found in result["average"].items()}
        rows.append(["average", "", *(_shown(shown, column) for column in names), "", ""])
    found: dict[str, Table] = {
        "benchmarks": (["benchmark", "problems", *names, "length", "cut"], rows)
    }
    for name, summary in benchmarks.items():
        for part in ("level", "subject"):
            if by := summary.get(f"by_{part}"):
                columns = [
                    metric for metric in _metrics(by.values()) if not metric.startswith("pass@")
                ]
                found[f"{name} by {part}"] = (
                    [part, "problems", *columns],
                    [
                        [key, str(s["problems"]), *(_shown(s, column) for column in columns)]
                        for key, s in by.items()
                    ],
                )
    return found


def _peaks(over: Mapping[str, Any]) -> Table:
    rows = [
        [
            name,
            metric,
            _percent(p["peak"]),
            str(p["peak_step"]),
            _percent(p["last"]),
            _percent(p["drop"]),
        ]
        for name, peaks in {**over["benchmarks"], "average": over["average"]}.items()
        for metric, p in peaks.items()
    ]
    return ["benchmark", "metric", "peak", "at step", "last", "drop"], rows


def notes(result: Mapping[str, Any]) -> list[str]:
    """What a reader must know: problems left out, and why; scores by the lenient rules."""
    said = []
    for name, summary in _last(result)["benchmarks"].items():
        for metric, found in summary.get("by_lenient_rules", {}).items():
            lenient, strict = (
                _shown({metric: estimate}, metric) for estimate in (found, summary[metric])
            )
            if lenient != strict:  # wrong and unparsed are worth the same
                said.append(
                    f"{name}: {metric} is {strict} by the strict rules, {lenient} by the lenient ones"
                )
        if "left_out" in summary:
            kinds = ", ".join(f"{count} {kind}" for kind, count in summary["left_out"].items())
            said.append(
                f"{name}: problems left out: {kinds} (the first: {_one_line(summary['left_out_because'])})"
            )
    return said


def heading(result: Mapping[str, Any]) -> str:
    last = _last(result)
    form = "chat" if last["chat"] else "completion"
    return (
        f"{last['model']}: temperature {last['temperature']:g}, seed {last['seed']}, {form}{_conversation(last)}; "
        "percent with 95 % intervals over problems"
    )


def _conversation(result: Mapping[str, Any]) -> str:
    """What a model was told besides the problems; results of earlier versions have none of it."""
    said = [f"system {toml(text)}"] if (text := result.get("system")) else []
    said += [
        f"{name} = {toml(value)}" for name, value in result.get("chat_template_kwargs", {}).items()
    ]
    return f" with {', '.join(said)}" if said else ""


def markdown(result: Mapping[str, Any]) -> str:
    lines = [heading(result), ""]
    for i, (title, table) in enumerate(tables(result).items()):
        lines += ([f"**{title}**", ""] if i else []) + [_grid(table), ""]
    return "\n".join([*lines, *(f"- {note}" for note in notes(result))]).rstrip() + "\n"


def show(result: Mapping[str, Any]) -> None:
    """On the terminal."""
    print(heading(result))
    for title, table in tables(result).items():
        _print(table, title)
    for note in notes(result):
        print(f"\n{note}")


def show_changes(report: Mapping[str, Any]) -> None:
    """What a regrading changed: counts and metrics of each benchmark, and its first responses."""
    rows, said = [], []
    for name, about in report.items():
        names = [metric for metric in estimates(about["after"]) if not metric.startswith("pass@")]
        moves = ", ".join(f"{count} {move}" for move, count in about["moves"].items())
        metrics = ", ".join(
            f"{metric} {_value(about['before'], metric)} → {_value(about['after'], metric)}"
            for metric in names
        )
        rows.append([name, str(about["responses"]), str(about["changed"]), moves, metrics])
        said += [
            f"{name}, problem {e['problem']}, sample {e['sample']}: {e['was']} → {e['now']}: answered "
            f"{_one_line(str(e['answer']))}, reference {_one_line(e['reference'])}"
            for e in about["examples"]
        ]
    _print((["benchmark", "responses", "changed", "verdicts", "metrics"], rows), None)
    for example in said:
        print(example)


def _grid(table: Table) -> str:
    columns, rows = table
    line = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        for cells in [list(columns), *rows]
    ]
    return "\n".join([line[0], "|" + "---|" * len(columns), *line[1:]])


def _print(table: Table, title: str | None) -> None:
    """Whole lines, however narrow the terminal is."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    columns, rows = table
    shown = RichTable(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        shown.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*map(Text, row))
    width = sum(max(map(len, cells)) + 2 for cells in zip(columns, *rows, strict=True))
    if title is not None:
        print(f"\n{title}")
    Console(width=max(Console().width, width)).print(shown)


def _last(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result["checkpoints"][str(result["steps"][-1])] if "checkpoints" in result else result


def _metrics(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """In the order of the first that has each."""
    return list(dict.fromkeys(name for summary in summaries for name in estimates(summary)))


def _shown(summary: Mapping[str, Any], name: str) -> str:
    e = summary.get(name)
    return (
        "" if e is None else f"{_percent(e['value'])} [{_percent(e['low'])}, {_percent(e['high'])}]"
    )


def _value(summary: Mapping[str, Any], name: str) -> str:
    return _percent(summary[name]["value"]) if name in summary else "none"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _one_line(text: str) -> str:
    """For the terminal, which must not obey what a model wrote."""
    line = (text.strip().splitlines() or [""])[-1][:200]
    return "".join(c if c.isprintable() else "\ufffd" for c in line)
