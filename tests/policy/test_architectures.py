"""The table of docs/architectures.md, row by row, on small random models."""

import re
from pathlib import Path

import pytest
import torch
import transformers

from equipoise import policy as p
from equipoise.policy.architectures import ARCHITECTURES
from equipoise.rollout import SamplingParams, TransformersSampler, sampler
from tests.policy import tiny_models

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
ROW = re.compile(r"^\| [^|]+ \| `(\w+)` \| ([^|]+) \|$", re.MULTILINE)
TABLE = dict(ROW.findall(PAGE.read_text(encoding="utf-8")))
# Where the name of the configuration is not that of the class, or SHAPE does not make a model.
CONFIGURATIONS = {"Gemma3ForCausalLM": "Gemma3TextConfig", "GPT2LMHeadModel": "GPT2Config"}
MORE = {
    "Qwen3MoeForCausalLM": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "MixtralForCausalLM": {"num_local_experts": 4},
    "GptOssForCausalLM": {"num_local_experts": 4},
    "GPT2LMHeadModel": {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2},
    **{f"{name}ForCausalLM": changes for name, changes in tiny_models.LLAMA_LIKE.values()},
}


def opened(kind: str, folder: Path, **options) -> p.Policy:
    """A small model of the class, written and loaded as a user's is."""
    torch.manual_seed(0)
    name = CONFIGURATIONS.get(kind, kind.replace("ForCausalLM", "Config"))
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    shape = {"vocab_size": tiny_models.VOCABULARY} if kind == "GPT2LMHeadModel" else tiny_models.SHAPE
    config = getattr(transformers, name)(**shape | MORE.get(kind, {}), **ids)
    getattr(transformers, kind)(config).save_pretrained(folder)
    tiny_models.tokenizer().save_pretrained(folder)
    return p.load(folder, **options)


def apart(policy, prompts, tokens, lengths, group):
    """Log-probabilities from transformers' own pass over each response alone."""
    found = []
    for row, response in zip(group.tolist(), tokens.split(lengths.tolist()), strict=True):
        prompt = prompts[row]
        inputs = torch.tensor([[*prompt, *response.tolist()]])
        logits = policy.core(input_ids=inputs, use_cache=False).logits[0].float()
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        found.append(rows.gather(1, response[:, None])[:, 0])
    return torch.cat(found)


def test_the_table_has_every_architecture_of_ours():
    assert {kind for kind, by in TABLE.items() if by == "equipoise"} == set(ARCHITECTURES)
    assert len(TABLE) > len(ARCHITECTURES)


def test_every_architecture_has_a_tiny_model_that_the_tests_of_all_paths_run():
    assert {f"{name}ForCausalLM" for name, _ in tiny_models.LLAMA_LIKE.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("kind", [kind for kind, by in TABLE.items() if not by.startswith("refused")])
@torch.no_grad()
def test_a_row_is_computed_as_it_says(tmp_path, kind):
    policy = opened(kind, tmp_path)
    assert policy.is_llama_like == (TABLE[kind] == "equipoise")
    prompts = tiny_models.prompts(3)
    text = tiny_models.responses(prompts, 2)
    ours = p.token_logprobs(policy, p.pack(prompts, *text)).logprobs
    torch.testing.assert_close(ours, apart(policy, prompts, *text), atol=1e-4, rtol=0)
    draws = sampler(policy)
    assert isinstance(draws, TransformersSampler) == (TABLE[kind] == "transformers")
    drawn = draws.sample(prompts, 2, SamplingParams(max_tokens=8))
    pack = p.pack(drawn.prompts, drawn.tokens, drawn.lengths, drawn.prompt)
    torch.testing.assert_close(drawn.logprobs, p.token_logprobs(policy, pack).logprobs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [kind for kind, by in TABLE.items() if not by.startswith("refused")])
# What peft says of its own choices: for GPT-2's layers, and for experts it has given a form of their own.
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False", "ignore:The following (rank|alpha)_pattern keys")
def test_adapters_on_a_row_have_gradients(tmp_path, kind):
    pytest.importorskip("peft")
    policy = opened(kind, tmp_path, lora=p.Lora(rank=2))
    prompts = tiny_models.prompts(2)
    p.token_logprobs(policy, p.pack(prompts, *tiny_models.responses(prompts, 2))).logprobs.sum().backward()
    # An adapter's second matrix begins at zero: only that one has a gradient at first.
    second = [q for name, q in policy.model.named_parameters() if "lora_B" in name]
    assert second
    assert all(q.grad is not None and bool(q.grad.any()) for q in second)


@pytest.mark.parametrize("kind", [kind for kind, by in TABLE.items() if by.startswith("refused")])
def test_what_is_refused_is_refused_before_it_trains(tmp_path, kind):
    policy = opened(kind, tmp_path)
    with pytest.raises(p.ModelError) as error:
        p.check_packing(policy)
    reasons = {"caps": "final_logit_softcapping", "attention": "attention sinks", "scales": "changes its logits",
               "packed": "does not keep packed responses apart"}  # fmt: skip
    assert reasons[TABLE[kind].split()[1]] in str(error.value)
