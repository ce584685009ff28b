"""equipoise over the Tinker API (tinker 0.36): hosted, or a server that speaks it.

Tinker's losses are sums over the tokens of each datum,
so the coefficients w·A go into `advantages` as they are:

    ppo_clip, cispo     forward_backward with Tinker's loss "ppo" or "cispo" and our thresholds: one pass
    every other         forward_backward_custom: Tinker returns log-probabilities, our surrogate's gradient goes back
                        as the weights of its cross-entropy. A second forward pass, and whole
                        batches: prefix and surrogates that need whole groups work too

The old log-probabilities are the sampler's, as Tinker returns them. Not here:
sampling, rewards, the optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.objective import Credit, Objective, fold, positions, response_ids

__all__ = ["custom_loss", "data", "forward_backward", "loss_of"]

CustomLoss = Callable[[Any, list[Tensor]], tuple[Tensor, dict[str, float]]]


def loss_of(objective: Objective) -> tuple[str, dict[str, float]]:
    """Tinker's own loss for an objective with its options; ("custom", {}) where it has none."""
    options = objective.choices()["surrogate"]
    if objective.cancellation == "prefix":  # one coefficient a token
        return "custom", {}
    if objective.surrogate.name == "ppo_clip":
        low, high = options["low"], options["high"]
        return "ppo", {"clip_low_threshold": 1 - low, "clip_high_threshold": 1 + high}
    if objective.surrogate.name == "cispo":
        return "cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": options["cap"]}
    return "custom", {}


def data(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    coefficient: Tensor,
) -> list[Any]:
    """Tinker's data: the coefficient where a response's tokens are predicted, 0 in the prompt."""
    from tinker import types

    made = []
    for prompt, response, old, c in zip(
        prompts, responses, logprobs, coefficient.tolist(), strict=True
    ):
        if not prompt:
            raise ValueError(
                "prompts: an empty prompt has no position that predicts the response's first token"
            )
        ids = [*prompt, *response]
        before = len(prompt) - 1
        inputs = {
            "target_tokens": torch.tensor(ids[1:]),
            "logprobs": torch.tensor([0.0] * before + list(old)),
            "advantages": torch.tensor([0.0] * before + [c] * len(response)),
        }
        tensors = {name: types.TensorData.from_torch(value) for name, value in inputs.items()}
        made.append(
            types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=tensors)
        )
    return made


def custom_loss(objective: Objective, credit: Credit) -> CustomLoss:
    """The loss for forward_backward_custom on `data`: `Objective.loss` of the whole batch."""
    lengths = credit.lengths.tolist()
    response = response_ids(credit.lengths)

    def loss(batch: Any, logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """What Tinker calls with its data and their log-probabilities of now."""

        def ends(values: Sequence[Tensor]) -> Tensor:
            """The response's part of each datum: the positions of the prompt come first."""
            last = [value[len(value) - n :] for value, n in zip(values, lengths, strict=True)]
            return torch.cat(last)

        old = ends([datum.loss_fn_inputs["logprobs"].to_torch() for datum in batch])
        out = objective.loss(
            ends(logprobs), old, credit, response, position=positions(credit.lengths)
        )
        metrics = {name: float(value) for name, value in out.stats.metrics().items()}
        return out.loss, metrics

    return loss


def forward_backward(
    client: Any,
    objective: Objective,
    *,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    rewards: Sequence[float],
    groups: Sequence[Any],
) -> Any:
    """The gradient of a whole batch on a `TrainingClient`; returns its future."""
    fold.check(objective, "Tinker", whole_batch=True)
    lengths = [len(response) for response in responses]
    tokens = torch.tensor([token for response in responses for token in response])
    credit = fold.coefficients(objective, rewards, groups, lengths, tokens)
    name, options = loss_of(objective)
    if name == "custom":
        # The coefficients are in the credit: the server needs none.
        batch = data(prompts, responses, logprobs, torch.zeros(len(lengths)))
        return client.forward_backward_custom(batch, custom_loss(objective, credit))
    return client.forward_backward(
        data(prompts, responses, logprobs, credit.coefficient), name, options
    )
