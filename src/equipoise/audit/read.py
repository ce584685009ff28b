"""Rollout logs as their writers left them: a run directory of ours, TRL's completions, verl's dumps, or any table.

Parquet, JSON lines and CSV are read in pieces, only the columns that are needed. What a column is for follows from its
name; `columns` says it where the name does not:

    prompt   which prompt a response answers (an id or the text)     step    the step it was trained in
    group    which group it belongs to, where a prompt can come twice in a step (default: the prompt)
    reward   a number, or a weighted sum of columns: "right+0.2*format"
    length   tokens in the response, or instead of it    tokens  its token ids    text  its text
    finish   why it ended: "length", or true, means cut at the limit

Without a length or tokens, text is counted in characters, or in the tokens of `tokenizer`. TRL and verl log text only,
without the end-of-sequence token, so their lengths come out one short. Anything that is not a number where there should
be one, a group of one, an unknown column, a torn file: AuditError, naming file, row (the first is 1) and column.
"""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from equipoise.audit.columns import (
    Refuse,
    array,
    characters,
    is_numeric,
    numbers,
    plain_values,
    text_of,
    token_ids,
    weighted_sum,
    whole_numbers,
)
from equipoise.audit.log import AuditError, Floats, Integers, Log, ordered
from equipoise.objective import Objective

NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt_id", "prompt", "input"),
    "group": ("group",),
    "step": ("step",),
    "reward": ("reward", "score"),
    "length": ("length",),
    "tokens": ("tokens",),
    "text": ("response", "completion", "output"),
    "finish": ("finish",),
}
SUFFIXES = (".parquet", ".jsonl", ".csv")
CUT = ("length", True, "true", "True")
ROWS = 1 << 13  # responses held as text at a time
MOST_TOKENS = 1 << 27  # held as 4 bytes each; beyond it the shared prefixes are left unmeasured

Paths = str | Path | Sequence[str | Path]
Table = pa.Table | Mapping[str, Sequence[Any]]


def read(paths: Paths, columns: Mapping[str, str] | None = None, tokenizer: str | None = None) -> Log:
    """The log in these files and directories, all of it one run."""
    named = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not named:
        raise AuditError("no files: name at least one file or directory")
    builder = _Builder(dict(columns or {}), tokenizer)
    for path in named:
        for file in _files(path):
            builder.add_file(file)
    log, config = builder.log(), next(filter(None, map(_config, named)), {})
    if config.get("objective", {}).get("combine") == "advantages":
        note = "objective.combine = advantages: the log holds one reward a response, their sum, and so does the audit"
        log = replace(log, notes=(*log.notes, note))
    return _masked(log) if config.get("reward", {}).get("mask_truncated") else log


