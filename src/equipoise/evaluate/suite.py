"""Evaluate a model on benchmarks, keep every response, and go on where a killed evaluation stopped.

The problems of a benchmark are sampled in chunks of fixed make-up. A response's draws depend on
(seed, benchmark and problem, number of the sample) alone, and its chunk is computed in one batch
whenever it is computed: so an evaluation that was killed any number of times ends with the same
bytes as one that was not, on the same machine with the same versions and threads. Verdicts are
asked for while the rest of the chunk is still being sampled. More problems (`--limit`) begin a
chunk of their own, and every response that is there is kept.

Not covered: several processes on one evaluation;
give each of them some of the benchmarks and its own folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equipoise import policy as models
from equipoise.evaluate.benchmarks import Benchmark
from equipoise.evaluate.folder import EvaluationError, Folder, Row
from equipoise.evaluate.run import SEED
from equipoise.evaluate.summary import Summary, average, over_checkpoints, summarise
from equipoise.evaluate.table import markdown
from equipoise.policy.chat import AS_TEXT, Chat
from equipoise.rollout import Sampler, SamplingParams
from equipoise.tasks import Prompt
from equipoise.verifiers import Verdict

CHUNK_RESPONSES = 512  # in a chunk where nobody says
WEIGHTS_LOOKED_AT = 4096  # numbers of each tensor that go into the digest of a model
# What a prompt has besides the problem. Folders of earlier versions do not say: it was nothing.
CONVERSATION: dict[str, Any] = {"system": "", "chat_template_kwargs": {}}
# what must agree for one folder to be one result
MODEL = ("weights", "dtype", "device", "seed", "temperature", "chat", *CONVERSATION)
BENCHMARK = ("samples", "max_tokens", "chunk", "problems", "prompts", "references", "stop")

# by the strict and by the lenient rules of mathematics
Verdicts = tuple[Future[Verdict], Future[Verdict]]


@dataclass(frozen=True, slots=True)
class BenchmarkPlan:
    """One benchmark: `samples` responses of at most `max_tokens`, `chunk` problems at a time."""

    benchmark: Benchmark
    samples: int
    max_tokens: int
    chunk: int
    # problems there were each time the evaluation had grown, before now
    limits: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, benchmark: Benchmark, samples: int, max_tokens: int = 0, chunk: int = 0
    ) -> BenchmarkPlan:
        """0 takes the benchmark's own most tokens, and a chunk of about CHUNK_RESPONSES."""
        size = chunk or max(1, CHUNK_RESPONSES // samples)
        return cls(benchmark, samples, max_tokens or benchmark.max_tokens, size)

    @property
    def chunks(self) -> list[tuple[Prompt, ...]]:
        prompts = self.benchmark.prompts
        ends = chunk_ends([*self.limits, len(prompts)], self.chunk)
        return [prompts[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def grown_from(self, about: Mapping[str, Any]) -> BenchmarkPlan:
        """The plan with the chunks of an evaluation of its first problems; itself without one."""
        limits, there = tuple(about.get("limits", ())), about["problems"]
        first = dataclasses.replace(self.benchmark, prompts=self.benchmark.prompts[:there])
        digests = {"prompts": digest_of_prompts(first), "references": digest_of_references(first)}
        if digests.items() <= about.items() and there < len(self.benchmark.prompts):
            limits = (*limits, there)
        return dataclasses.replace(self, limits=limits)

    def settings(self) -> dict[str, Any]:
        b = self.benchmark
        return {
            "samples": self.samples,
            "max_tokens": self.max_tokens,
            "chunk": self.chunk,
            "problems": len(b.prompts),
            "prompts": digest_of_prompts(b),
            "references": digest_of_references(b),
            "stop": list(b.stop),
            "source": b.source,
            "limits": list(self.limits),
        }


def evaluate_benchmarks(
    policy: models.Policy,
    sampler: Sampler,
    plans: Sequence[BenchmarkPlan],
    out: str | Path,
    *,
    temperature: float = 1.0,
    seed: int = SEED,
    chat: Chat = AS_TEXT,
    say: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Sample what is not in `out` yet; returns the metrics of `plans`, as in `result.json`.

    `chat`: what is said besides the problems, of benchmarks that are asked as a conversation.
    """
    folder = Folder(out)
    if not plans:
        raise EvaluationError("no benchmarks: name at least one")
    # All prompts before the first sample: one that is too long must not cost the hours before it.
    encoded = [
        [_encode(policy, plan.benchmark, prompt, chat) for prompt in plan.benchmark.prompts]
        for plan in plans
    ]
    with folder.lock():
        plans = _grown(folder, plans)
        model = {
            "model": policy.name,
            "weights": weights_digest(policy),
            "dtype": str(policy.dtype).removeprefix("torch."),
            "device": policy.device.type,
            "seed": seed,
            "temperature": temperature,
            "chat": plans[0].benchmark.chat,
            "system": chat.system,
            "chat_template_kwargs": dict(chat.options),
        }
        benchmarks = {plan.benchmark.name: plan.settings() for plan in plans}
        folder.write_settings(_claimed(folder, {**model, "benchmarks": benchmarks}))
        for plan, ids in zip(plans, encoded, strict=True):
            params = SamplingParams(
                temperature, max_tokens=plan.max_tokens, stop=plan.benchmark.stop, seed=seed
            )
            _sample_missing(policy, sampler, plan, ids, params, folder, say)
        return write_result(folder, [plan.benchmark for plan in plans])


def _sample_missing(
    policy: models.Policy,
    sampler: Sampler,
    plan: BenchmarkPlan,
    ids: Sequence[Sequence[int]],
    params: SamplingParams,
    folder: Folder,
    say: Callable[[str], None],
) -> None:
    """The chunks of a benchmark that `folder` does not have; `ids` of all its prompts."""
    name, of = plan.benchmark.name, len(plan.benchmark.prompts)
    if not all(folder.has_chunk(name, number) for number in range(len(plan.chunks))):
        # a chunk on a CPU may take many minutes, and says nothing before its end
        say(
            f"{name}: {of} problems × {plan.samples} samples of at most {plan.max_tokens} tokens, "
            f"{min(plan.chunk, of)} problems at a time"
        )
    done = 0
    for number, prompts in enumerate(plan.chunks):
        begun = time.perf_counter()
        start, done = done, done + len(prompts)
        if folder.has_chunk(name, number):
            continue
        rows = _sample(policy, sampler, plan, prompts, ids[start:done], params)
        folder.write_chunk(name, number, rows)
        speed = sum(row["length"] for row in rows) / (time.perf_counter() - begun)
        say(f"{name}: {done} of {of} problems, {speed:.0f} tokens/s")


def write_result(folder: Folder, benchmarks: Sequence[Benchmark]) -> Summary:
    """The metrics of `benchmarks` from their samples, into result.json and result.md."""
    settings = folder.settings()
    assert settings is not None
    found = {}
    for benchmark in benchmarks:
        about = settings["benchmarks"][benchmark.name]
        rows = [
            row
            for number in range(chunks_in(about))
            for row in folder.chunk(benchmark.name, number)
        ]
        found[benchmark.name] = summarise(rows, about["samples"], benchmark.votes)
    result = {
        **{key: settings.get(key, CONVERSATION.get(key)) for key in ("model", *MODEL)},
        "benchmarks": found,
        "average": average(found),
    }
    folder.write("result.json", json.dumps(result, indent=2) + "\n")
    folder.write("result.md", markdown(result))
    return result


def write_run(folder: Folder, results: Mapping[int, Summary]) -> Summary:
    """Peak and last over the results at the steps of a run, into result.json and result.md."""
    over = over_checkpoints(results)
    folder.write("result.json", json.dumps(over, indent=2) + "\n")
    folder.write("result.md", markdown(over))
    return over


def chunk_ends(limits: Sequence[int], chunk: int) -> list[int]:
    """Where each chunk ends: also at every limit, as later problems were sampled later."""
    ends: list[int] = []
    for start, limit in zip([0, *limits], limits, strict=False):
        ends += [min(end, limit) for end in range(start + chunk, limit + chunk, chunk)]
    return ends


def chunks_in(about: Mapping[str, Any]) -> int:
    """How many chunks a benchmark of settings.json has."""
    return len(chunk_ends([*about.get("limits", ()), about["problems"]], about["chunk"]))


def _grown(folder: Folder, plans: Sequence[BenchmarkPlan]) -> list[BenchmarkPlan]:
    """The plans with the chunks that are there, where an evaluation of fewer problems is."""
    about = (folder.settings() or {"benchmarks": {}})["benchmarks"]
    return [
        plan.grown_from(about[name]) if (name := plan.benchmark.name) in about else plan
        for plan in plans
    ]


def _claimed(folder: Folder, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings to write: those there are, and new benchmarks; refused where one differs."""
    old = folder.settings()
    if old is None:
        if (folder.path / "samples").exists():
            raise EvaluationError(
                f"{folder.path}: has samples but no settings.json; choose another --out"
            )
        return settings
    was_asked = {**CONVERSATION, **old}
    changed = [
        f"{key} was {was_asked.get(key)!r}, now {settings[key]!r}"
        for key in MODEL
        if was_asked.get(key) != settings[key]
    ]
    for name, new in settings["benchmarks"].items():
        was = old["benchmarks"].get(name, new)
        shrunk = was["problems"] > new["problems"]
        # then the first problems were compared
        grown = new["limits"] != was.get("limits", [])
        same = [
            key
            for key in BENCHMARK
            if not (grown or shrunk) or key not in ("problems", "prompts", "references")
        ]
        changed += [
            f"{name}.{key} was {was.get(key)!r}, now {new[key]!r}"
            for key in same
            if was.get(key) != new[key]
        ]
        if shrunk:
            changed.append(
                f"{name}.problems was {was['problems']}, now {new['problems']}: "
                f"--limit may grow, and must be at least {was['problems']}"
            )
    if changed:
        raise EvaluationError(
            f"{folder.path}: holds an evaluation with other settings: {'; '.join(changed)}; choose another --out"
        )
    return {**old, "benchmarks": {**old["benchmarks"], **settings["benchmarks"]}}


def _encode(policy: models.Policy, benchmark: Benchmark, prompt: Prompt, chat: Chat) -> list[int]:
    """A problem's prompt as token ids, by the chat template where the benchmark asks for it."""
    shown = dataclasses.replace(chat, on=benchmark.chat)
    try:
        return shown.encode(policy, benchmark.text(prompt))
    # tokenizers raise bare Exception where a character is not in the vocabulary
    except Exception as error:
        raise EvaluationError(
            f"{benchmark.name}, problem {prompt.id}: {policy.name} cannot be asked it: {error}"
        ) from error


def _sample(
    policy: models.Policy,
    sampler: Sampler,
    plan: BenchmarkPlan,
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    params: SamplingParams,
) -> list[Row]:
    """A row for each response to these prompts: text, length, finish and both verdicts.

    A response is graded as soon as it is finished, while others are still being sampled.
    """
    benchmark, n = plan.benchmark, plan.samples
    texts: dict[int, str] = {}
    asked: dict[int, Verdicts] = {}

    def finished(rows: list[int], tokens: Tensor, lengths: Tensor) -> None:
        for row, text in zip(rows, models.decode(policy, tokens, lengths), strict=True):
            texts[row] = text
            asked[row] = graded(benchmark, prompts[row // n], text)

    keys = [f"{benchmark.name}/{prompt.id}" for prompt in prompts]
    rollouts = sampler.sample(ids, n, params, keys=keys, finished=finished)
    rows = []
    for i, (length, finish) in enumerate(
        zip(rollouts.lengths.tolist(), rollouts.finish, strict=True)
    ):
        prompt = prompts[i // n]
        row = {
            "benchmark": benchmark.name,
            "prompt_id": prompt.id,
            "sample": i % n,
            "response": texts[i],
            "length": length,
            "finish": finish,
            "level": prompt.level,
            "subject": prompt.meta.get("subject"),
        }
        rows.append(row | verdict_columns(asked[i]))
    return rows


def graded(benchmark: Benchmark, prompt: Prompt, response: str) -> Verdicts:
    """By the strict rules and by the lenient ones."""
    return benchmark.grade(prompt, response), benchmark.grade(prompt, response, "lenient")


def verdict_columns(verdicts: Verdicts) -> Row:
    """The strict verdict but its seconds, which never are the same, and the lenient one's kind."""
    strict, lenient = (verdict.result() for verdict in verdicts)
    return {
        "verdict": strict.kind,
        "reason": strict.reason,
        "answer": strict.answer,
        "value": strict.value,
        "lenient": lenient.kind,
    }


def digest_of_prompts(benchmark: Benchmark) -> str:
    """What was asked: ids and texts."""
    return _digest([prompt.id, benchmark.text(prompt)] for prompt in benchmark.prompts)


def digest_of_references(benchmark: Benchmark) -> str:
    """What responses are graded against."""
    return _digest(
        [prompt.id, prompt.answer, prompt.meta.get("tests"), str(prompt.meta.get("tolerance"))]
        for prompt in benchmark.prompts
    )


def _digest(values: Iterable[Any]) -> str:
    """Eight bytes that tell these values apart from any others."""
    found = hashlib.blake2b(digest_size=8)
    for value in values:  # one at a time: the tests of some benchmarks are gigabytes
        found.update(json.dumps(value, sort_keys=True, default=str).encode())
    return found.hexdigest()


def weights_digest(policy: models.Policy) -> str:
    """Of evenly spaced numbers of every tensor: training changes them all."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(policy.model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // WEIGHTS_LOOKED_AT)].float().cpu()
        found.update(f"{name}{tuple(tensor.shape)}".encode())
        found.update(some.numpy().tobytes() if some.numel() else b"")
    return found.hexdigest()
