"""The embedded model: opens with plain transformers, speaks the task's alphabet, and leaves room for learning."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from equipoise import policy, rollout
from equipoise.evaluate import evaluate
from equipoise.policy.names import ABACUS
from equipoise.tasks import Arithmetic

TASK = Arithmetic()


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parents[2] / "scripts" / "make_abacus.py"
    spec = importlib.util.spec_from_file_location("make_abacus", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plain_transformers_opens_it():
    model = AutoModelForCausalLM.from_pretrained(ABACUS, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(ABACUS, local_files_only=True)
    assert 100_000 <= model.num_parameters() <= 400_000
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.head_dim >= 32
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert len(tokenizer) == model.config.vocab_size
    assert sum(file.stat().st_size for file in ABACUS.iterdir()) < 2_000_000


def test_a_character_is_a_token_and_nothing_is_added():
    tokenizer = AutoTokenizer.from_pretrained(ABACUS, local_files_only=True)
    for text in [TASK.prompt(i).text for i in range(50)] + ["+8=54~+8=55+5=60#60"]:
        ids = tokenizer(text).input_ids
        assert len(ids) == len(text)
        assert ids == tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_prompt_and_longest_response_fit_the_context():
    loaded = policy.load(ABACUS)
    assert max(len(prompt.text) for prompt in TASK.evaluation()) + TASK.max_tokens <= loaded.context


def test_it_answers_some_and_leaves_room():
    loaded = policy.load(ABACUS)
    prompts = TASK.evaluation()
    found = evaluate(
        loaded, rollout.sampler(loaded), TASK, prompts, [policy.encode(loaded, prompt.text) for prompt in prompts],
        samples=8, temperature=1.0, greedy=True, max_tokens=TASK.max_tokens,
    ).metrics  # fmt: skip
    assert 0.30 <= found["acc@8"] <= 0.60
    assert found["acc@8"] < found["greedy"] <= 0.75
    assert found["by_level"]["2"]["acc@8"] > found["by_level"]["5"]["acc@8"]


def test_the_script_gives_the_same_weights_again(script, monkeypatch):
    monkeypatch.setattr(script, "STEPS", 3)

    def weights():
        torch.manual_seed(script.SEED)
        tokenizer = script.make_tokenizer()
        made = policy.Policy(script.make_model(tokenizer), tokenizer, "abacus")
        script.warm_up(made)
        return made.model.state_dict()

    first, second = weights(), weights()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_script_makes_the_embedded_shapes_and_tokenizer(script):
    tokenizer = script.make_tokenizer()
    embedded = AutoModelForCausalLM.from_pretrained(ABACUS, local_files_only=True)
    assert AutoTokenizer.from_pretrained(ABACUS, local_files_only=True).get_vocab() == tokenizer.get_vocab()
    made = script.make_model(tokenizer).state_dict()
    assert {name: x.shape for name, x in made.items()} == {n: x.shape for n, x in embedded.state_dict().items()}
    assert re.fullmatch(r"[0-9+=~#]+", "".join(t for t in tokenizer.get_vocab() if not t.startswith("<")))
