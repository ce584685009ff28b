"""Models of well-known shapes with random weights, and a tokenizer with a word for every id: what speed needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from equipoise import policy as models


class Shape(NamedTuple):
    config: Any
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = True


SHAPES = {
    "SmolLM2-135M": Shape(LlamaConfig, 576, 30, 9, 3, 64, 1536, 49_152),
    "SmolLM2-360M": Shape(LlamaConfig, 960, 32, 15, 5, 64, 2560, 49_152),
    "Qwen3-0.6B": Shape(Qwen3Config, 1024, 28, 16, 8, 128, 3072, 151_936),
    "Qwen3-1.7B": Shape(Qwen3Config, 2048, 28, 16, 8, 128, 6144, 151_936),
    "Qwen3-4B": Shape(Qwen3Config, 2560, 36, 32, 8, 128, 9728, 151_936),
    "Qwen3-8B": Shape(Qwen3Config, 4096, 36, 32, 8, 128, 12_288, 151_936, tied=False),
    "Qwen2.5-0.5B": Shape(Qwen2Config, 896, 24, 14, 2, 64, 4864, 151_936),
    "Qwen2.5-1.5B": Shape(Qwen2Config, 1536, 28, 12, 2, 128, 8960, 151_936),
    "Qwen2.5-3B": Shape(Qwen2Config, 2048, 36, 16, 2, 128, 11_008, 151_936),
    "Qwen2.5-7B": Shape(Qwen2Config, 3584, 28, 28, 4, 128, 18_944, 152_064, tied=False),
}


# Small enough for a try on the CPU; heads of a size that vLLM's CPU build knows.
TOY = Shape(Qwen3Config, 64, 2, 2, 1, 32, 128, 512)


def configuration(name: str, *, vocabulary: int | None = None, end: int | None = 0) -> Any:
    """Of the shape, or of "toy"; responses end with the token `end`, or never."""
    s = TOY if name == "toy" else SHAPES[name]
    return s.config(
        hidden_size=s.hidden, num_hidden_layers=s.layers, num_attention_heads=s.heads, num_key_value_heads=s.kv_heads,
        head_dim=s.head_dim, intermediate_size=s.intermediate, vocab_size=vocabulary or s.vocabulary,
        tie_word_embeddings=s.tied, max_position_embeddings=32_768, bos_token_id=None, eos_token_id=end, pad_token_id=1,
    )  # fmt: skip


def build(
    name: str,
    *,
    vocabulary: int | None = None,
    end: int | None = 0,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
) -> Any:
    """A model with random weights."""
    config = configuration(name, vocabulary=vocabulary, end=end)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = end, 1
    return model


def endless(
    name: str, vocabulary: int | None = None, *, device: str = "cuda", dtype: torch.dtype = torch.bfloat16
) -> models.Policy:
    """A policy whose responses never end by themselves: everyone does the same work."""
    model = build(name, vocabulary=vocabulary, end=None, device=device, dtype=dtype)
    return models.Policy(model, SimpleNamespace(eos_token_id=None, pad_token_id=1), name)


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Every token is a word of four letters; 0 ends a response, 1 is padding."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as kinds

    words = Tokenizer(kinds.WordLevel({word(i): i for i in range(vocabulary)}, unk_token=word(2)))
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
    model = build(name, device=device)
    model.save_pretrained(folder)
    tokenizer(model.config.vocab_size).save_pretrained(folder)
