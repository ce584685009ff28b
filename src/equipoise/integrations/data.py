"""Data sets and rollout logs as TRL and verl write and read them.

    verl data       Parquet: data_source, prompt [{role, content}], ability, reward_model {style, ground_truth},
                    extra_info {split, index, id, level, verifier};
                    tests of code are JSON text in ground_truth
    TRL data        Parquet: prompt (messages where the data has messages, else text), answer, id, level, verifier
    verl rollouts   STEP.jsonl: input, output, gts, score, step, uid; then prompt_id, length, tokens, finish
    TRL rollouts    completions/completions_STEP.parquet: step, prompt, completion, reward, advantage; then prompt_id,
                    group, length, tokens, finish

What stands after "then" neither host writes: it is what an audit needs to count tokens instead of
characters. The audit and the tasks read all four back. Files appear whole or not at all, and none
is written over.

Not covered: images, tools, the log-probabilities of our log, and code problems for TRL,
which has no columns for tests.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from equipoise.config import TaskConfig
from equipoise.integrations.launch import ExportError, new, refuse_existing
from equipoise.policy.chat import Chat
from equipoise.tasks import Prompt
from equipoise.tasks.data_files import open_rows
from equipoise.tasks.problems import recognised
from equipoise.tasks.row_reader import RowError
from equipoise.tasks.schema import COMPARED
from equipoise.tasks.task import TaskError
from equipoise.tasks.templates import written

AT_ONCE = 4096  # rows held in memory
# verifiers whose reference a row of the host can hold
GRADED = {"trl": COMPARED, "verl": (*COMPARED, "code")}
HOSTS = tuple(GRADED)
NO_COLUMNS = {
    "code": "TRL has no columns for tests; verl has",
    "gym": "reasoning-gym's own code scores it, which no column holds; export a launch",
}
EXTRA = ("prompt_id", "length", "tokens", "finish")
OURS = (
    "prompt_id",
    "prompt",
    "response",
    "tokens",
    "length",
    "finish",
    "reward",
    "group",
    "advantage",
)

Row = dict[str, Any]


def export_data(task: TaskConfig, host: str, out: Path) -> str:
    """Write every usable row of a data set for a host, and say what was left out."""
    _known(host)
    if out.suffix != ".parquet":
        raise ExportError(f"{out}: must be a name that ends with .parquet")
    left_out: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    source = source_of(task.name)

    def rows() -> Iterator[Row]:
        for number, found in enumerate(_prompts(task)):
            if isinstance(found, Prompt) and found.meta["verifier"] not in GRADED[host]:
                found = RowError(
                    "not comparable", f"{found.id}: {NO_COLUMNS[found.meta['verifier']]}"
                )
            if isinstance(found, Prompt):
                yield (
                    verl_row(found, source, "train", number)
                    if host == "verl"
                    else trl_row(found, chat=None)
                )
            else:
                left_out[found.label] += 1
                reasons.setdefault(found.label, str(found))

    written = write_parquet(rows(), out)
    if not written:
        raise ExportError(f"{task.name}: no row can be used: {_all(left_out, reasons)}")
    return f"{out}: {written:,} rows" + (
        f"; left out {_all(left_out, reasons)}" if left_out else ""
    )


def _all(left_out: Counter[str], reasons: Mapping[str, str]) -> str:
    return (
        "; ".join(
            f"{count:,} {label} ({reasons[label]})" for label, count in left_out.most_common()
        )
        or "it has none"
    )


def _prompts(task: TaskConfig) -> Iterator[Prompt | RowError]:
    """The rows of the data set; a bad one as the error that says where it stands."""
    if task.verifier not in ("", *COMPARED):
        raise TaskError(
            f'task.verifier = "{task.verifier}" is not a way to compare answers: {", ".join(COMPARED)}'
        )
    rows = open_rows(task.name)
    schema = recognised(rows, task.columns, task.verifier or None)
    for start in range(0, rows.count, AT_ONCE):
        for number, row in enumerate(rows.load([(start, min(start + AT_ONCE, rows.count))]), start):
            try:
                if isinstance(row, RowError):
                    raise row
                item = schema.read(row)
            except RowError as error:
                if task.strict:
                    raise TaskError(
                        f"{rows.where(number)}: {error} (task.strict refuses it)"
                    ) from error
                yield RowError(error.label, f"{rows.where(number)}: {error}")
                continue
            meta = {
                "verifier": item.verifier,
                **({} if item.tests is None else {"tests": item.tests}),
            }
            messages = item.messages
            if messages is not None and (task.suffix or task.template):
                last = written(messages[-1]["content"], task.template, task.suffix)
                messages = (*messages[:-1], {**messages[-1], "content": last})
            name = rows.label(number, item.id)
            question = written(item.question, task.template, task.suffix)
            yield Prompt(name, question, item.answer, item.level, meta, messages)


def source_of(name: str) -> str:
    """What verl calls the data set in its metrics: a file without its folders and ending."""
    return name if name.startswith(("hub:", "gym:")) else Path(name).name.partition(".")[0]


def messages_of(prompt: Prompt, system: str = "") -> list[dict[str, str]]:
    return Chat(on=True, system=system).messages(prompt.text, prompt.messages)


def verl_row(prompt: Prompt, source: str, split: str, index: int) -> Row:
    """`split` and `index`: the prompt's place in our task, for a reward function that asks it."""
    verifier = str(prompt.meta.get("verifier", "math"))
    tests = prompt.meta.get("tests")
    truth = (
        prompt.answer if tests is None else tests if isinstance(tests, str) else json.dumps(tests)
    )
    where = {
        "split": split,
        "index": index,
        "id": prompt.id,
        "level": prompt.level,
        "verifier": verifier,
    }
    return {
        "data_source": source,
        "prompt": messages_of(prompt),
        "ability": "code" if verifier == "code" else "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": where,
    }


