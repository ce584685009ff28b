"""The embedded attacker: a small Llama over the attack alphabet, warmed up within seconds.

The warm-up is plain imitation of the grammar's random responses, so that what it samples has every
shape of the grammar and mixtures of them; finding out what a verifier accepts is left to RL. The
prompt is the kind of calculation alone.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from equipoise import policy as policies
from equipoise.policy import Policy
from equipoise.study.redteam import alphabet, grammar

CONTEXT = 96
LEARNING_RATE = 4e-3
RESPONSES = 64  # per step of the warm-up
STEPS = 150
SIGNS = "+-*/"


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokens = dict.fromkeys(("<pad>", "<bos>", "<eos>", *alphabet.TOKENS, *alphabet.LETTERS))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(alphabet.PATTERN), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=CONTEXT,
    )


def make_policy(seed: int) -> Policy:
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2,
        head_dim=32, max_position_embeddings=CONTEXT, tie_word_embeddings=False, initializer_range=0.05,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
    model.generation_config = GenerationConfig(
        do_sample=True, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    policy = Policy(model, tokenizer, "attacker")
    warm_up(policy, random.Random(seed), STEPS)
    return policy


def warm_up(policy: Policy, draw: random.Random, steps: int) -> None:
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    for step in range(steps):
        prompts = [policies.encode(policy, draw.choice(SIGNS)) for _ in range(RESPONSES)]
        responses = [_response(policy, draw) for _ in range(RESPONSES)]
        loss = policies.response_loss(policy, prompts, responses)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = (
            LEARNING_RATE * min(1, (step + 1) / 30) * (1 - 0.9 * step / steps)
        )
        optimizer.step()


def _response(policy: Policy, draw: random.Random) -> list[int]:
    text = grammar.response(draw)
    tokens = policy.tokenizer(text, add_special_tokens=False).input_ids[: CONTEXT - 2]
    return [*tokens, policy.tokenizer.eos_token_id]


def write(folder: Path, seed: int) -> Path:
    """The warmed-up attacker as a model folder that the trainer opens."""
    policies.save(make_policy(seed), folder)
    return folder