def parse_columns(text: str) -> dict[str, str]:
    """ "reward=score,prompt=uid" as a mapping."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for role, equals, name in pairs:
        if not (equals and role.strip() and name.strip()):
            raise AuditError(f"columns: {text}: the rule is ROLE=COLUMN, with commas between ({', '.join(NAMES)})")
    return {role.strip(): name.strip() for role, _, name in pairs}


def from_table(table: Table, columns: Mapping[str, str] | None = None, tokenizer: str | None = None) -> Log:
    """A log in memory: a pyarrow table, or a mapping of column names to values."""
    names = table.column_names if isinstance(table, pa.Table) else list(table)
    sizes = {name: len(table[name]) for name in names}
    if len(set(sizes.values())) > 1:
        raise AuditError(f"the columns have {sizes} rows: the rule is one entry per response in each")
    builder = _Builder(dict(columns or {}), tokenizer)
    builder.add("the table", names, [(0, {name: array(table[name]) for name in names})])
    return builder.log()


def run_objective(paths: Paths) -> Objective | None:
    """The objective a run directory of ours was trained with; None for any other log."""
    named = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    section = next((c["objective"] for c in map(_config, named) if "objective" in c), None)
    if section is None:
        return None
    knobs = {k: v for k, v in section.items() if k not in ("preset", "combine")}  # the log holds one reward, summed
    try:
        return Objective.preset(section.get("preset", "grpo"), **knobs)
    except (ValueError, TypeError) as error:
        raise AuditError(f"config.toml of the run: {error}; name the objective to audit") from error


def _config(path: Path) -> dict[str, Any]:
    """config.toml of the run directory that `path` is, or lies in the rollouts of."""
    rollouts = next((p for p in (path / "rollouts", path, path.parent) if p.name == "rollouts" and p.is_dir()), None)
    if rollouts is None or not (file := rollouts.parent / "config.toml").is_file():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AuditError(f"{file} is not TOML: {error}") from error


def _files(path: Path) -> list[Path]:
    """The files of a log: the path itself, or what a directory holds, in the order of the numbers in their names."""
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise AuditError(f"{path} is not a log the audit reads: the rule is {', '.join(SUFFIXES)}")
        return [path]
    if not path.is_dir():
        raise AuditError(f"{path} does not exist: name a log file or a directory of them")
    inner = next((path / name for name in ("rollouts", "completions") if (path / name).is_dir()), path)
    found = [f for f in inner.iterdir() if f.suffix in SUFFIXES and f.is_file()]
    if not found:
        more = ": the run wrote no rollouts; train with --log.rollouts_every 1" if inner.name == "rollouts" else ""
        raise AuditError(f"{inner} holds no {', '.join(SUFFIXES)} file{more}")
    return sorted(found, key=lambda f: ([int(n) for n in re.findall(r"\d+", f.name)], f.name))


class _Builder:
    """Collects the columns of all files; prompts and groups are numbered by first appearance."""

    def __init__(self, columns: dict[str, str], tokenizer: str | None) -> None:
        for role in columns:
            if role not in NAMES:
                raise AuditError(f'columns: "{role}" is not something the audit reads ({", ".join(NAMES)})')
        self.columns, self.tokenizer = columns, _tokenizer(tokenizer) if tokenizer else None
        self.parts: dict[str, list[Any]] = {k: [] for k in ("reward", "length", "step", "prompt", "group", "finish")}
        self.tokens: list[Any] = []
        self.token_count = 0
        self.claims: list[Any] = []  # TRL's own advantages, which its summed rewards must explain
        self.texts: list[int] = []  # hashes of TRL's completions, which it can write twice
        self.numbers: dict[str, dict[Hashable, int]] = {"prompt": {}, "group": {}}
        self.places: list[tuple[str, int]] = []  # (file, rows) in the order they came
        self.step_files: dict[int, str] = {}
        self.sources: set[str] = set()
        self.units: set[str] = set()
        self.summed: tuple[str, ...] = ()

    def add_file(self, path: Path) -> None:
        try:
            if path.suffix == ".parquet":
                with pq.ParquetFile(path) as file:
                    names = file.schema_arrow.names
                    self.add(str(path), names, _parquet(file, self._wanted(str(path), names)))
            elif path.suffix == ".csv":
                with open(path, encoding="utf-8", newline="") as f:
                    names = next(csv.reader(f), [])
                self.add(str(path), names, _csv(path, self._roles(str(path), names)) if names else [])
            else:
                names = _first_record(path)
                self.add(str(path), names, _jsonl(path, self._wanted(str(path), names)) if names else [])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, OSError) as error:
            said = str(error).split("\n")[0].rstrip(".")
            raise AuditError(f"{path} cannot be read as {path.suffix[1:]}: {said}; is it whole?") from error

    def _wanted(self, file: str, names: Sequence[str]) -> list[str]:
        return sorted({c for cs in self._roles(file, names).values() for c in cs})

    def _roles(self, file: str, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """What each role is made of: columns and their weights (1, but in a sum of rewards)."""
        roles: dict[str, dict[str, float]] = {}
        for role, known in NAMES.items():
            if role in self.columns:
                roles[role] = _terms(role, self.columns[role], names, file)
            elif name := next((n for n in known if n in names), None):
                roles[role] = {name: 1.0}
        if _source(names) == "TRL":
            if "reward" not in self.columns:
                rewards = names[names.index("completion") + 1 : names.index("advantage")]
                roles["reward"] = dict.fromkeys(rewards, 1.0)
            roles["advantage"] = {"advantage": 1.0}
        if _source(names) == "verl" and "uid" in names:
            roles.setdefault("group", {"uid": 1.0})
        for role, instead in (("prompt", "group"), ("reward", "reward"), ("length", "tokens or text")):
            if not {role, *instead.split(" or ")} & roles.keys():
                either = "" if instead == role else f" (or {instead})"
                raise AuditError(
                    f"{file} has no column for {role}{either}: it has {', '.join(names) or 'none'}; "
                    f"name one with columns {role}=NAME"
                )
        if ("length" in roles or "tokens" in roles) and _source(names) != "TRL":
            roles.pop("text", None)
        return roles

    def add(self, file: str, names: Sequence[str], pieces: Iterable[tuple[int, dict[str, Any]]]) -> None:
        roles: dict[str, dict[str, float]] | None = None
        rows = 0
        for first, piece in pieces:
            if roles is None:
                roles = self._roles(file, names)
                roles = self._without_words(roles, piece)
            rows = first + self._piece(file, first, piece, roles)
        if not rows or roles is None:
            raise AuditError(f"{file} is empty: the rule is at least one response")
        self.places.append((file, rows))
        self.sources.add(_source(names))
        self.summed = tuple(roles["reward"])

    def _without_words(self, roles: dict[str, dict[str, float]], piece: dict[str, Any]) -> dict[str, dict[str, float]]:
        """TRL puts a user's own columns among the rewards; those that hold no numbers are no rewards."""
        if "advantage" not in roles or "reward" in self.columns:
            return roles
        numbers = {c: 1.0 for c in roles["reward"] if is_numeric(piece[c])}
        return {**roles, "reward": numbers or roles["reward"]}

    def _piece(self, file: str, first: int, piece: dict[str, Any], roles: dict[str, dict[str, float]]) -> int:
        def column(role: str) -> tuple[str, Any]:
            (name,) = roles[role]
            return name, piece[name]

        def refuse(i: int, name: str, why: str) -> AuditError:
            return AuditError(f"{file}, row {first + int(i) + 1}, column {name}: {why}")

        reward = weighted_sum(roles["reward"], piece, refuse, some_missing="advantage" in roles)
        n = len(reward)
        self.parts["reward"].append(reward)
        if "prompt" in roles:
            self.parts["prompt"].append(self._numbered("prompt", *column("prompt"), refuse))
        if "group" in roles:
            name, values = column("group")
            values = _without_rollout(values) if name == "uid" and "group" not in self.columns else values
            self.parts["group"].append(self._numbered("group", name, values, refuse))
        step = whole_numbers(*column("step"), refuse, "a step") if "step" in roles else None
        self.parts["step"].append(np.full(n, self._step_of(file)) if step is None else step)
        self._lengths(n, roles, column, refuse)
        if "finish" in roles:
            _, values = column("finish")
            self.parts["finish"].append(np.array([v in CUT for v in plain_values(values)]))
        if "advantage" in roles:
            self.claims.append(numbers(*column("advantage"), refuse))
            self.texts += [hash(json.dumps(t) if isinstance(t, list) else t) for t in plain_values(column("text")[1])]
        return n

    def _step_of(self, file: str) -> int:
        """The N of step-N.parquet, for a file without a step column; 0 where the name says nothing."""
        found = re.fullmatch(r"step-(\d+)", Path(file).stem)
        if found is None:
            return 0
        step = int(found[1])
        if self.step_files.setdefault(step, file) != file:
            raise AuditError(f"{file} and {self.step_files[step]} are both step {step}: audit one run at a time")
        return step

    def _lengths(self, n: int, roles: dict[str, dict[str, float]], column: Any, refuse: Refuse) -> None:
        length = whole_numbers(*column("length"), refuse, "a length") if "length" in roles else None
        ids: tuple[Integers, Any] | None = None
        if "tokens" in roles:
            ids = token_ids(*column("tokens"), refuse)
        elif length is None and self.tokenizer is not None:
            texts = [text_of(t) for t in plain_values(column("text")[1])]
            encoded = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
            ids = np.array([len(e) for e in encoded]), np.array([t for e in encoded for t in e], np.int32)
        if ids is not None:
            if length is not None and (ids[0] != length).any():
                i = int((ids[0] != length).argmax())
                raise refuse(i, next(iter(roles["length"])), f"{length[i]} is not the number of tokens, {ids[0][i]}")
            length = ids[0]
            self.token_count += len(ids[1])
            self.tokens.append(ids[1])
            if self.token_count > MOST_TOKENS:
                self.tokens = [None]
        elif length is None:
            length = characters(*column("text"), refuse)
        self.units.add("characters" if ids is None and "length" not in roles else "tokens")
        self.parts["length"].append(length)

    def _numbered(self, role: str, name: str, values: Any, refuse: Refuse) -> Integers:
        """Ids of any kind as whole numbers, the same in every file."""
        known = self.numbers[role]
        if isinstance(values, pa.Array) and not pa.types.is_nested(values.type):
            encoded = values.dictionary_encode() if not pa.types.is_dictionary(values.type) else values
            if encoded.null_count:
                raise refuse(np.flatnonzero(encoded.is_null())[0], name, f"a {role} is missing")
            number = np.array([known.setdefault(v, len(known)) for v in encoded.dictionary.to_pylist()], np.int64)
            return number[encoded.indices.to_numpy(zero_copy_only=False)]
        plain = plain_values(values)
        if None in plain:
            raise refuse(plain.index(None), name, f"a {role} is missing")
        keys = (v if isinstance(v, str | int) else json.dumps(v, sort_keys=True, default=str) for v in plain)
        return np.array([known.setdefault(k, len(known)) for k in keys], np.int64)

    def log(self) -> Log:
        if len(self.units) > 1:
            raise AuditError("some files have token counts and some only text: audit them apart, or give a tokenizer")
        for role in ("group", "prompt", "finish"):
            if 0 < len(self.parts[role]) < len(self.parts["reward"]):
                raise AuditError(f"some files have a column for {role} and some have none: audit them apart")
        joined = {k: np.concatenate(v) for k, v in self.parts.items() if v}
        step, prompt = joined["step"], joined.get("prompt")
        own = joined.get("group", prompt)
        assert own is not None  # _roles asked for one of them
        _, batch = np.unique(step, return_inverse=True)
        _, group = np.unique(batch * (own.max() + 1) + own, return_inverse=True)
        tokens = np.concatenate(self.tokens) if self.tokens and self.tokens[0] is not None else None
        if tokens is not None and len(tokens) != joined["length"].sum():
            raise AuditError("some files have token ids and some have none: audit them apart")
        notes = []
        if self.tokens and tokens is None:
            notes.append(
                f"more than {MOST_TOKENS / 1e6:.0f} million tokens: shared prefixes are not measured; audit fewer files"
            )
        log = Log(
            joined["reward"], joined["length"], step, group, group if prompt is None else prompt,
            joined.get("finish"), tokens, *self.units, " and ".join(sorted(self.sources)), tuple(notes),
        )  # fmt: skip
        real = ~np.isin(own, [n for name, n in self.numbers["group"].items() if _is_padding(name)])
        if not real.all():
            note = f"left out {(~real).sum()} rows that verl filled its batch with"
            log = replace(_rows(log, real), notes=(*log.notes, note))
        self._refuse_groups_of_one(log)
        keep = np.ones(len(log), bool)
        if self.claims and len(self.claims) == len(self.parts["reward"]):
            keep = _not_repeated(log, np.array(self.texts))
            _explained(log, np.concatenate(self.claims), keep, self.summed)
        if not keep.all():
            dropped = sorted(set(log.step[~keep].tolist()))
            log = _rows(log, keep)
            log = replace(log, notes=(*log.notes, f"left out {_listed(dropped)}: TRL wrote the step before once more"))
        sizes = np.bincount(log.group)
        if not self.parts["group"] and sizes.max() > sizes.min():
            note = (
                f"groups have {sizes.min()} to {sizes.max()} responses: a prompt that came twice in a step is one group"
            )
            log = replace(log, notes=(*log.notes, note))
        if not (log.length > 0).any():
            raise AuditError(f"{self.places[0][0]}: every response has length 0; is the right column named?")
        return ordered(log)

    def _refuse_groups_of_one(self, log: Log) -> None:
        size = np.bincount(log.group)
        alone = np.flatnonzero(size[log.group] == 1)
        if len(alone) == 0:
            return
        i = int(alone[0])
        for file, rows in self.places:
            if i < rows:
                raise AuditError(
                    f"{file}, row {i + 1}: the only response of its group in step {log.step[i]} "
                    f"({len(alone)} of {len(log)} responses are alone): an advantage compares responses to one prompt; "
                    "drop such rows, or name the columns that tell groups apart with columns prompt=NAME,group=NAME"
                )
            i -= rows


