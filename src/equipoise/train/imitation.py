"""Supervised steps: the mean negative log-probability of responses by somebody else.

    L = −1/N · Σ_i Σ_t log π(y_it | x_i, y_i<t),     N the response tokens of the whole batch

Prompts are never part of the loss. N counts the batch before it is cut, so the gradient is the same
to rounding for any cut into passes. Packing, forward pass, head and optimizer are those of
reinforcement learning, and so are the tokens: a response is what a sampler would have drawn after
the prompt, its end token included. Not covered: several processes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.config import OptimConfig
from equipoise.policy.chat import Chat, end_of_turn
from equipoise.rollout import Rollouts
from equipoise.tasks import Prompt
from equipoise.train.batch import encode_prompt
from equipoise.train.folder import RunError
from equipoise.train.micro import MicroBatch, RankShare
from equipoise.train.optimizer import AdamW
from equipoise.train.planner import Plan, plan
from equipoise.train.update import learning_rate


@dataclass(frozen=True)
class Demonstration:
    """Token ids of a prompt and of the response to imitate, which ends with the end token."""

    prompt: list[int]
    response: list[int]


class Encoder:
    """Demonstrations as tokens; `max_tokens`: longest response, 0 for what the context leaves."""

    def __init__(self, policy: models.Policy, chat: Chat, max_tokens: int = 0) -> None:
        self.policy, self.chat, self.max_tokens = policy, chat, max_tokens
        self.end = learn_end(policy, chat)

    def __call__(self, prompt: Prompt) -> Demonstration | None:
        """None where it is too long."""
        try:
            ids = encode_prompt(self.policy, prompt, self.chat)
        except RunError as error:
            if isinstance(error.__cause__, models.PromptTooLong):
                return None
            raise
        words = self.policy.tokenizer(prompt.answer, add_special_tokens=False)["input_ids"]
        response = [*words, self.end]
        room = self.policy.context - len(ids)
        if len(response) > min(room, self.max_tokens or room):
            return None
        return Demonstration(ids, response)


def learn_end(policy: models.Policy, chat: Chat) -> int:
    """The token that ends a response: with a template, the one that ends a turn in it.

    Where that does not end the model's texts yet (a base model that is taught a template), it will:
    the model's generation config gets it, and is saved with the model.
    """
    tokenizer = policy.tokenizer
    if not chat.on:
        return int(tokenizer.eos_token_id)
    ids = tokenizer(end_of_turn(tokenizer, policy.name), add_special_tokens=False)["input_ids"]
    known = [token for token in ids if token in policy.eos]
    if known:
        return int(known[0])
    special = [token for token in ids if token in tokenizer.all_special_ids]
    if not special:
        return int(tokenizer.eos_token_id)  # a template that ends turns with plain words
    policy.core.generation_config.eos_token_id = [*policy.eos, special[0]]
    del policy.eos  # a cached property
    return int(special[0])


class Imitator:
    """Optimizer steps on demonstrations. Its state: the optimizer's, and the steps done."""

    def __init__(
        self,
        policy: models.Policy,
        optim: OptimConfig,
        steps: int,
        micro_tokens: int = 0,
        seed: int = 0,
    ) -> None:
        self.policy = policy
        self.optim = optim
        self.steps = steps
        self.seed = seed
        betas = (optim.betas[0], optim.betas[1])
        self.optimizer = AdamW(
            policy.parameters(), betas=betas, weight_decay=optim.weight_decay, state=optim.state
        )
        self.plan: Plan | None = (
            Plan(micro_tokens, policy.gradient_checkpointing, "") if micro_tokens else None
        )
        self.done = 0
        self.say: Callable[[str], None] = lambda text: None

    def step(self, batch: Sequence[Demonstration]) -> dict[str, float]:
        """One optimizer step; the loss is that before it."""
        share = self._cut(batch)
        tokens = len(share.rollouts.tokens)
        self.optimizer.zero_grad()
        loss = 0.0
        for i, part in enumerate(share.parts):
            # The masks of LoRA's dropout follow from the seed, the step and the part:
            # a kill changes none of them.
            masks = random.Random(f"{self.seed} {self.done} {i}").getrandbits(63)
            with models.adapter_dropout(self.policy, masks):
                found = -self._logprobs(part).sum() / tokens
                found.backward()
            loss += float(found.detach())
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in self.optimizer.masters if p.grad is not None]
        )
        if not math.isfinite(loss) or not math.isfinite(float(norm)):
            raise RunError(
                f"step {self.done + 1}: the loss or its gradient is not finite; lower optim.lr"
            )
        if self.optim.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self.optimizer.masters, self.optim.clip_norm, norm)
        self.done += 1
        rate = learning_rate(self.optim, self.done, self.steps)
        self.optimizer.step(rate)
        return {"loss": loss, "grad_norm": float(norm), "lr": rate, "tokens": float(tokens)}

    @torch.no_grad()
    def loss(self, demonstrations: Sequence[Demonstration], at_once: int = 64) -> float:
        """The mean over all response tokens."""
        total, tokens = 0.0, 0
        for start in range(0, len(demonstrations), at_once):
            share = self._cut(demonstrations[start : start + at_once])
            total -= sum(float(self._logprobs(part).sum()) for part in share.parts)
            tokens += len(share.rollouts.tokens)
        return total / tokens

    def state_dict(self) -> dict[str, Any]:
        plan = None if self.plan is None else (self.plan.tokens, self.plan.checkpointing)
        return {"optimizer": self.optimizer.state_dict(), "done": self.done, "plan": plan}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]
        if state["plan"] is not None:
            tokens, checkpointing = state["plan"]
            self.plan = Plan(tokens, checkpointing, "")
            if self.plan.checkpointing and not self.policy.gradient_checkpointing:
                self.policy.checkpoint_gradients()

    def _logprobs(self, part: MicroBatch) -> Tensor:
        return models.token_logprobs(self.policy, part.packed).logprobs

    def _cut(self, batch: Sequence[Demonstration]) -> RankShare:
        """The batch in passes; their size is measured when there is first something to train on."""
        share = RankShare.of(as_rollouts(batch, self.policy.device), torch.arange(len(batch)))
        if self.plan is None:
            sizes = [len(one.prompt) + len(one.response) for one in batch]
            self.plan = plan(
                self.policy,
                total=sum(sizes),
                largest=max(sizes),
                cap=None,
                to_come=self.optimizer.bytes_to_come(),
                clear=self.optimizer.zero_grad,
            )
            if self.plan.said:
                self.say(self.plan.said)
        share.cut(0, self.plan.tokens, whole_groups=False)
        return share


def as_rollouts(batch: Sequence[Demonstration], device: torch.device) -> Rollouts:
    """As if they had been sampled; nobody asks for the log-probabilities of whoever wrote them."""
    tokens = torch.tensor([token for one in batch for token in one.response], device=device)
    return Rollouts(
        prompts=[one.prompt for one in batch],
        tokens=tokens,
        logprobs=torch.zeros(len(tokens), device=device),
        lengths=torch.tensor([len(one.response) for one in batch], device=device),
        prompt=torch.arange(len(batch), device=device),
        finish=["stop"] * len(batch),
    )
