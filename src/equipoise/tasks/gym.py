"""Any reasoning-gym task, or a weighted mixture, graded by its own scorer with partial credit.

    gym:chain_sum                        one task
    gym:chain_sum*2+leg_counting         two items of the first for one of the second; levels are the tasks' names

Item i draws its task by the weights and its question by a seed of its own, both from the run's seed
and i. (The package's item k under seed s is its item k+1 under s−1, so its streams of neighbouring
seeds are the same one shifted; ours are apart.) Held-out items come from seeds of their own; a
training item whose question is held out is drawn again, so the two cannot overlap.

Answers are scored in a sandbox (`verifiers.code.resident`), one warm one per worker process: no
file, no network, no process, no signal to others. Where there is no sandbox every verdict is
`unavailable`. Scorers that would evaluate text as code are only shown text of a strict grammar
(`gym_grammar`), and end with their answer. An entry travels with its tuples, which plain JSON would
turn into lists: arc_agi and rearc would then give the right answer 0.05.

Known of the package (0.1.25): boxnet, graph_color, propositional_logic, rubiks_cube and rush_hour
have no reference answer, their scorers accept any solution, so `answer` is empty; a few tasks build
questions from the order of sets and are refused unless PYTHONHASHSEED is set; knight_swap is not
the same twice and is refused; scorers that a constant or an echo of the question can fool are
repaired, bounded or refused (docs/gym.md has the table). Not covered: curricula.
"""

from __future__ import annotations

import atexit
import datetime
import difflib
import hashlib
import json
import os
import random
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from equipoise.tasks import gym_grammar, scoring
from equipoise.tasks.task import Prompt, TaskError
from equipoise.verifiers.code import backend
from equipoise.verifiers.code.resident import WARM_SECONDS, Ended, Resident, packages
from equipoise.verifiers.code.sandbox import Late, Unavailable
from equipoise.verifiers.verdict import Verdict
from equipoise.verifiers.workers import shared
from equipoise.verifiers.workers.deadline import PATIENCE
from equipoise.verifiers.workers.process_pool import Pool
from equipoise.verifiers.workers.shared import KEPT, SET

HELD_OUT = 256  # of each task
BLOCK = 64  # items made from one seed
REDRAWS = 100
SECONDS = 5.0  # of CPU time for one score
JOB_SECONDS = PATIENCE * SECONDS + WARM_SECONDS  # after which a worker hangs
LONGEST_ANSWER = 20_000  # characters; scorers may be quadratic
HASHED = (
    "intermediate_integration",
    "isomorphic_strings",
    "polynomial_multiplication",
    "ransom_note",
    "word_ladder",
)
UNREPEATABLE = ("knight_swap",)

Options = Mapping[str, Mapping[str, Any]]


class Gym:
    """`options` has a task's own settings under its name; `max_tokens` is a default."""

    max_tokens = 256
    stop: tuple[str, ...] = ()

    def __init__(self, mixture: str, seed: int = 0, *, options: Options | None = None) -> None:
        self.name, self.seed = f"gym:{mixture}", seed
        self._weights = _weights(mixture)
        if unknown := [task for task in options or {} if task not in self._weights]:
            raise TaskError(
                f"{self.name}: options for {unknown[0]}, which is not in it ({', '.join(self._weights)})"
            )
        self._options = {task: dict((options or {}).get(task, {})) for task in self._weights}
        require(self.name)
        for task in self._weights:
            _refuse(task)
            self._entry(task, "held out", 0)

    def prompt(self, i: int) -> Prompt:
        if i < 0:
            raise ValueError(f"prompt({i}): the training stream starts at 0")
        draw = random.Random(f"equipoise/gym/{self.seed}/{i}")
        (task,) = draw.choices(list(self._weights), list(self._weights.values()))
        for again in range(REDRAWS):
            entry = self._entry(task, f"{self.seed}/{again}", i)
            if entry["question"] not in self._held_out_questions:
                return self._prompt(f"train-{i}", task, entry)
        raise TaskError(
            f"gym:{task}: {REDRAWS} items in a row are held out: it has too few different questions"
        )

    def evaluation(self, per_level: int | None = None) -> list[Prompt]:
        size = HELD_OUT if per_level is None else min(per_level, HELD_OUT)
        name = "held-out-{i}" if len(self._weights) == 1 else "held-out-{task}-{i}"
        return [
            self._prompt(name.format(task=task, i=i), task, self._entry(task, "held out", i))
            for task in self._weights
            for i in range(size)
        ]

    def grade(self, prompt: Prompt, response: str) -> Verdict | Future[Verdict]:
        return submit(prompt.meta["entry"], response, self._options[prompt.meta["task"]])

    @cached_property
    def _held_out_questions(self) -> set[str]:
        return {
            self._entry(task, "held out", i)["question"]
            for task in self._weights
            for i in range(HELD_OUT)
        }

    def _entry(self, task: str, stream: str, i: int) -> dict[str, Any]:
        """Item i of a stream. Some tasks make all items of a seed at once, so a seed serves a block
        of them only. An item whose reference is none is made again.
        """
        block, place = divmod(i, BLOCK)
        options = json.dumps(self._options[task])
        for again in range(REDRAWS):
            name = f"equipoise/gym/{task}/{stream}/{block}"
            if again:
                name += f"/{again}"
            key = hashlib.sha256(name.encode()).digest()
            seed = int.from_bytes(key[:4], "big") // BLOCK * BLOCK
            entry = item(_dataset(task, options, seed), seed, place)
            why = gym_grammar.entry_refusal(task, entry)
            if why is None:
                return entry
        raise TaskError(f"gym:{task}: {REDRAWS} items in a row cannot be graded: {why}")

    def _prompt(self, name: str, task: str, entry: dict[str, Any]) -> Prompt:
        level = None if len(self._weights) == 1 else task
        meta = {"task": task, "entry": entry}
        return Prompt(name, entry["question"], entry["answer"] or "", level, meta)


