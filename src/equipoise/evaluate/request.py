"""What an evaluation is asked for, before there is a model: benchmarks, samples, lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise import policy as models
from equipoise.evaluate.benchmarks import Benchmark, open_benchmark
from equipoise.evaluate.folder import EvaluationError, Folder
from equipoise.evaluate.protocol import PROTOCOLS, Protocol
from equipoise.evaluate.run import SEED
from equipoise.evaluate.suite import BenchmarkPlan, evaluate_benchmarks, write_run
from equipoise.evaluate.summary import Summary
from equipoise.policy.chat import AS_TEXT, Chat, decide
from equipoise.rollout import sampler


@dataclass(frozen=True)
class EvaluationRequest:
    """`samples` 0 and `temperature` None take the protocol's; `max_tokens` 0 and `chunk` 0 the
    benchmark's; `chat` None asks in the chat template where the model was trained on it
    (`policy.chat.decide`). `system` and `options` are the system message before every problem and
    what the template gets besides, as a run has them.
    """

    benchmarks: tuple[Benchmark, ...]
    protocol: Protocol = PROTOCOLS["ba"]
    samples: int = 0
    temperature: float | None = None
    max_tokens: int = 0
    chunk: int = 0
    chat: bool | None = None
    seed: int = SEED
    system: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.temperature == 0 and self.samples > 1:
            raise EvaluationError(
                f"--temperature 0 with --samples {self.samples}: greedy responses are all alike, it must be one"
            )

    def evaluate(
        self, policy: models.Policy, out: str | Path, say: Callable[[str], None] = lambda line: None
    ) -> Summary:
        """Evaluate a model into `out`, or go on where that stopped."""
        on = self.chat
        if on is None:
            on = decide(policy.tokenizer, policy.name, policy.eos).on
        chat = Chat(on, self.system, self.options) if on else AS_TEXT
        temperature = self.protocol.temperature if self.temperature is None else self.temperature
        plans = []
        for b in self.benchmarks:
            samples = self.samples or self.protocol.samples_of(b.name) if temperature else 1
            asked = dataclasses.replace(b, chat=on)
            plans.append(BenchmarkPlan.of(asked, samples, self.max_tokens, self.chunk))
        return evaluate_benchmarks(
            policy,
            sampler(policy),
            plans,
            out,
            temperature=temperature,
            seed=self.seed,
            chat=chat,
            say=say,
        )


def open_benchmarks(
    names: Sequence[str], data: str | Path | None, limit: int | None
) -> tuple[Benchmark, ...]:
    """Each name once, in the order given."""
    return tuple(open_benchmark(name, data, limit=limit) for name in dict.fromkeys(names))


def evaluate_checkpoints(
    request: EvaluationRequest,
    load: Callable[[Path], models.Policy],
    checkpoints: Mapping[int, Path],
    out: str | Path,
    say: Callable[[str], None] = print,
) -> Summary:
    """Every checkpoint of a run into `out`/step-N; peak and last into `out`/result.json and .md."""
    results = {}
    for step, path in sorted(checkpoints.items()):
        say(f"step {step}")
        results[step] = request.evaluate(load(path), Path(out) / f"step-{step}", say)
    return write_run(Folder(out), results)
