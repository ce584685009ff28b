"""A benchmark of six problems on disk, and a model of a second that can read it."""

import json

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


@pytest.fixture
def data(tmp_path):
    """gsm8k with golds 0 … 5 and math500 with two levels and two subjects."""
    folder = tmp_path / "data"
    folder.mkdir()
    gsm8k = [{"question": f"How many are {i}?", "answer": f"It is so.\n#### {i}"} for i in range(6)]
    math = [
        {"problem": f"Find {i}.", "answer": str(i), "level": 1 + i % 2, "subject": "ab"[i // 2], "unique_id": f"m/{i}"}
        for i in range(4)
    ]
    for name, rows in (("gsm8k", gsm8k), ("math500", math)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Random weights over the printable characters."""
    folder = tmp_path_factory.mktemp("tiny")
    characters = ["<pad>", "<eos>", "\n", *map(chr, range(32, 127))]
    tokens = Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="<pad>"))
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokens.decoder = decoders.Fuse()
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(characters), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=512, initializer_range=0.2, pad_token_id=0,
        bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    return folder
