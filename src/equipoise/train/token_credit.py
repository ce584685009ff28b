"""What `assign` gets for each token: the mask of top entropies, a teacher's advantages.

Both come of forward passes over the whole batch before its first update: the policy's own for
entropies, a frozen teacher's for on-policy distillation. The mathematics is the library's,
`equipoise.entropy_mask` and `equipoise.distillation`. Not covered: teachers with another
vocabulary, and teachers behind a server.
"""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.config import Config, ConfigError
from equipoise.objective import distillation, entropy_mask
from equipoise.train.batch import StepBatch
from equipoise.train.folder import RunError
from equipoise.train.micro import MicroBatch
from equipoise.train.update import Updater


def open_teacher(name: str, policy: models.Policy) -> models.Policy:
    """The frozen teacher on the policy's device, in its precision; refused if tokens differ."""
    teacher = models.load(name, dtype=policy.dtype, device=policy.device)
    teacher.model.requires_grad_(False)
    check_vocabularies(policy, teacher)
    return teacher


def check_vocabularies(policy: models.Policy, teacher: models.Policy) -> None:
    """Refuse a teacher to whom the policy's token ids mean something else, or nothing."""
    option = f'train.teacher = "{teacher.name}"'
    ours, theirs = policy.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    apart = sorted(
        token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)
    )
    if apart:
        raise ConfigError(
            f"{option}: its vocabulary differs from that of {policy.name} in {len(apart):,} of {len(ours):,} tokens, "
            f"{apart[0]!r} among them; a teacher reads the policy's own token ids, so it must have the same ones"
        )
    # Models of one family pad their heads to different sizes;
    # ids that only the policy has cannot be looked up.
    rows, needed = (len(p.core.get_output_embeddings().weight) for p in (teacher, policy))
    if rows < needed:
        raise ConfigError(
            f"{option}: its head has {rows:,} rows, and {policy.name}, which may draw any of {needed:,} ids, has more"
        )
    if not set(policy.eos) & set(teacher.eos):
        raise ConfigError(
            f"{option}: it ends a response with token {list(teacher.eos)}, and {policy.name} with {list(policy.eos)}: "
            "every end would count as a mistake; take a teacher that ends as the policy does"
        )


class TokenArguments(TypedDict, total=False):
    """Of `assign`."""

    token_weight: Tensor  # [N]
    token_advantage: Tensor  # [N]


class TokenCredit:
    """`policy` is the one being trained, `teacher` its teacher where `train.teacher` names one."""

    def __init__(
        self, config: Config, updater: Updater, policy: models.Policy, teacher: models.Policy | None
    ) -> None:
        self.updater, self.policy, self.teacher = updater, policy, teacher
        self.keep = config.objective.top_entropy_quantile
        self.temperature = config.rollout.temperature

    def of(self, batch: StepBatch) -> TokenArguments:
        """Arguments of `assign`, [N] each, for the tokens in the loss. All ranks take part."""
        found: TokenArguments = {}
        if self.keep < 1:
            found["token_weight"] = entropy_mask(self._entropy(batch), self.keep).cpu()
        if self.teacher is not None:
            taught = self._logprobs(batch, self.teacher)
            found["token_advantage"] = distillation(taught, self._old(batch)).cpu()
        return found

    def _entropy(self, batch: StepBatch) -> Tensor:
        def entropy(part: MicroBatch) -> Tensor:
            return self._scored(self.policy, part).entropy

        return self.updater.each_token(batch, entropy, own=True)

    def _logprobs(self, batch: StepBatch, model: models.Policy) -> Tensor:
        def logprobs(part: MicroBatch) -> Tensor:
            return self._scored(model, part).logprobs

        self._check_context(batch, model)
        return self.updater.each_token(batch, logprobs, own=model is self.policy)

    def _scored(self, model: models.Policy, part: MicroBatch) -> models.TokenLogprobs:
        """Of truncated draws: over the part of the vocabulary that each token was drawn from."""
        return models.token_logprobs(
            model, part.packed, temperature=self.temperature, support=part.support
        )

    def _old(self, batch: StepBatch) -> Tensor:
        """log π_old: the sampler's, with `rollout.exact` the trainer's, as in the loss."""
        if self.updater.exact:
            return self._logprobs(batch, self.policy)
        lengths = batch.rollouts.lengths
        in_loss = (batch.lengths > 0).repeat_interleave(lengths)
        return batch.rollouts.logprobs[in_loss]

    def _check_context(self, batch: StepBatch, model: models.Policy) -> None:
        rollouts = batch.rollouts
        prompts = torch.tensor([len(p) for p in rollouts.prompts], device=rollouts.lengths.device)
        longest = int((prompts[rollouts.prompt] + rollouts.lengths).max())
        if longest > model.context:
            raise RunError(
                f'train.teacher = "{model.name}": it reads {model.context} tokens, and a prompt with its response has '
                f"{longest}; lower rollout.max_tokens"
            )