def _source(names: Sequence[str]) -> str:
    for source, columns in (
        ("equipoise", ("prompt_id", "reward", "length", "finish", "logprob_sum")),
        ("TRL", ("prompt", "completion", "advantage")),
        ("verl", ("input", "output", "score", "step")),
    ):
        if all(c in names for c in columns):
            return source
    return "table"


def _terms(role: str, text: str, names: Sequence[str], file: str) -> dict[str, float]:
    """ "a" or, for rewards, "a+0.5*b" as columns and weights."""
    if text in names:
        return {text: 1.0}
    terms: dict[str, float] = {}
    for term in text.split("+") if role == "reward" else [text]:
        weight, times, name = term.strip().partition("*")
        try:
            terms[name.strip() if times else term.strip()] = float(weight) if times else 1.0
        except ValueError:
            raise AuditError(f"columns: {role}={text}: {weight} is not a weight; write 0.5*NAME") from None
    for name in terms:
        if name not in names:
            raise AuditError(f"{file} has no column {name}, which columns name for {role}: it has {', '.join(names)}")
    return terms


def _parquet(file: pq.ParquetFile, wanted: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    first = 0
    for batch in file.iter_batches(ROWS, columns=wanted):
        yield first, {name: batch.column(name) for name in batch.schema.names}
        first += batch.num_rows


def _csv(path: Path, roles: dict[str, dict[str, float]]) -> Iterator[tuple[int, dict[str, Any]]]:
    kinds = {c: pa.float64() for role in ("reward", "length", "step", "advantage") for c in roles.get(role, ())}
    for role in ("prompt", "group", "text", "finish"):
        kinds |= {c: pa.string() for c in roles.get(role, ())}
    if "tokens" in roles:
        raise AuditError(f"{path}: a CSV file cannot hold token ids; name a length column, or write Parquet")
    options = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=sorted(kinds))
    first = 0
    with pyarrow.csv.open_csv(path, convert_options=options) as reader:
        for batch in reader:
            yield first, {name: batch.column(name) for name in batch.schema.names}
            first += batch.num_rows


