"""Make the embedded model: a character-level Llama warmed up, by plain imitation, on traces of the arithmetic task.

    python scripts/make_abacus.py [FOLDER]

The traces are mostly short chains and hold slips, so the model that comes out knows the steps, makes mistakes, and
loses its place in long chains: what reinforcement learning can then teach. The same machine, torch and code give the
same weights (one thread, fixed seeds). At the end it prints what the model can do and the hash of the weights.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from equipoise import policy as policies
from equipoise import rollout
from equipoise.evaluate import evaluate, line
from equipoise.policy import Policy
from equipoise.policy.names import ABACUS
from equipoise.study.start import imitate_batch
from equipoise.tasks import Arithmetic
from equipoise.tasks.arithmetic import trace

SEED = 0
STEPS = 1300
RESPONSES = 64  # per step
LEARNING_RATE = 4e-3
HORIZON = 2500  # steps over which the rate would fall to a tenth: the warm-up stops well before it has learned it all
LEVELS = {"2": 0.45, "3": 0.45, "4": 0.08, "5": 0.02}  # share of the traces
HABITS = {"slip": 0.1, "notice": 0.7, "again": 0.7, "twice": 0.06}


def make_tokenizer(characters: str = "0123456789+=~#", context: int = 128) -> PreTrainedTokenizerFast:
    """A token per character. It adds nothing of its own: a prompt is its characters, a response ends in <eos>."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<bos>", "<eos>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", model_max_length=context
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, hidden: int = 64, heads: int = 2, context: int = 128
) -> LlamaForCausalLM:
    special = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=2,
            num_attention_heads=heads,
            head_dim=32,
            max_position_embeddings=context,
            tie_word_embeddings=False,
            initializer_range=0.05,
            **special,
        )
    )
    # So few characters need no small start to tell apart; the larger one learns several times faster.
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
    model.generation_config = GenerationConfig(do_sample=True, **special)
    return model


def warm_up(policy: Policy) -> None:
    task, draw, position = Arithmetic(SEED), random.Random(SEED), 0
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    most = max(LEVELS.values())
    for step in range(STEPS):
        prompts, responses = [], []
        while len(prompts) < RESPONSES:
            prompt = task.prompt(position)
            position += 1
            if draw.random() < LEVELS[prompt.level] / most:
                numbers = [int(number) for number in prompt.id.split("+")]
                prompts.append(policies.encode(policy, prompt.text))
                text = trace(numbers, draw, **HABITS)
                responses.append([*policies.encode(policy, text), policy.tokenizer.eos_token_id])
        fall = 0.5 * (1 + math.cos(math.pi * step / HORIZON))
        rate = LEARNING_RATE * min(1, (step + 1) / 100) * (0.1 + 0.9 * fall)
        loss = imitate_batch(policy, optimizer, prompts, responses, rate)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {STEPS}  loss {loss:.3f}", flush=True)


def report(policy: Policy) -> None:
    """What the model can do on the held-out set, and how much longer its wrong answers are than its right ones."""
    task, sampler = Arithmetic(), rollout.sampler(policy)
    prompts = task.evaluation()
    ids = [policies.encode(policy, prompt.text) for prompt in prompts]
    found = evaluate(
        policy, sampler, task, prompts, ids, samples=8, temperature=1.0, greedy=True, max_tokens=task.max_tokens
    )
    print(line(found))
    for level, values in found["by_level"].items():
        print(f"  level {level}  " + "  ".join(f"{name} {value:.3f}" for name, value in values.items()))

    drawn = sampler.sample(ids, 16, rollout.SamplingParams(max_tokens=task.max_tokens, seed=SEED))
    texts = policies.decode(policy, drawn.tokens, drawn.lengths)
    right = torch.tensor(
        [task.grade(prompts[i], text).kind == "correct" for i, text in zip(drawn.prompt.tolist(), texts, strict=True)]
    )
    T, R = drawn.lengths.double().view(-1, 16), right.view(-1, 16).double()
    mixed = (R.mean(1) > 0) & (R.mean(1) < 1)
    T_right, T_wrong = ((T * x).sum(1)[mixed] / x.sum(1)[mixed] for x in (R, 1 - R))
    print(
        f"length {T.mean():.1f}, CV {T.std() / T.mean():.2f}; gap (T̄− − T̄+)/T̄ in the same group "
        f"{(T_wrong - T_right).mean() / T[mixed].mean():.2f}; {mixed.double().mean():.0%} of the groups are mixed"
    )


def main() -> None:
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ABACUS, help="where the model goes (default: the package)"
    )
    folder = parser.parse_args().folder
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    policy = Policy(make_model(tokenizer), tokenizer, "abacus")
    print(f"{sum(p.numel() for p in policy.parameters()):,} parameters")
    warm_up(policy)
    policies.save(policy, folder)
    report(policies.load(folder))
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    print(f"{folder}: sha256 of the weights {weights[:16]}, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
