"""The script that measures the examples' memory runs, on a shape small enough for the CPU, and knows every example."""

import json
import subprocess
import sys
import time

import example_plans
import pytest
import shapes
from transformers import LlamaConfig

SMALL = ["--rollout.prompts", "2", "--rollout.group_size", "2", "--rollout.max_tokens", "4", "--train.mini_batch", "0"]
SMALL += ["--model.dtype", "float32", "--model.lora_rank", "0", "--train.threads", "1"]


def test_every_example_for_a_gpu_has_a_shape():
    without = {path.stem for path in example_plans.EXAMPLES.glob("*.toml") if example_plans._shape(path) is None}
    assert without == {"abacus", "sft_qwen2.5_0.5b_gsm8k"}
    assert set(example_plans.SHAPE_OF.values()) <= shapes.SHAPES.keys()


def test_the_largest_model_comes_last():
    names = [path.stem for path in example_plans.EXAMPLES.glob("*.toml") if example_plans._shape(path) is not None]
    in_order = sorted(names, key=example_plans.size)
    assert (in_order[0], in_order[-1]) == ("smollm", "qwen2.5_7b_lora_math")
    # the estimate leaves norms and biases out
    assert example_plans.size("smollm") == pytest.approx(134_515_008, rel=1e-3)
    assert example_plans.size("qwen2.5_7b_lora_math") == pytest.approx(7_615_616_512, rel=1e-3)


@pytest.mark.parametrize("name", ["gym_mixture", "qwen2.5_7b_lora_math"])
def test_an_example_is_measured(name, monkeypatch, tmp_path):
    monkeypatch.setitem(shapes.SHAPES, "tiny", shapes.Shape(LlamaConfig, 32, 1, 1, 1, 32, 64, 300))
    heard = []
    found = example_plans.measured(name, tmp_path, shape="tiny", device="cpu", words=8, more=SMALL, tell=heard.append)
    assert found["shape"] == "tiny"
    assert found["optimizer_steps"] == 2
    assert found["planned_to_measured"] is None  # the allocator of the CPU counts nothing
    assert [one["steps"] for one in heard] == [0, 1, 2]
    assert heard[-1]["plan"] == found["plan"]


NOTES = """
import json, pathlib, sys, time
name, file = sys.argv[1], pathlib.Path(sys.argv[2])
there = json.loads(file.read_text())["examples"]
file.write_text(json.dumps({"examples": [*there, {"example": name, "steps": 1}]}))
if name == "smollm":
    file.with_name("hangs-" + name).touch()
    time.sleep(3000)
"""


def test_what_was_measured_outlives_a_cut_off(tmp_path, monkeypatch, capsys):
    """A process that notes its first step and then hangs: its figures stay, with the reason, and the next one runs."""
    out = tmp_path / "plans.json"
    out.write_text(json.dumps({"examples": [{"example": "abacus", "steps": 2}, {"example": "smollm", "steps": 9}]}))
    asked = ["qwen3_0.6b_gsm8k", "smollm", "--out", str(out), "--limit", "400"]

    class Waited(subprocess.Popen):
        """Its limit is over when it hangs, however long it takes to get there."""

        def wait(self, timeout=None):
            while timeout and self.poll() is None:
                if out.with_name(f"hangs-{self.args[-2]}").exists():
                    raise subprocess.TimeoutExpired(self.args, timeout)
                time.sleep(0.01)
            return super().wait()

    monkeypatch.setattr(example_plans.subprocess, "Popen", Waited)
    monkeypatch.setattr(sys, "argv", ["example_plans.py", *asked])
    monkeypatch.setattr(
        example_plans, "child", lambda name, folder, file: [sys.executable, "-c", NOTES, name, str(file)]
    )
    monkeypatch.setattr(example_plans.torch.cuda, "is_available", lambda: True)
    example_plans.main()
    found = [
        {"example": "abacus", "steps": 2},
        {"example": "smollm", "steps": 1, "error": "ended after 400 s (--limit)"},
        {"example": "qwen3_0.6b_gsm8k", "steps": 1},
    ]
    assert json.loads(out.read_text())["examples"] == found
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == found[1:]


def test_a_smaller_card_is_what_is_left_free(monkeypatch):
    free, all_of_it = 100 * example_plans.GIB, 140 * example_plans.GIB
    monkeypatch.setattr(example_plans.torch.cuda, "mem_get_info", lambda: (free, all_of_it))
    monkeypatch.setattr(example_plans.torch, "empty", lambda count, **more: count)
    assert example_plans.ballast(None) is None
    assert example_plans.ballast(74) == 26 * example_plans.GIB
    with pytest.raises(SystemExit, match=r"--card 120: the GPU has 100\.0 GiB free"):
        example_plans.ballast(120)


def test_a_process_that_crashes_is_told(tmp_path):
    assert example_plans.bounded([sys.executable, "-c", "raise SystemExit(3)"], 60) == "its process ended with code 3"


def test_an_example_without_a_shape_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["example_plans.py", "abacus"])
    with pytest.raises(SystemExit):
        example_plans.main()
    assert "'abacus' is none of the examples for a GPU: gym_mixture, " in capsys.readouterr().err
