"""The pieces of all files as one log: values checked, ids numbered, lengths counted.

Prompts and groups are numbered by first appearance, the same in every file. What a writer's rows
need besides (padding, repeats, evaluations) is asked of its module.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from equipoise.audit.columns import (
    Refuse,
    characters,
    first_null,
    numbers,
    plain_values,
    text_of,
    token_ids,
    weighted_sum,
    whole_numbers,
)
from equipoise.audit.log import AuditError, Integers, Log, ordered, selected
from equipoise.audit.readers import ours, trl, verl
from equipoise.audit.readers.dumps import Dump, dump_of
from equipoise.audit.readers.files import Piece, names_in, pieces
from equipoise.audit.readers.roles import Roles, check_columns, read_from, roles_of, writer_of

CUT = {"length", "true", "1", "1.0"}
ENDED = {"stop", "false", "0", "0.0"}
MOST_TOKENS = 1 << 27  # held as 4 bytes each; beyond it the shared prefixes are left unmeasured
THIN = {"prime-rl", "slime"}  # they go on with what is left of a group when responses fail
TOO_MANY = f"more than {MOST_TOKENS / 1e6:.0f} million tokens: shared prefixes are not measured; audit fewer files"


class LogCollector:
    def __init__(self, columns: Mapping[str, str], tokenizer: str | None) -> None:
        check_columns(columns)
        self.columns = columns
        self.tokenizer = _tokenizer(tokenizer) if tokenizer else None
        self.parts: defaultdict[str, list[Any]] = defaultdict(list)  # of each column, the pieces
        self.tokens: list[Any] = []
        self.token_count = 0
        self.numbers: dict[str, dict[Hashable, int]] = {"prompt": {}, "group": {}}
        self.places: list[tuple[str, int]] = []  # (file, rows) in the order they came
        self.step_files: dict[int, str] = {}
        self.writers: set[str] = set()
        self.read_from: defaultdict[str, set[str]] = defaultdict(set)  # columns of each role
        self.ends: set[str] = set()  # words for why a response ended
        self.units: set[str] = set()
        self.summed: tuple[str, ...] = ()
        self.dump_notes: dict[str, None] = {}
        self.rates = True

    def add_file(self, path: Path) -> None:
        try:
            if (dump := dump_of(path)) is not None:
                self._add_dump(str(path), dump)
                return
            names = names_in(path)
            content = pieces(path, roles_of(str(path), names, self.columns)) if names else ()
            self.add(str(path), names, content)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, OSError) as error:
            said = str(error).split("\n")[0].rstrip(".")
            raise AuditError(
                f"{path} cannot be read as {path.suffix[1:]}: {said}; is it whole?"
            ) from error

    def _add_dump(self, file: str, dump: Dump) -> None:
        if not dump.columns:  # a step of which every response failed
            self.dump_notes[f"{file} holds no response with a reward"] = None
            return
        self.add(file, list(dump.columns), [(0, dump.columns)], dump.writer)
        self.rates &= dump.rates
        if dump.note:
            self.dump_notes[dump.note] = None

    def add(
        self, file: str, names: Sequence[str], content: Iterable[Piece], writer: str | None = None
    ) -> None:
        roles: Roles | None = None
        rows = 0
        for first, piece in content:
            if roles is None:
                roles = roles_of(file, names, self.columns)
                if "advantage" in roles and "reward" not in self.columns:
                    roles["reward"] = trl.without_words(roles["reward"], piece)
            rows = first + self._piece(file, first, piece, roles)
        if not rows or roles is None:
            raise AuditError(f"{file} is empty: it must have at least one response")
        self.places.append((file, rows))
        self.writers.add(writer or writer_of(names))
        if writer is None:  # a dump's columns are made by its reader
            for role, said in read_from(file, names, self.columns, roles).items():
                self.read_from[role].add(said)
        self.summed = tuple(roles["reward"])

    def _piece(self, file: str, first: int, piece: dict[str, Any], roles: Roles) -> int:
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
            if name == "uid" and "group" not in self.columns:
                values = verl.without_rollout(values)
            self.parts["group"].append(self._numbered("group", name, values, refuse))
        if "step" in roles:
            step = whole_numbers(*column("step"), refuse, "a step")
        else:
            step = np.full(n, self._step_of(file))
        self.parts["step"].append(step)
        self._lengths(roles, column, refuse)
        if "finish" in roles:
            _, values = column("finish")
            ends = plain_values(values)
            self.ends.update(end for end in ends if isinstance(end, str))
            self.parts["finish"].append(np.array([_was_cut(end) for end in ends]))
        if {"sampler_logprob", "trainer_logprob"} <= roles.keys():
            sampler = numbers(*column("sampler_logprob"), refuse)
            trainer = numbers(*column("trainer_logprob"), refuse)
            self.parts["sampler"].append(sampler - trainer)
        if "kept" in roles:
            self.parts["kept"].append(_flags(*column("kept"), refuse))
        if "advantage" in roles:
            self.parts["advantage"].append(numbers(*column("advantage"), refuse))
            _, values = column("text")
            self.parts["text"].append(np.array([_text_hash(v) for v in plain_values(values)]))
        return n

    def _step_of(self, file: str) -> int:
        """For a file without a step column, the step in its name; 0 where that says nothing."""
        step = ours.step_in_name(file)
        if step is not None and self.step_files.setdefault(step, file) != file:
            raise AuditError(
                f"{file} and {self.step_files[step]} are both step {step}: audit one run at a time"
            )
        return step or 0

    def _lengths(
        self, roles: Roles, column: Callable[[str], tuple[str, Any]], refuse: Refuse
    ) -> None:
        """Lengths as they were logged, else counted in tokens, else in characters."""
        logged: Integers | None = None
        if "length" in roles:
            logged = whole_numbers(*column("length"), refuse, "a length")
        if "tokens" in roles:
            counted, flat = token_ids(*column("tokens"), refuse)
            if logged is not None and (counted != logged).any():
                i = int((counted != logged).argmax())
                name, _ = column("length")
                why = f"{logged[i]} is not the number of tokens, {counted[i]}"
                raise refuse(i, name, why)
            self._keep_tokens(flat)
            length, unit = counted, "tokens"
        elif logged is not None:
            length, unit = logged, "tokens"
        elif self.tokenizer is not None:
            _, texts = column("text")
            length, flat = self._encoded([text_of(text) for text in plain_values(texts)])
            self._keep_tokens(flat)
            unit = "tokens"
        else:
            length, unit = characters(*column("text"), refuse), "characters"
        self.units.add(unit)
        self.parts["length"].append(length)

    def _encoded(self, texts: list[str]) -> tuple[Integers, Any]:
        """How many tokens each text has, and all of them one after the other."""
        assert self.tokenizer is not None
        try:
            encoded = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        # tokenizers raise nothing narrower where a character is not in the vocabulary
        except Exception as error:
            raise AuditError(
                f"--tokenizer cannot read the responses, {texts[0][:40]!r} and on: {error}; "
                "name the model's own"
            ) from error
        lengths = np.array([len(ids) for ids in encoded])
        flat = np.array([token for ids in encoded for token in ids], np.int32)
        return lengths, flat

    def _keep_tokens(self, flat: Any) -> None:
        self.token_count += len(flat)
        self.tokens.append(flat)
        if self.token_count > MOST_TOKENS:
            self.tokens = [None]

    def _numbered(self, role: str, name: str, values: Any, refuse: Refuse) -> Integers:
        """Ids of any kind as whole numbers, the same in every file."""
        known = self.numbers[role]
        if isinstance(values, pa.Array) and not pa.types.is_nested(values.type):
            # Each different value is looked up once.
            is_encoded = pa.types.is_dictionary(values.type)
            encoded = values if is_encoded else values.dictionary_encode()
            if encoded.null_count:
                raise refuse(first_null(encoded), name, f"a {role} is missing")
            different = encoded.dictionary.to_pylist()
            number = np.array([known.setdefault(key, len(known)) for key in different], np.int64)
            numbered: Integers = number[encoded.indices.to_numpy(zero_copy_only=False)]
            return numbered
        plain = plain_values(values)
        if None in plain:
            raise refuse(plain.index(None), name, f"a {role} is missing")
        keys = map(_key, plain)
        return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)

    def log(self, paths: Sequence[Path] = ()) -> Log:
        """All of it; of TRL's rows, those of training, as far as the files beside `paths` tell."""
        if not self.places:
            raise AuditError(
                "no file holds a response with a reward: " + "; ".join(self.dump_notes)
            )
        log, real = self._joined()
        rows = np.arange(len(log))  # where each response stands among all that were read
        notes = [*log.notes, *self.dump_notes]
        others = sorted(end for end in self.ends if end.lower() not in ENDED)
        if others and not np.any(log.truncated):
            said = ", ".join(end[:20] for end in others[:4])
            notes.append(
                f'no response counts as cut at the limit: finish says {said}, and never "length" or true'
            )
        if not real.all():
            notes.append(f"left out {(~real).sum()} rows that verl filled its batch with")
            log, rows = selected(log, real), rows[real]
        signs: list[str] = []
        if from_trl := len(self.parts["advantage"]) == len(self.parts["reward"]):
            text, known = np.concatenate(self.parts["text"])[rows], trl.evaluations(paths)
            keep, left_out, signs = trl.training(log, text, known)
            log, rows = selected(log, keep), rows[keep]
            notes += left_out + signs
        if self.writers <= THIN:
            log, rows, alone = _without_groups_of_one(log, rows)
            if alone:
                who = " and ".join(sorted(self.writers))
                notes.append(f"left out {alone} responses that {who} kept alone of their group")
        self._refuse_groups_of_one(log, rows)
        if from_trl:
            trl.check_explained(log, np.concatenate(self.parts["advantage"])[rows], self.summed)
        sizes = np.bincount(log.group)
        if not signs and not self.parts["group"] and sizes.max() > sizes.min():
            notes.append(
                f"groups have {sizes.min()} to {sizes.max()} responses: a prompt that came twice in a step is one group"
            )
        if not (log.length > 0).any():
            raise AuditError(
                f"{self.places[0][0]}: every response has length 0; is the right column named?"
            )
        return ordered(replace(log, notes=tuple(notes)))

    def _joined(self) -> tuple[Log, Any]:
        """Every row in the order it came, and which of them are responses and not padding."""
        if len(self.units) > 1:
            raise AuditError(
                "some files have token counts and some only text: audit them apart, or give a tokenizer"
            )
        for role in ("group", "prompt", "finish", "kept", "sampler"):
            if 0 < len(self.parts[role]) < len(self.parts["reward"]):
                raise AuditError(
                    f"some files have a column for {role} and some have none: audit them apart"
                )
        joined = {k: np.concatenate(v) for k, v in self.parts.items() if v}
        step, prompt = joined["step"], joined.get("prompt")
        own = joined.get("group", prompt)
        assert own is not None  # roles_of asked for one of them
        _, batch = np.unique(step, return_inverse=True)
        _, group = np.unique(batch * (own.max() + 1) + own, return_inverse=True)
        tokens = np.concatenate(self.tokens) if self.tokens and self.tokens[0] is not None else None
        if tokens is not None and len(tokens) != joined["length"].sum():
            raise AuditError("some files have token ids and some have none: audit them apart")
        notes = (TOO_MANY,) if self.tokens and tokens is None else ()
        (unit,) = self.units
        log = Log(
            reward=joined["reward"],
            length=joined["length"],
            step=step,
            group=group,
            prompt=group if prompt is None else prompt,
            truncated=joined.get("finish"),
            tokens=tokens,
            unit=unit,
            source=" and ".join(sorted(self.writers)),
            notes=notes,
            kept=joined.get("kept"),
            sampler_distance=joined.get("sampler"),
            rates=self.rates,
            columns={role: " or ".join(sorted(names)) for role, names in self.read_from.items()},
        )
        padding = [n for name, n in self.numbers["group"].items() if verl.is_padding(name)]
        return log, ~np.isin(own, padding)

    def _refuse_groups_of_one(self, log: Log, rows: Integers) -> None:
        size = np.bincount(log.group)
        alone = np.flatnonzero(size[log.group] == 1)
        if len(alone) == 0:
            return
        i = int(rows[alone[0]])
        for file, count in self.places:
            if i < count:
                raise AuditError(
                    f"{file}, row {i + 1}: the only response of its group in step {log.step[alone[0]]} "
                    f"({len(alone)} of {len(log)} responses are alone): an advantage compares responses to one prompt; "
                    "drop such rows, or name the columns that tell groups apart with columns prompt=NAME,group=NAME"
                    + (trl.IF_ALONE if self.writers == {"TRL"} else "")
                )
            i -= count