def trl_row(prompt: Prompt, chat: bool | None, system: str = "") -> Row:
    """`chat`: as messages, text, or (None) as the data; `system`: the message before those."""
    as_messages = prompt.messages is not None if chat is None else chat
    return {
        "prompt": messages_of(prompt, system) if as_messages else prompt.text,
        "answer": prompt.answer,
        "id": prompt.id,
        "level": prompt.level,
        "verifier": str(prompt.meta.get("verifier", "")),
    }


def write_parquet(rows: Iterable[Row], out: Path) -> int:
    """Stream rows into a new file; 0 rows are no file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, written = iter(rows), 0
    refuse_existing(out)
    if not (held := list(islice(rows, AT_ONCE))):
        return 0
    try:
        # A level that only later rows have must not be a column of nulls.
        schema = _with_texts(pa.Table.from_pylist(held).schema)
        with new(out) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            while held:
                writer.write_table(pa.Table.from_pylist(held, schema=schema))
                written += len(held)
                held = list(islice(rows, AT_ONCE))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        said = str(error).splitlines()[0]
        where = f"rows {written + 1:,} to {written + len(held):,}"
        raise ExportError(
            f"{out}: {where} are not all of one kind, text or messages: {said}"
        ) from error
    return written


def _with_texts(schema: Any) -> Any:
    import pyarrow as pa

    def known(kind: Any) -> Any:
        if pa.types.is_null(kind):
            return pa.string()
        if pa.types.is_struct(kind):
            return pa.struct([(field.name, known(field.type)) for field in kind])
        return kind

    return pa.schema([(field.name, known(field.type)) for field in schema])


def export_rollouts(run: Path, host: str, out: Path) -> str:
    """Write the rollouts of a run of ours as a host's own log; returns what was written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    _known(host)
    folder = run / "rollouts" if (run / "rollouts").is_dir() else run
    names = sorted(
        folder.glob("step-*.parquet"), key=lambda p: int(p.stem.removeprefix("step-") or -1)
    )
    if not names:
        raise ExportError(
            f"{run}: holds no rollouts/step-N.parquet: train with --log.rollouts_every 1"
        )
    responses = 0
    for path in names:
        step = int(path.stem.removeprefix("step-"))
        try:
            table = pq.read_table(path, columns=list(OURS))
        except (OSError, pa.ArrowException) as error:
            raise ExportError(
                f"{path}: is no rollout file of ours: {str(error).splitlines()[0]}"
            ) from error
        responses += table.num_rows
        if host == "trl":
            target = out / "completions" / f"completions_{step:05d}.parquet"
            with new(target) as temporary:
                pq.write_table(_completions(step, table), temporary)
        else:
            lines = (
                json.dumps(row, ensure_ascii=False) + "\n"
                for row in _generations(step, table.to_pylist())
            )
            with new(out / f"{step}.jsonl") as temporary:
                temporary.write_text("".join(lines), encoding="utf-8")
    return f"{out}: {responses:,} responses of {len(names)} steps"


def _completions(step: int, table: Any) -> Any:
    import pyarrow as pa

    columns = {
        "step": pa.array([step] * table.num_rows, pa.int64()),
        "prompt": table["prompt"],
        "completion": table["response"],
        "reward": table["reward"],
        "advantage": table["advantage"],
        "group": table["group"],
        **{name: table[name] for name in EXTRA},
    }
    return pa.table(columns)


def _generations(step: int, rows: list[Row]) -> Iterator[Row]:
    """With a uid as verl has it, {sample}_{rollout}_{output}."""
    seen: Counter[int] = Counter()
    for row in rows:
        rollout = seen[row["group"]]
        seen[row["group"]] += 1
        yield {
            "input": row["prompt"],
            "output": row["response"],
            "gts": None,  # our log does not hold the reference
            "score": row["reward"],
            "step": step,
            "uid": f"{row['group']}_{rollout}_0",
            **{name: row[name] for name in EXTRA},
        }


def _known(host: str) -> None:
    if host not in HOSTS:
        raise ExportError(f'--to "{host}": must be {" or ".join(HOSTS)}')