def item(made: Any, seed: int, place: int) -> dict[str, Any]:
    """An item of a task; codeio and list_functions draw from the shared generators too."""
    state, array_state = random.getstate(), np.random.get_state()
    random.seed(seed + place)
    np.random.seed(seed + place)
    try:
        return dict(made[place])
    finally:
        random.setstate(state)
        np.random.set_state(array_state)


def submit(
    entry: Mapping[str, Any], response: str, options: Mapping[str, Any] | None = None
) -> Verdict | Future[Verdict]:
    """The verdict of the entry's scorer (`metadata.source_dataset`) on the response's answer."""
    answer = final_answer(response, entry["answer"] or "")
    if not answer:
        return Verdict("unparsed", "no answer", value=0.0)
    if len(answer) > LONGEST_ANSWER:
        return Verdict(
            "limit",
            f"an answer of {len(answer)} characters: must be at most {LONGEST_ANSWER}",
            value=0.0,
        )
    task = str(entry["metadata"]["source_dataset"])
    if why := gym_grammar.entry_refusal(task, entry):
        return Verdict("bad_gold", f"{task}: {why}")
    if why := gym_grammar.refusal(task, answer, entry):
        return Verdict("wrong", why, value=0.0, answer=answer)
    job = json.dumps([task, dict(options or {}), pack(dict(entry)), answer])
    asked = [job, task in gym_grammar.EVALUATING, SECONDS]
    if address := backend.url():
        remote = [address, backend.token(), "gym", asked, JOB_SECONDS]
        return shared.pool("remote").submit(*remote, seconds=JOB_SECONDS + 30)
    return local_pool().submit(*asked, seconds=JOB_SECONDS)


def final_answer(response: str, reference: str) -> str:
    """Between the last <answer> tags; else behind the last "Answer:", as many lines as the
    reference has; else as many of the last lines. All of it where there is no reference.
    """
    text = response.rpartition("</think>")[2]
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start >= 0:
        return text[start + len("<answer>") : end].strip()
    _, mark, behind = text.rpartition("Answer:")
    lines = behind.strip().splitlines()
    count = len(reference.splitlines()) or len(lines)
    chosen = lines[:count] if mark else lines[-count:]
    return "\n".join(chosen).strip()


def score_job(job: str, alone: bool, seconds: float) -> Verdict:
    """In the worker, which holds the sandbox and is outside of it."""
    try:
        said = _resident().ask(job.encode("ascii"), seconds, alone=alone)
        kind, reason, value = json.loads(said)
        return Verdict(kind, reason, value=value, answer=json.loads(job)[3])
    except Unavailable as error:
        return Verdict("unavailable", str(error))
    except Late:
        return Verdict("timeout", f"the scorer took more than {seconds:g} s of CPU time")
    except (Ended, ValueError, TypeError) as error:
        return Verdict("crashed", f"{error}")


@cache
def _resident() -> Resident:
    return Resident(scoring.__file__, packages())


def pack(value: Any) -> Any:
    """A value of an entry for JSON, with tuples, dates, times and keys as they are."""
    if isinstance(value, tuple):
        return {"tuple": [pack(x) for x in value]}
    if isinstance(value, dict):
        return {"dict": [[pack(k), pack(x)] for k, x in value.items()]}
    if isinstance(value, list):
        return [pack(x) for x in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return {type(value).__name__: value.isoformat()}
    return value.item() if isinstance(value, np.generic) else value


def _weights(mixture: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in mixture.split("+"):
        task, star, number = (text.strip() for text in part.partition("*"))
        try:
            weight = float(number) if star else 1.0
        except ValueError:
            weight = 0.0
        if not 0 < weight < float("inf") or task in weights:
            raise TaskError(
                f'gym:{mixture}: "{part}" is not NAME or NAME*WEIGHT with a weight above 0, each name once'
            )
        weights[task] = weight
    return weights


def require(name: str) -> None:
    """Refuse a task that needs the package where it is not installed."""
    try:
        import reasoning_gym  # noqa: F401 (is it there?)
    except ImportError as error:
        raise TaskError(
            f"task.name = {name} needs reasoning-gym: pip install 'equipoise[gym]'"
        ) from error


def _refuse(task: str) -> None:
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "reasoning_gym.factory.DATASETS has them"
        raise TaskError(f"gym:{task} is not a task of reasoning-gym; {hint}")
    if task in UNREPEATABLE:
        raise TaskError(
            f"gym:{task}: reasoning-gym does not make the same question twice: a run could not be resumed"
        )
    if task in HASHED and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise TaskError(
            f"gym:{task}: its questions depend on the order of sets: set PYTHONHASHSEED=0 and start again"
        )


@lru_cache(maxsize=32)
def _dataset(task: str, options: str, seed: int) -> Any:
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(task, size=BLOCK, seed=seed, **json.loads(options))
    # it checks a task's options by assertions
    except (ValueError, AssertionError, TypeError) as error:
        raise TaskError(f"gym:{task}: {error}") from error


def local_pool() -> Pool[Verdict]:
    """Workers that hold a sandbox each."""
    return _pool_of(os.getpid())  # a forked process needs workers of its own


@cache
def _pool_of(process: int) -> Pool[Verdict]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    pool: Pool[Verdict] = Pool(
        "equipoise.tasks.gym:score_job",
        preload=("equipoise.tasks.gym",),
        quiet=True,
        environment=kept | SET,
    )
    atexit.register(pool.close)
    return pool
