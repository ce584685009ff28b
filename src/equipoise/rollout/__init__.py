"""Sampling: prompts in, responses with log-probabilities and finish reasons out,
seeded per response.
"""

import logging
from threading import Event

from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.fp8 import Precision
from equipoise.kernels.uniform import Key
from equipoise.policy import Policy
from equipoise.rollout.fallback import TransformersSampler
from equipoise.rollout.native import NativeSampler
from equipoise.rollout.paged import PagedSampler, check_fp8, serves
from equipoise.rollout.rollouts import Finish, Rollouts, Sampler, Stopped, concatenate
from equipoise.rollout.vllm import VllmSampler

__all__ = [
    "Finish",
    "Key",
    "NativeSampler",
    "PagedSampler",
    "Rollouts",
    "Sampler",
    "SamplingParams",
    "Stopped",
    "TransformersSampler",
    "VllmSampler",
    "concatenate",
    "sampler",
]


def sampler(
    policy: Policy,
    stopped: Event | None = None,
    *,
    speculation: int = 0,
    cache_dtype: Precision = "auto",
    weights_dtype: Precision = "auto",
) -> Sampler:
    """Where `policy.decoder` knows the architecture the paged sampler on CUDA and the native one
    elsewhere; for other models the one through transformers, with a notice. `stopped` ends its
    calls with `Stopped` from when it is set. Of the paged sampler alone: `speculation`, tokens
    drafted of each row in a step (the others draw the same responses without, with a notice), and
    8 bits ("fp8"), which are refused elsewhere.
    """
    check_fp8(policy, cache_dtype, weights_dtype)
    if policy.is_llama_like and policy.device.type == "cuda" and serves(policy):
        return PagedSampler(
            policy,
            speculation=speculation,
            cache_dtype=cache_dtype,
            weights_dtype=weights_dtype,
            stopped=stopped,
        )
    if speculation:
        logging.getLogger(__name__).warning(
            "speculation = %d is for the paged sampler on CUDA; sampling without drafts",
            speculation,
        )
    if policy.is_llama_like:
        return NativeSampler(policy, stopped=stopped)
    name = type(policy.core).__name__
    logging.getLogger(__name__).warning(
        "%s has no native sampler; sampling through transformers (slower)", name
    )
    return TransformersSampler(policy, stopped=stopped)
