"""Sampling: prompts in, responses with log-probabilities and finish reasons out, seeded per response."""

import logging

from equipoise.policy import Policy
from equipoise.rollout.fallback import TransformersSampler
from equipoise.rollout.native import NativeSampler
from equipoise.rollout.rollouts import Finish, Key, Rollouts, Sampler, SamplingParams, concatenate

__all__ = [
    "Finish",
    "Key",
    "NativeSampler",
    "Rollouts",
    "Sampler",
    "SamplingParams",
    "TransformersSampler",
    "concatenate",
    "sampler",
]


def sampler(policy: Policy) -> Sampler:
    """The native sampler where it knows the architecture, else the one through transformers, with a notice."""
    if policy.is_llama_like:
        return NativeSampler(policy)
    name = type(policy.core).__name__
    logging.getLogger(__name__).warning("%s has no native sampler; sampling through transformers (slower)", name)
    return TransformersSampler(policy)
