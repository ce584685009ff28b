"""The language model: load, save, packed forward, token log-probabilities, LoRA, reference."""

from equipoise.policy.dropout import adapter_dropout
from equipoise.policy.logprobs import (
    TokenLogprobs,
    check_packing,
    reference_logprobs,
    response_loss,
    token_logprobs,
    token_loss,
)
from equipoise.policy.model import (
    Lora,
    Policy,
    Prompt,
    PromptTooLong,
    encode,
    frozen_copy,
    load,
    restore,
    save,
)
from equipoise.policy.names import ModelError
from equipoise.policy.pack import Pack, pack
from equipoise.policy.quantized import parameter_count, weight_bytes
from equipoise.policy.snapshot import Snapshot
from equipoise.policy.support import Support
from equipoise.policy.texts import decode

__all__ = [
    "Lora",
    "ModelError",
    "Pack",
    "Policy",
    "Prompt",
    "PromptTooLong",
    "Snapshot",
    "Support",
    "TokenLogprobs",
    "adapter_dropout",
    "check_packing",
    "decode",
    "encode",
    "frozen_copy",
    "load",
    "pack",
    "parameter_count",
    "reference_logprobs",
    "response_loss",
    "restore",
    "save",
    "token_logprobs",
    "token_loss",
    "weight_bytes",
]
