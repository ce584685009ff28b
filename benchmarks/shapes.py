"""Models of well-known shapes with random weights, and a tokenizer with a word for every id: what speed needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CONTEXT = 8192
QWEN = {"vocab_size": 151_936, "tie_word_embeddings": True, "max_position_embeddings": CONTEXT}
SHAPES = {
    "smollm2-135m": (LlamaForCausalLM, LlamaConfig(
        hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536,
        vocab_size=49_152, tie_word_embeddings=True, max_position_embeddings=CONTEXT)),
    "qwen3-0.6b": (Qwen3ForCausalLM, Qwen3Config(
        hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        intermediate_size=3072, **QWEN)),
    "qwen2.5-1.5b": (Qwen2ForCausalLM, Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,
        **QWEN)),
}  # fmt: skip


def build(name: str, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Any:
    """Random weights; the end token is 0."""
    kind, config = SHAPES[name]
    torch.manual_seed(0)
    with torch.device(device):
        model = kind(config).to(dtype)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 0, 1
    return model


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Every token is a word of four letters; 0 ends a response, 1 is padding."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word(i): i for i in range(vocabulary)}, unk_token=word(2)))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=word(0), pad_token=word(1), unk_token=word(2))


def word(token: int) -> str:
    return "".join(chr(97 + token // 26**k % 26) for k in (3, 2, 1, 0))


def prompts(count: int, length: int, seed: int = 0) -> list[str]:
    """Different texts of `length` words each."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 40_000, (count, length), generator=g).tolist()
    return [" ".join(map(word, row)) for row in ids]


def save(name: str, folder: Path, device: str = "cuda") -> None:
    model = build(name, device)
    model.save_pretrained(folder)
    tokenizer(model.config.vocab_size).save_pretrained(folder)
