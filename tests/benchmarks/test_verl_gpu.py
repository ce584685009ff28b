"""verl's runs beside ours: the committed curves are whole, and the page's table is theirs."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import verl_gpu
from equipoise.config import OptimConfig

PAGE = (Path(__file__).parents[2] / "docs" / "verl.md").read_text(encoding="utf-8")


def test_the_page_has_the_committed_runs():
    record = json.loads(verl_gpu.RESULTS.read_text(encoding="utf-8"))
    assert record["options"] == verl_gpu.OPTIONS
    for row in verl_gpu.lines(record):
        assert row in PAGE
    for added in verl_gpu.both_of_rounding(record).values():
        assert added in PAGE
    for launch in record["verl"].values():
        assert launch["versions"]["verl"]
        for run in launch["runs"]:
            assert all(len(run[name]) == verl_gpu.STEPS for name in ("reward", "grad_norm", "anchor", "seconds"))
        audits = launch.get("audit", [])
        for audit in audits if isinstance(audits, list) else [audits]:
            assert audit["responses"] == verl_gpu.STEPS * 16 * 16
            pull = "{:.2f} [{:.2f}, {:.2f}]".format(*audit["coupling"]).replace("0.", ".")
            assert pull in PAGE
    assert tuple(record["ours"]["rewards"]) == verl_gpu.DTYPES
    for runs in record["ours"]["rewards"].values():
        assert [len(rewards) for rewards in runs] == [verl_gpu.STEPS] * verl_gpu.DRAWS


def test_rates_come_a_step_later():
    optim = OptimConfig(lr=1.0, warmup=4)
    assert [verl_gpu.a_step_later(optim, k, 10) for k in range(1, 7)] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])


def test_products_through_float32_are_torchs_but_for_a_last_bit():
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(24, 24, generator=generator).bfloat16() for _ in range(3))
    expected = a @ b, c.clone().addmm_(a, b)
    with verl_gpu.ProductsThroughFloat32():
        found = a @ b, c.clone().addmm_(a, b)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one, other, rtol=2**-7, atol=2**-7)


def test_a_resumed_run_is_read_from_all_its_starts(tmp_path):
    """The steps after the checkpoint that both starts have are the second's."""
    for file, steps, reward in (("verl-1.jsonl", (1, 2, 3), 0.25), ("verl-2.jsonl", (3, 4), 0.5)):
        lines = [{"step": step, "data": {"critic/rewards/mean": reward}} for step in steps]
        (tmp_path / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert verl_gpu.curve_of_verl(tmp_path)["reward"] == [0.25, 0.25, 0.5, 0.5]


@pytest.mark.parametrize(("right", "compared"), [(1, 1), (2, 0), (3, -1)])
def test_audits_see_how_hadw_weighs_the_second_prompt(tmp_path, right, compared):
    """The anchor is 1/2 after the first: right responses pull harder to a harder prompt, less hard to an easier one."""
    for step, count in ((1, 2), (2, right)):
        graded = [("+5=95#95", 1.0)] * count + [("+5=96#96", 0.0)] * (4 - count)
        rows = [{"input": f"9{step}+5=", "output": text, "score": score, "step": step} for text, score in graded]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    audit = verl_gpu.audited(tmp_path)
    assert (audit["responses"], audit["prompts"]) == (8, 2)
    pull = audit["coupling"][0]
    assert (pull > 1) - (pull < 1) == compared