def _first_record(path: Path) -> list[str]:
    for _, record in _records(path):
        return list(record)
    return []


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                if not line.strip():
                    continue
                raise AuditError(
                    f"{path}, row {number}: not a JSON object ({error.msg}); is the file whole?"
                ) from error
            if not isinstance(record, dict):
                raise AuditError(f"{path}, row {number}: {line.strip()[:40]} is not a JSON object")
            yield number, record


def _jsonl(path: Path, wanted: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    first, count = 0, 0
    held: dict[str, list[Any]] = {name: [] for name in wanted}
    for number, record in _records(path):
        for name in wanted:
            if name not in record:
                raise AuditError(f"{path}, row {number}: no column {name}, which the first row has")
            held[name].append(record[name])
        count += 1
        if count - first == ROWS:
            yield first, held
            first, held = count, {name: [] for name in wanted}
    if count > first:
        yield first, held


def _without_rollout(values: Any) -> list[Any]:
    """verl's key {sample}_{rollout}_{output} without its last two numbers: what the responses to one prompt share."""
    return [re.sub(r"_\d+_\d+$", "", v) if isinstance(v, str) else v for v in plain_values(values)]


def _is_padding(name: Any) -> bool:
    """Whether verl made this key for a row that only fills a batch up."""
    return isinstance(name, str) and re.fullmatch(r"pad[0-9a-f]{32}", name) is not None


def _not_repeated(log: Log, text: Integers) -> Any:
    """TRL writes its last generation batch at every log, so updating more than once per batch repeats whole steps."""
    keep = np.ones(len(log), bool)
    before: tuple[Any, ...] | None = None
    order = np.argsort(log.step, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(log.step[order])) + 1):
        now = (log.prompt[rows], text[rows], log.reward[rows])
        if before is not None and all(np.array_equal(a, b) for a, b in zip(before, now, strict=True)):
            keep[rows] = False
        before = now
    return keep


