"""Weights and advantages of each token, for `assign(token_weight=…, token_advantage=…)`;
and ratios on a support.

Plain functions of flat tensors [N]. Not here:
the forward passes that make entropies, teachers' and samplers' numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-5  # nats: more than float32 forward passes of the same context differ by


def entropy_mask(entropy: Tensor, keep: float = 0.2) -> Tensor:
    """[N] 1 for the tokens whose entropy is in the highest `keep` of the batch,
    else 0 (arXiv 2506.01939).

    The threshold is the (1 − keep) quantile over all tokens given, so give the whole batch's.
    Tokens as high as the threshold up to `ROUNDING` are kept too: equal contexts have equal
    entropies but for rounding, which depends on the pass that computed them. What a rule divides by
    stays the number of all tokens, as in the paper: the mask does not make the rest weigh more.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep = {keep} must be a share of the tokens, above 0 and at most 1")
    if len(entropy) == 0:
        return entropy.to(torch.float64)
    if bool(entropy.isnan().any()):
        raise ValueError("an entropy is not a number: the mask needs all of them")
    n = max(round(keep * len(entropy)), 1)
    threshold = entropy.detach().topk(n).values[-1]  # torch.quantile stops at 16 million
    return (entropy.detach() >= threshold - ROUNDING).to(torch.float64)


def distillation(teacher: Tensor, old: Tensor, scale: float = 1.0) -> Tensor:
    """[N] A_t = scale·(log π_T − log π_old) at the sampled tokens:
    minus the reverse KL's own estimate, token by token.

    Its expected gradient at π = π_old is that of −KL(π ‖ π_T) at each context,
    for the contexts as sampled
    (arXiv 2306.13649; per token, without what a token does to later contexts).
    """
    if teacher.shape != old.shape:
        raise ValueError(
            f"teacher has shape {tuple(teacher.shape)}, old {tuple(old.shape)}: one per token"
        )
    return scale * (teacher.detach().to(torch.float64) - old.detach().to(torch.float64))


def log_kept(logits: Tensor, support: Tensor) -> Tensor:
    """[n] log S, S the probability that the softmax of logits [n, V] gives to `support` [n, V]
    bool; differentiable.

    With top-p, top-k or min-p a token is drawn from π/S on its support. The importance weight of
    such a draw is (π/S)/(π_old/S_old) with both masses over the *sampled* support, that of π_old:
    the policy that trains must not choose its own. A support without any token is a ValueError.
    """
    if support.shape != logits.shape or support.dtype != torch.bool:
        raise ValueError(f"support must be bool of shape {tuple(logits.shape)}, like the logits")
    if not support.is_cuda and not bool(support.any(1).all()):
        i = int((~support.any(1)).nonzero()[0])
        raise ValueError(
            f"support[{i}] holds no token: it must hold at least the one that was drawn"
        )
    kept = logits.masked_fill(~support, -torch.inf)
    return torch.logsumexp(kept, 1) - torch.logsumexp(logits, 1)


def on_support(logprobs: Tensor, log_s: Tensor) -> Tensor:
    """[n] log(π/S): give `loss` these for both π and π_old,
    each with its own mass over the same sampled support.
    """
    return logprobs - log_s
