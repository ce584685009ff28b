"""Sampling from any decoder model through its transformers forward pass, with the seeding and
interface of the native sampler. Slower: prompts are computed once per response and the cache grows
by concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import torch

from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.uniform import Key
from equipoise.policy import Policy
from equipoise.rollout.batch import DecodeBatch, Request, collect, request
from equipoise.rollout.rollouts import Finished, Rollouts


class TransformersSampler:
    """`rows`: the most responses decoded together; `stopped`: set, it ends a call with `Stopped`."""

    def __init__(self, policy: Policy, *, rows: int = 256, stopped: Event | None = None) -> None:
        self.policy = policy
        self.rows = rows
        self.stopped = stopped

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        keys: Sequence[Key] | None = None,
        step: int = 0,
        finished: Finished | None = None,
    ) -> Rollouts:
        asked = request(self.policy, prompts, n, params, keys, step, finished)
        asked.stopped = self.stopped
        batches = []
        for first in range(0, asked.rows, self.rows):
            rows = range(first, min(first + self.rows, asked.rows))
            batches.append(_decode(self.policy, asked, rows))
        return collect(asked, batches)


def _decode(policy: Policy, asked: Request, rows: range) -> DecodeBatch:
    """The responses of these rows, a token at a time until all are finished.

    Prompts are padded on the left, so that the last position of every row is the one to draw from;
    transformers numbers the positions of the real tokens alone.
    """
    batch = DecodeBatch(asked, rows)
    device = batch.limit.device
    prompts = [asked.prompts[r // asked.n] for r in rows]
    width = max(map(len, prompts))
    padding = [[0] * (width - len(prompt)) for prompt in prompts]
    padded = [left + prompt for left, prompt in zip(padding, prompts, strict=True)]
    real = [left + [1] * len(prompt) for left, prompt in zip(padding, prompts, strict=True)]
    inputs = torch.tensor(padded, device=device)
    mask = torch.tensor(real, device=device)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    past = None
    while True:
        out = policy.core(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
        tokens = batch.draw(out.logits[:, -1])
        if batch.left() == 0:
            return batch
        past = out.past_key_values
        inputs = tokens[:, None]
        positions = positions[:, -1:] + 1
        mask = torch.cat((mask, mask.new_ones(len(mask), 1)), 1)
