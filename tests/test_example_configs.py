"""The configurations of examples/: every field as it is meant, and two steps of each on a stand-in model."""

import importlib.util
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from equipoise.config.sft import load_sft
from equipoise.train import load, read_lines
from equipoise.train.loop import Trainer
from equipoise.train.sft import Sft
from tests.policy.test_chat import CHATML

EXAMPLES = Path(__file__).parents[1] / "examples"
BOXED = "\nReason step by step, and put the final answer within \\boxed{}."
GSM8K = {"task.name": "hub:openai/gsm8k:main:train", "task.held_out": "hub:openai/gsm8k:main:test"}
MATH = {
    "task.name": "hub:DigitalLearningGmbH/MATH-lighteval:default:train", "task.template": "qwen",
    "task.held_out": "hub:HuggingFaceH4/MATH-500::test", "task.max_prompt_tokens": 512,
}  # fmt: skip
BALANCED = {"objective.preset": "dapo", "objective.aggregation": "balanced"}
QUIET = {"task.chat_template_kwargs": {"enable_thinking": False}}
ON_GPU = {"model.dtype": "bfloat16"}


def sizes(prompts, group, tokens, steps):
    return {"rollout.prompts": prompts, "rollout.group_size": group, "rollout.max_tokens": tokens, "train.steps": steps}


# What each says beyond the defaults; nothing else may differ from them but train.out.
FIELDS = {
    "abacus": {**BALANCED, "objective.difficulty": "hadw"},
    "smollm": {
        "model.name": "smollm", "task.name": "gym:chain_sum", "task.chat": True, **sizes(2, 4, 32, 3),
        "objective.aggregation": "balanced", "optim.lr": 1e-5, "optim.warmup": 1,
        "train.checkpoint_every": 3, "eval.every": 3, "eval.samples": 2, "eval.per_level": 2,
    },
    "qwen2.5_coder_0.5b_gsm8k": {
        "model.name": "Qwen/Qwen2.5-Coder-0.5B-Instruct", **ON_GPU, **GSM8K, "task.suffix": BOXED,
        **sizes(64, 16, 400, 100), **BALANCED, "optim.lr": 3e-6, "eval.per_level": 200,
    },
    "qwen3_0.6b_gsm8k": {
        "model.name": "Qwen/Qwen3-0.6B", **ON_GPU, **GSM8K, "task.suffix": BOXED, **QUIET,
        **sizes(64, 16, 512, 100), **BALANCED, "objective.difficulty": "hadw", "eval.per_level": 200,
    },
    "qwen3_1.7b_math": {
        "model.name": "Qwen/Qwen3-1.7B", **ON_GPU, **MATH, **QUIET, **sizes(64, 8, 2048, 200), **BALANCED,
        "train.mini_batch": 16, "eval.samples": 4, "eval.per_level": 40,
    },
    "qwen2.5_1.5b_gsm8k": {
        "model.name": "Qwen/Qwen2.5-1.5B", **ON_GPU, **GSM8K, "task.suffix": f"{BOXED}\nAnswer:",
        **sizes(64, 16, 400, 100), "rollout.stop": ("\nQuestion:", "\nProblem:", "\nHuman:"), **BALANCED,
        "eval.per_level": 200,
    },
    "qwen2.5_7b_lora_math": {
        "model.name": "Qwen/Qwen2.5-7B-Instruct", **ON_GPU, "model.lora_rank": 32, **MATH,
        **sizes(32, 8, 1024, 100), **BALANCED, "eval.samples": 4, "eval.per_level": 20,
    },
    "gym_mixture": {
        "model.name": "Qwen/Qwen3-0.6B", **ON_GPU, **QUIET,
        "task.name": "gym:chain_sum*2+gcd+bitwise_arithmetic+spell_backward",
        "task.system": "Think briefly, then write the final answer between <answer> and </answer>.",
        "task.gym": {"chain_sum": {"max_terms": 5}}, **sizes(64, 16, 256, 100), "rollout.stop": ("</answer>",),
        **BALANCED, "eval.per_level": 32,
    },
    "qwen2.5_coder_0.5b_mbpp": {
        "model.name": "Qwen/Qwen2.5-Coder-0.5B-Instruct", **ON_GPU,
        "task.name": "hub:google-research-datasets/mbpp:full:train",
        "task.held_out": "hub:google-research-datasets/mbpp:full:validation",
        "task.suffix": "\nAnswer with one ```python block that defines the function.",
        **sizes(32, 16, 400, 40), **BALANCED,
        "eval.samples": 4, "eval.per_level": 90,
    },
}  # fmt: skip
SFT = {"sft_qwen2.5_0.5b_gsm8k"}


