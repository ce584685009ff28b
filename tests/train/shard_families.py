"""Run by test_shard.py in each of two processes: gradients in shards against those of a whole model, by model family.

The loss comes back inside a dataclass, as it does on the GPU, where FSDP does not find its tensors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from equipoise import policy as models
from equipoise.policy import decoder, logprobs
from equipoise.train import ranks
from equipoise.train.shard import Shards

FAMILIES = [
    (Qwen2ForCausalLM, Qwen2Config, True), (Qwen3ForCausalLM, Qwen3Config, True),
    (LlamaForCausalLM, LlamaConfig, False), (GemmaForCausalLM, GemmaConfig, True),
]  # fmt: skip
PROMPTS, LENGTHS, PROMPT = [[3, 4, 5], [6, 7]], torch.tensor([10, 7, 13, 10]), torch.tensor([0, 0, 1, 1])
TOKENS, PULL = torch.arange(40) % 15, torch.linspace(-1, 1, 40)


@dataclass
class Output:
    loss: Tensor


def make(kind, config, tied: bool, recompute: bool) -> models.Policy:
    torch.manual_seed(0)
    model = kind(
        config(
            vocab_size=19, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, initializer_range=0.2,
            tie_word_embeddings=tied, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    return models.Policy(model, None, kind.__name__, recompute)


def add_gradient(policy: models.Policy, rows: list[int]) -> None:
    tokens, pull = (torch.cat([t.split(LENGTHS.tolist())[i] for i in rows]) for t in (TOKENS, PULL))
    pack = models.pack(PROMPTS, tokens, LENGTHS[rows], PROMPT[rows])

    def run() -> Output:
        return Output((logprobs._token_logprobs(policy, pack, 1.0).logprobs * pull).sum())

    decoder.gathered(policy.core, run).loss.backward()


def main() -> None:
    torch.set_num_threads(1)
    ranks.start()
    for family in FAMILIES:
        for recompute in (False, True):
            whole, policy = make(*family, recompute), make(*family, recompute)
            add_gradient(whole, [0, 1, 2, 3])
            shards = Shards(policy)
            mine = [[[0], [1], [2]], [[3]]][ranks.me()]
            for rows in mine:
                add_gradient(policy, rows)
            for _ in range(3 - len(mine)):
                shards.idle_pass(backward=True)
            shards.take_gradients()
            error = size = 0.0
            for p, rows in zip(whole.parameters(), shards.parameters, strict=True):
                part = p.grad.chunk(2)[ranks.me()]
                error += float((rows.grad - part).square().sum())
                size += float(part.square().sum())
            assert size > 0
            assert (error / size) ** 0.5 < 1e-6, (family[0].__name__, recompute, error, size)
    print("the same", flush=True)
    ranks.stop()


if __name__ == "__main__":
    main()