def _explained(log: Log, advantage: Floats, keep: Any, summed: tuple[str, ...]) -> None:
    """Several reward columns: their sum must be what TRL took its advantages of, or some is no reward, or weighed."""
    if len(summed) < 2:
        return
    g, n = log.group[keep], np.bincount(log.group[keep])
    r, A = log.reward[keep], advantage[keep]

    def centred(x: Floats) -> Floats:
        return x - (np.bincount(g, x) / np.maximum(n, 1))[g]

    def over(x: Floats) -> Floats:
        return np.bincount(g, x)

    r, A = centred(r), centred(A)
    size = np.sqrt(over(r * r) * over(A * A))
    fit = over(r * A)[size > 1e-9] / size[size > 1e-9]
    if len(fit) and np.median(fit) < 0.999:
        raise AuditError(
            f"the sum of the columns {', '.join(summed)} does not explain the column advantage (median correlation "
            f"within groups {np.median(fit):.2f}): say what the reward is with columns reward=NAME+0.5*NAME"
        )


def _rows(log: Log, keep: Any) -> Log:
    """Some rows of a log that is not yet ordered, and so has its tokens in the same order."""
    tokens = None if log.tokens is None else log.tokens[np.repeat(keep, log.length)]
    _, group = np.unique(log.group[keep], return_inverse=True)
    return replace(
        log, reward=log.reward[keep], length=log.length[keep], step=log.step[keep], group=group,
        prompt=log.prompt[keep], truncated=None if log.truncated is None else log.truncated[keep], tokens=tokens,
    )  # fmt: skip


def _masked(log: Log) -> Log:
    """As the run had it: responses cut at the limit count in their group's mean reward and stay out of the loss."""
    if log.truncated is None or not log.truncated.any():
        return log
    tokens = None if log.tokens is None else log.tokens[np.repeat(~log.truncated, log.length)]
    note = "reward.mask_truncated: truncated responses have length 0 here, as in the run"
    return ordered(replace(log, length=np.where(log.truncated, 0, log.length), tokens=tokens, notes=(*log.notes, note)))


def _listed(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:5])) + (", …" if len(steps) > 5 else "")
    return f"step {shown}" if len(steps) == 1 else f"{len(steps)} steps ({shown})"


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise AuditError(f"tokenizer {name}: {str(error).splitlines()[0]}") from error
