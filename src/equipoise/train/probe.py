"""A fixed set of responses that every evaluation scores: what training does to what was said.

The set is what the evaluation before training sampled: right and wrong responses of the start
policy to held-out prompts. Its prompts also say how hard each one was at the start, and accuracy is
given by that. New samples show where a policy went; a fixed set shows it without the noise of
drawing, and at the same contexts for every run that began alike. Not covered: sampling and grading,
which are the evaluation's, and intervals, which a study makes over seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.evaluate import Evaluation
from equipoise.evaluate.curve import answer_entropy, log_odds_drift
from equipoise.files import whole

TOKENS_AT_ONCE = 1 << 15
# Success rates at the start, as `start/NAME`: each bin takes what is above the one before,
# up to its end.
BINS = {"none": 0.0, "to-25": 0.25, "to-50": 0.5, "to-75": 0.75, "to-100": 1.0}


@dataclass(frozen=True)
class Probe:
    """Responses of the start policy; `start` [B]: log π of each before training."""

    prompts: list[list[int]]
    tokens: Tensor  # [N]
    lengths: Tensor  # [B]
    prompt: Tensor  # [B] place of its prompt
    right: Tensor  # [B] bool
    start: Tensor  # [B] float64

    @classmethod
    def of(
        cls,
        policy: models.Policy,
        evaluation: Evaluation,
        ids: Sequence[Sequence[int]],
        temperature: float,
    ) -> Probe:
        """Of what an evaluation sampled, encoded again; one that came to its end has the end token."""
        responses, prompt, right = [], [], []
        for place, row in enumerate(evaluation.sampled):
            for graded in row:
                tokens = policy.tokenizer.encode(graded.response, add_special_tokens=False)
                if len(tokens) < graded.length:
                    tokens = [*tokens, policy.tokenizer.eos_token_id]
                if tokens:
                    responses.append(tokens)
                    prompt.append(place)
                    right.append(graded.right)
        flat = torch.tensor([token for tokens in responses for token in tokens])
        lengths = torch.tensor([len(tokens) for tokens in responses])
        known = torch.tensor(prompt), torch.tensor(right)
        probe = cls(
            [list(row) for row in ids],
            flat,
            lengths,
            *known,
            torch.zeros(len(lengths), dtype=torch.float64),
        )
        logprobs, _ = probe.score(policy, temperature)
        return cls(probe.prompts, flat, lengths, *known, probe.by_response(logprobs))

    def save(self, path: Path) -> None:
        """Beside the run's logs: a run that goes on later asks the same."""
        with whole(path) as temporary:
            torch.save({name: getattr(self, name) for name in self.__dataclass_fields__}, temporary)

    @classmethod
    def load(cls, path: Path) -> Probe:
        return cls(**torch.load(path, weights_only=True))

    @torch.no_grad()
    def score(self, policy: models.Policy, temperature: float) -> tuple[Tensor, Tensor]:
        """log π and entropy [N] of every token, on the CPU."""
        parts = []
        ends = [*accumulate(self.lengths.tolist(), initial=0)]
        for rows in _rows_at_once(self.lengths.tolist()):
            tokens = self.tokens[ends[rows.start] : ends[rows.stop]].to(policy.device)
            pack = models.pack(self.prompts, tokens, self.lengths[rows], self.prompt[rows])
            parts.append(models.token_logprobs(policy, pack, temperature=temperature))
        logprobs, entropy = (torch.cat([part[i].double().cpu() for part in parts]) for i in (0, 1))
        return logprobs, entropy

    def by_response(self, values: Tensor) -> Tensor:
        """[N] → [B] sums."""
        response = torch.arange(len(self.lengths)).repeat_interleave(self.lengths)
        return torch.zeros(len(self.lengths), dtype=torch.float64).index_add_(0, response, values)

    def metrics(self, policy: models.Policy, temperature: float) -> dict[str, float]:
        """Means over tokens, in nats:

        probe/logprob            of all; its fall since the start is KL(start ‖ now) per token, estimated
        probe/right/logprob      of the right ones, probe/wrong/logprob of the wrong ones; also as …/short/… and
                                 …/long/…: below and above the mean length of the responses to the
                                 same prompt
        probe/entropy            of the policy at the set's contexts
        probe/shared/…           logprob and entropy where another response to the prompt has the same context
        probe/answers/drift      log-odds between different right responses to a prompt: how far they moved since the
                                 start; probe/answers/entropy: the entropy that is left among them
        """
        logprobs, entropy = self.score(policy, temperature)
        everywhere = torch.ones(len(logprobs), dtype=torch.bool)
        found = {}
        for name, where in {"": everywhere, "shared/": self.shared}.items():
            found[f"probe/{name}logprob"] = _mean(logprobs, where)
            found[f"probe/{name}entropy"] = _mean(entropy, where)
        for name, chosen in self._kinds.items():
            found[f"probe/{name}/logprob"] = _mean(logprobs, chosen.repeat_interleave(self.lengths))
        return found | self._answers(self.by_response(logprobs))

    @cached_property
    def _kinds(self) -> dict[str, Tensor]:
        mean = self._by_prompt(self.lengths)[self.prompt]
        kinds = {}
        for name, chosen in {"right": self.right, "wrong": ~self.right}.items():
            kinds[name] = chosen
            kinds[f"{name}/short"] = chosen & (self.lengths < mean)
            kinds[f"{name}/long"] = chosen & (self.lengths > mean)
        return kinds

    @cached_property
    def shared(self) -> Tensor:
        """[N] whether another response to the prompt has all the same tokens before this one."""
        grown: dict[tuple[int, int], int] = {}  # a context and a token → the context after it
        contexts = []
        for prompt, row in zip(
            self.prompt.tolist(), self.tokens.split(self.lengths.tolist()), strict=True
        ):
            context = -1 - prompt
            for token in row.tolist():
                contexts.append(context)
                context = grown.setdefault((context, token), len(grown))
        seen = Counter(contexts)
        return torch.tensor([seen[context] > 1 for context in contexts])

    @cached_property
    def answers(self) -> list[int]:
        """Rows of the right responses, each text once, of prompts that have two or more."""
        texts = self.tokens.split(self.lengths.tolist())
        first: dict[tuple[int, tuple[int, ...]], int] = {}
        for row in self.right.nonzero()[:, 0].tolist():
            first.setdefault((int(self.prompt[row]), tuple(texts[row].tolist())), row)
        texts_of = Counter(prompt for prompt, _ in first)
        return [row for (prompt, _), row in first.items() if texts_of[prompt] > 1]

    def _answers(self, now: Tensor) -> dict[str, float]:
        if not self.answers:
            return {}
        prompts = self.prompt[self.answers].tolist()
        after = now[self.answers].tolist()
        drift = log_odds_drift(self.start[self.answers].tolist(), after, prompts)
        of_prompt: dict[int, list[float]] = {}
        for prompt, logprob in zip(prompts, after, strict=True):
            of_prompt.setdefault(prompt, []).append(logprob)
        left = [answer_entropy(logprobs) for logprobs in of_prompt.values()]
        return {"probe/answers/drift": drift, "probe/answers/entropy": math.fsum(left) / len(left)}

    def _by_prompt(self, values: Tensor) -> Tensor:
        """[B] → [prompts] means; 0 of a prompt without responses."""
        both = torch.stack([values.float(), torch.ones(len(values))], 1)
        sums = torch.zeros(len(self.prompts), 2).index_add_(0, self.prompt, both)
        return sums[:, 0] / sums[:, 1].clamp(min=1)

    def by_start(self, evaluation: Evaluation) -> dict[str, float]:
        """`start/BIN`: accuracy now of the held-out prompts, by their success rate at the start."""
        rate = self._by_prompt(self.right)
        now = torch.tensor([sum(g.outcome for g in row) / len(row) for row in evaluation.sampled])
        found, above = {}, -1.0
        for name, end in BINS.items():
            inside = (rate > above) & (rate <= end)
            if bool(inside.any()):
                found[f"start/{name}"] = float(now[inside].double().mean())
            above = end
        return found


def _mean(values: Tensor, where: Tensor) -> float:
    return float(values[where].mean()) if bool(where.any()) else math.nan


def _rows_at_once(lengths: Sequence[int]) -> list[slice]:
    """Rows of at most TOKENS_AT_ONCE tokens together, or one row."""
    parts, first, held = [], 0, 0
    for row, length in enumerate(lengths):
        if held and held + length > TOKENS_AT_ONCE:
            parts.append(slice(first, row))
            first, held = row, 0
        held += length
    return [*parts, slice(first, len(lengths))]
