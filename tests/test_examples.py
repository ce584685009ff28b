"""The scripts of examples/: they run, and the one-file loop takes the model's own log-probabilities."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from equipoise.policy.names import ABACUS
from equipoise.train import RunFolder, read_lines

FILE = Path(__file__).parent.parent / "examples" / "minimal_loop.py"


@pytest.fixture
def loop(monkeypatch):
    spec = importlib.util.spec_from_file_location("minimal_loop", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PROMPTS", 2)
    monkeypatch.setattr(module, "GROUP", 4)
    return module


def printed(loop, capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["minimal_loop.py", *arguments])
    loop.main()
    return re.findall(r"reward ([\d.]+) .*gradient ([\d.]+)", capsys.readouterr().out)


def test_two_steps_do_not_depend_on_the_micro_batch(loop, capsys, monkeypatch):
    whole = printed(loop, capsys, monkeypatch, "--steps", "2")
    monkeypatch.setattr(loop, "MICRO", 3)
    split = printed(loop, capsys, monkeypatch, "--steps", "2")
    assert len(whole) == 2
    assert split == whole
    assert all(0 <= float(reward) <= 1 for reward, _ in whole)
    assert any(float(gradient) > 0 for _, gradient in whole)


def test_log_probabilities_are_those_of_each_response_alone(loop):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(ABACUS, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(ABACUS).eval()
    texts = ["12+3=", "45+6+7+8+9=", "99+1="]
    tokens, attended, is_response = loop.sample(model, tokenizer, texts, most=24)
    with torch.no_grad():
        found = loop.token_logprobs(model, tokens, attended, is_response)
        expected = []
        for row, there, answer in zip(tokens, attended.bool(), is_response, strict=True):
            alone = row[there]  # neither side padded
            logprobs = model(alone[None]).logits[0].log_softmax(-1)
            first = len(alone) - int(answer.sum())
            expected += [logprobs[i - 1, alone[i]] for i in range(first, len(alone))]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_the_script_with_a_callable_reward_trains_two_steps(tmp_path, capsys):
    """examples/train_smollm.py, with the embedded model and its sums in SmolLM2's place."""
    spec = importlib.util.spec_from_file_location("train_smollm", FILE.with_name("train_smollm.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sums = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(20, 40) for b in range(1, 9)]
    options = {"train.steps": 2, "train.out": str(tmp_path / "run"), "task.chat": False, "rollout.prompts": 4}
    module.main("abacus", sums, **options, **{"eval.per_level": 4, "rollout.group_size": 4, "log.terminal": False})
    assert f"TrainResult(step=2, run_dir=PosixPath('{tmp_path}/run')" in capsys.readouterr().out
    lines = read_lines(RunFolder(tmp_path / "run").metrics)
    assert [line["step"] for line in lines] == [1, 2]
    assert any(line["rewards/last_number/mean"] > 0 for line in lines)
    assert not any(line["rewards/last_number/crashed"] for line in lines)