def test_every_example_is_checked():
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == FIELDS.keys() | SFT


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_as_it_is_meant(name):
    flat, defaults = load(EXAMPLES / f"{name}.toml").flat(), load(None).flat()
    assert flat.pop("train.out") == f"runs/{name}"
    assert {key: value for key, value in flat.items() if value != defaults[key]} == {
        key: value for key, value in FIELDS[name].items() if value != defaults[key]
    }
    assert {key: flat[key] for key in FIELDS[name]} == FIELDS[name]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_it_says_what_it_needs_and_what_to_expect(path):
    needs, expect, third = path.read_text().splitlines()[:3]
    assert needs.startswith("# Needs: ")
    assert expect.startswith("# Expect: ")
    assert not third.startswith("#")
    measured = path.stem in ("abacus", "smollm", "qwen2.5_coder_0.5b_gsm8k")
    assert measured or "not measured" in expect


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A tiny random Llama with a token for every byte and Qwen's chat template, which ends its turns as it says."""
    folder = tmp_path_factory.mktemp("model") / "stand-in"
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<|im_start|>", "<|im_end|>"]
    spelled = Tokenizer(models.BPE({token: i for i, token in enumerate([*special, *letters])}, []))
    spelled.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=spelled, pad_token="<pad>", eos_token="<|im_end|>", chat_template=CHATML,
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
        head_dim=32, max_position_embeddings=2048, pad_token_id=0, bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


ROWS = {
    "gsm8k": [{"question": f"What is {i} and {i + 1}?", "answer": f"It is {2 * i + 1}.\n#### {2 * i + 1}"}
              for i in range(24)],
    "MATH": [{"problem": f"Compute ${i}+1$.", "level": "Level 1", "type": "Algebra", "solution": f"\\boxed{{{i + 1}}}"}
             for i in range(24)],
    "mbpp": [{"task_id": i, "text": f"Write f that gives {i}.", "code": f"def f():\r\n    return {i}",
              "test_list": [f"assert f() == {i}"]} for i in range(24)],
}  # fmt: skip
SMALL = {
    "model.dtype": "float32", "model.device": "cpu", "task.held_out": "", "rollout.prompts": 2,
    "rollout.group_size": 3, "rollout.max_tokens": 6, "train.mini_batch": 0, "train.steps": 2, "eval.samples": 2,
    "eval.per_level": 1, "eval.every": 2, "eval.greedy": False, "log.terminal": False, "train.threads": 1,
    "reward.functions": ["task", "tests.train.reward_functions:spread"], "reward.weights": [1.0, 0.1],
}  # fmt: skip


def data_of(task, tmp_path):
    """A few rows with the columns of the data set that a task names, or the task itself, which needs no hub."""
    kind = next((kind for kind in ROWS if kind in task), None)
    if kind is None:
        return task
    file = tmp_path / f"{kind}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[kind]))
    return str(file)


def needed(config):
    """Why the example cannot run here; empty where it can."""
    if config.task.name.startswith("gym:") and importlib.util.find_spec("reasoning_gym") is None:
        return "needs reasoning-gym"
    if config.model.lora_rank and importlib.util.find_spec("peft") is None:
        return "needs peft"
    isolated = config.task.name.startswith("gym:") or "mbpp" in config.task.name
    return "needs bubblewrap" if isolated and shutil.which("bwrap") is None else ""


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "abacus"])  # test_loop has that one
def test_two_steps_on_a_stand_in(name, stand_in, tmp_path):
    example = load(EXAMPLES / f"{name}.toml")
    if reason := needed(example):
        pytest.skip(reason)
    small = SMALL | {
        "model.name": str(stand_in), "task.name": data_of(example.task.name, tmp_path),
        "train.out": str(tmp_path / "run"),
    }  # fmt: skip
    overrides = [part for key, value in small.items() for part in (f"--{key}", json.dumps(value))]
    trainer = Trainer(load(EXAMPLES / f"{name}.toml", overrides))
    trainer.run()
    steps = read_lines(trainer.folder.metrics)
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["grad_norm"] > 0 and step["nonfinite_tokens"] == 0 for step in steps)
    # The stand-in ends its turns as its template says, so that every example of a chat model uses it here.
    assert trainer.settled.chat.on
    shown = pq.read_table(next(trainer.folder.rollouts.glob("step-1.parquet"))).to_pylist()[0]["model_input"]
    assert shown.startswith("<|im_start|>system\n" if example.task.system else "<|im_start|>user\n")
    quiet = (example.task.chat_template_kwargs or {}).get("enable_thinking") is False
    assert shown.endswith("<think>\n\n</think>\n\n" if quiet else "<|im_start|>assistant\n")


@pytest.mark.parametrize("name", sorted(SFT))
def test_two_steps_of_a_warm_up(name, stand_in, tmp_path):
    example = load_sft(EXAMPLES / f"{name}.toml")
    assert (example.model.name, example.task.name) == ("Qwen/Qwen2.5-0.5B", GSM8K["task.name"])
    assert (example.task.chat, example.sft.batch, example.sft.epochs) == (True, 64, 2)
    assert (example.optim.lr, example.optim.schedule, example.optim.warmup) == ("auto", "cosine", 20)
    small = {
        "model.name": str(stand_in), "model.dtype": "float32", "model.device": "cpu", "task.held_out": "",
        "task.name": data_of(example.task.name, tmp_path), "sft.batch": 8, "sft.steps": 2, "sft.threads": 1,
        "sft.terminal": False, "sft.out": str(tmp_path / "run"),
    }  # fmt: skip
    overrides = [part for key, value in small.items() for part in (f"--{key}", json.dumps(value))]
    run = Sft(load_sft(EXAMPLES / f"{name}.toml", overrides))
    run.run()
    assert [line["step"] for line in read_lines(run.folder.metrics)] == [1, 2]
    one = run.encoder(run.task.prompt(0))
    assert run.policy.tokenizer.decode(one.response).endswith("<|im_end|>")