def _flags(name: str, values: Any, refuse: Refuse) -> NDArray[np.bool_]:
    flags = whole_numbers(name, values, refuse, "a flag")
    if (flags > 1).any():
        raise refuse(int(flags.argmax()), name, f"{flags.max()} is not true or false")
    kept: NDArray[np.bool_] = flags == 1
    return kept


def _was_cut(end: Any) -> bool:
    """A table may make numbers of flags, and CSV has text alone."""
    return str(end).lower() in CUT


def _text_hash(text: Any) -> int:
    """Tells responses apart within this process; conversations are lists of messages."""
    return hash(json.dumps(text) if isinstance(text, list) else text)


def _key(value: Any) -> Hashable:
    """Of a prompt or group that may be a conversation, or anything else JSON holds."""
    if isinstance(value, str | int):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def _without_groups_of_one(log: Log, rows: Integers) -> tuple[Log, Integers, int]:
    """The log without responses that are alone among those of their group kept (or not kept)."""
    part = 2 * log.group + (0 if log.kept is None else log.kept)
    keep = np.bincount(part)[part] > 1
    if keep.all() or not keep.any():
        return log, rows, 0
    return selected(log, keep), rows[keep], int((~keep).sum())


def _tokenizer(name: str) -> Any:
    from equipoise.policy.names import ModelError
    from equipoise.policy.tokenizer import open_tokenizer

    try:
        return open_tokenizer(name)
    except ModelError as error:
        raise AuditError(f"--tokenizer {name}: {error}") from error
