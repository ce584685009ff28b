"""The book-keeping every sampler shares: which responses are asked for, what was drawn, who is finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.policy import Policy, PromptTooLong
from equipoise.rollout.draw import draw
from equipoise.rollout.rollouts import Key, Rollouts, SamplingParams
from equipoise.rollout.stop import StopStrings
from equipoise.rollout.uniform import response_keys, uniforms

BLOCK = 64  # positions whose uniform numbers are made at once


@dataclass(eq=False)
class Request:
    """R = len(prompts)·n responses; response r is number r % n of prompt r // n. limit [R]: most tokens of each."""

    prompts: list[list[int]]
    n: int
    params: SamplingParams
    keys: Tensor
    limit: Tensor
    eos: Tensor
    stop: StopStrings | None

    @property
    def rows(self) -> int:
        return len(self.prompts) * self.n


def request(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    n: int,
    params: SamplingParams,
    keys: Sequence[Key] | None,
    step: int,
) -> Request:
    """Check what was asked for and derive the seeds of the responses."""
    if n < 1 or len(prompts) == 0:
        raise ValueError(f"asked for {n} responses to {len(prompts)} prompts; both must be at least 1")
    names = range(len(prompts)) if keys is None else keys
    if len(names) != len(prompts):
        raise ValueError(f"{len(names)} keys for {len(prompts)} prompts; give one for each")
    for prompt in prompts:
        if not 1 <= len(prompt) < policy.context:
            raise PromptTooLong(
                f"a prompt of {len(prompt)} tokens does not fit {policy.name}'s context of {policy.context} tokens "
                "with room for a response"
            )
    device = policy.device
    length = torch.tensor([len(p) for p in prompts], device=device)
    samples = torch.arange(n, device=device).repeat(len(prompts))
    stop = StopStrings(policy.tokenizer, params.stop, policy.core.config.vocab_size, device) if params.stop else None
    return Request(
        [list(p) for p in prompts],
        n,
        params,
        response_keys(params.seed, step, [k for k in names for _ in range(n)], samples),
        (policy.context - length).clamp_max(params.max_tokens).repeat_interleave(n),
        torch.tensor(policy.eos, device=device),
        stop,
    )


class Batch:
    """Responses `rows` of a request, drawn together one position at a time.

    `active` [r] are the rows still computed (places in this batch), `alive` [r] which of them are unfinished: a
    finished row may be carried along until `compact` drops it.
    """

    def __init__(self, asked: Request, rows: range) -> None:
        self.asked = asked
        self.keys = asked.keys[rows.start : rows.stop]
        self.limit = asked.limit[rows.start : rows.stop]
        device, size, longest = self.keys.device, len(rows), int(self.limit.max())
        self.length = 0
        self.tokens = torch.zeros(size, longest, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(size, longest, device=device)
        self.policy_logprobs = torch.zeros(size, longest, device=device) if asked.params.truncates else self.logprobs
        self.lengths = self.limit.clone()
        self.stopped = torch.zeros(size, dtype=torch.bool, device=device)
        self.active = torch.arange(size, device=device)
        self.alive = torch.ones(size, dtype=torch.bool, device=device)

    def draw(self, logits: Tensor) -> Tensor:
        """Draw the next token of every active row from its logits [r, V]; returns the tokens [r]."""
        t = self.length
        if t % BLOCK == 0:
            self.u = uniforms(self.keys[self.active], torch.arange(t, t + BLOCK, device=logits.device))
        drawn = draw(logits, self.u[:, t % BLOCK], self.asked.params)
        self.tokens[self.active, t] = drawn.tokens
        self.logprobs[self.active, t] = drawn.logprobs
        if self.policy_logprobs is not self.logprobs:
            self.policy_logprobs[self.active, t] = drawn.policy_logprobs
        self.length = t + 1
        stopped = torch.isin(drawn.tokens, self.asked.eos)
        if self.asked.stop is not None:
            stopped |= self.asked.stop.completed(self.tokens[self.active, max(0, t + 1 - self.asked.stop.span) : t + 1])
        stopped &= self.alive
        self.lengths[self.active[stopped]] = t + 1
        self.stopped[self.active[stopped]] = True
        self.alive &= ~stopped & (self.limit[self.active] > t + 1)
        return drawn.tokens

    def compact(self, keep: Tensor) -> None:
        """Go on with the active rows `keep` [k] only."""
        self.active, self.alive, self.u = self.active[keep], self.alive[keep], self.u[keep]


def collect(asked: Request, batches: Sequence[Batch]) -> Rollouts:
    """The finished batches of a request, flat."""
    lengths = torch.cat([b.lengths for b in batches])

    def flat(field: str) -> Tensor:
        parts = []
        for b in batches:
            padded: Tensor = getattr(b, field)
            column = torch.arange(padded.shape[1], device=padded.device)
            parts.append(padded[column < b.lengths[:, None]])
        return torch.cat(parts)

    logprobs = flat("logprobs")
    stopped = torch.cat([b.stopped for b in batches]).tolist()
    return Rollouts(
        asked.prompts,
        flat("tokens"),
        logprobs,
        flat("policy_logprobs") if asked.params.truncates else logprobs,
        lengths,
        torch.arange(len(asked.prompts), device=lengths.device).repeat_interleave(asked.n),
        ["stop" if s else "length" for s in stopped],
    )
