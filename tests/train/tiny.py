"""A run that fits into a second: a random character model, four prompts of four responses, a dense reward."""

import hashlib
import json
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from equipoise.train import Config, RunFolder, checkpoint, load, read_lines

CHARACTERS = "0123456789+=;~#"
REWARDS = "tests.train.reward_functions"
WALL_CLOCK = ("timing_s/", "tokens_per_s")


def make_model(folder: Path, *, layers: int = 1, context: int = 64, seed: int = 0) -> Path:
    vocabulary = {t: i for i, t in enumerate(["<pad>", "<bos>", "<eos>", *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
            num_attention_heads=1, num_key_value_heads=1, head_dim=32, max_position_embeddings=context,
            initializer_range=0.1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def overrides(model: Path, out: Path, **options) -> list[str]:
    """Command-line overrides of a tiny run; `train__steps=3` is --train.steps 3."""
    tiny = {
        "model.name": str(model), "model.device": "cpu", "train.out": str(out), "train.steps": 6, "train.threads": 1,
        "rollout.prompts": 4, "rollout.group_size": 4, "rollout.max_tokens": 12, "optim.lr": 0.01, "optim.warmup": 2,
        "reward.functions": [f"{REWARDS}:ones"], "eval.every": 3, "eval.per_level": 1, "eval.samples": 2,
    }  # fmt: skip
    tiny |= {key.replace("__", "."): value for key, value in options.items()}
    return [part for key, value in tiny.items() for part in (f"--{key}", _text(value))]


def _text(value) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_text(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def settings(model: Path, out: Path, **options) -> Config:
    return load(None, overrides(model, out, **options))


def without_clock(records: list[dict]) -> list[dict]:
    return [{k: v for k, v in record.items() if not k.startswith(WALL_CLOCK)} for record in records]


def metrics(out: Path) -> list[dict]:
    return without_clock(read_lines(RunFolder(out).metrics))


def column(out, name) -> list[float]:
    return [record[name] for record in metrics(out)]


def evaluations(out: Path) -> list[dict]:
    return read_lines(RunFolder(out).eval)


def last_checkpoint(out: Path) -> Path:
    folder = RunFolder(out).checkpoints
    return folder / f"step-{checkpoint.steps(folder)[-1]}"


def outcome(out: Path) -> dict:
    """All that two runs must share to be called the same, bit for bit."""
    last = last_checkpoint(out)
    state = torch.load(last / checkpoint.STATE, weights_only=True)
    return {
        "checkpoint": last.name,
        "weights": _hash(last / "model.safetensors"),
        "optimizer": _digest(state["optimizer"]),
        "state": _digest({k: v for k, v in state.items() if k not in ("optimizer", "rng")}),
        "metrics": metrics(out),
        "eval": evaluations(out),
        "rollouts": {p.name: _hash(p) for p in RunFolder(out).rollouts.iterdir()},
    }


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(tree) -> object:
    """Tensors as hashes of their bytes, so that equal means bit for bit."""
    if isinstance(tree, torch.Tensor):
        return hashlib.sha256(tree.numpy().tobytes()).hexdigest()
    if isinstance(tree, dict):
        return {k: _digest(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [_digest(v) for v in tree]
    return tree
