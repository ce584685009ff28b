"""The table of metrics holds what runs write: no metric without a sentence, and no sentence without a metric."""

import re

import pytest

from equipoise.report.metrics import METRICS, meaning, pattern
from equipoise.rollout import PagedSampler
from equipoise.train import RunFolder, Trainer, ahead, load, read_lines

TABLES = {"interval", "by_level"}  # of a line of eval.jsonl
# Options that add metrics, in as few runs as can hold them together.
RUNS = {
    "several updates": {
        "train.updates": "2", "rollout.exact": "true", "objective.mismatch": "tis", "eval.probe": "true",
        "objective.difficulty": '{ name = "hadw", recentre = true }', "objective.cancellation": "both",
        "reward.length_penalty": "0.1", "reward.functions": '["task"]', "eval.samples": "8",
    },
    "truncated": {
        "rollout.top_p": "0.9", "rollout.exact": "true", "objective.mismatch": "mis",
        "objective.kl": "0.01", "train.teacher": "abacus",
        "objective.aggregation": "token", "eval.every": "0",
    },
    "recentred": {
        "objective.cancellation": "recentre", "eval.every": "0", "rollout.ahead": "1", "rollout.speculation": "2",
    },
}  # fmt: skip
TINY = {
    "train.steps": "1", "train.threads": "1", "rollout.prompts": "4", "rollout.group_size": "4", "model.device": "cpu",
    "eval.every": "1", "eval.per_level": "8", "log.terminal": "false", "log.rollouts_every": "0",
}  # fmt: skip


@pytest.fixture(scope="module")
def paged():
    """The sampler of CUDA, which drafts, also on the CPU: by its kernels' reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "native_sampler", lambda policy, stopped, **options: PagedSampler(policy, **options))
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory, paged):
    """The names that the runs wrote, by file."""
    found = {file: set() for file in METRICS}
    for k, options in enumerate(RUNS.values()):
        out = tmp_path_factory.mktemp("run") / str(k)
        settings = TINY | options | {"train.out": str(out)}
        Trainer(load(None, [part for key, value in settings.items() for part in (f"--{key}", value)])).run()
        folder = RunFolder(out)
        for path in (folder.metrics, folder.eval):
            if path.exists():
                found[path.name] |= {name for line in read_lines(path) for name in line}
    return found


@pytest.mark.parametrize("file", METRICS)
def test_every_metric_of_a_run_has_its_sentence(written, file):
    assert written[file] - TABLES
    assert [name for name in sorted(written[file] - TABLES) if meaning(file, name) is None] == []


@pytest.mark.parametrize("file", METRICS)
def test_every_sentence_is_of_a_metric_that_a_run_writes(written, file):
    names = [name.removesuffix("/last_update") for name in written[file]]
    unwritten = [known for known in METRICS[file] if not any(pattern(known).fullmatch(name) for name in names)]
    assert unwritten == []


def test_a_capital_word_stands_for_one_part_of_a_name():
    assert meaning("metrics.jsonl", "rewards/polite/mean").startswith("Mean reward of one function")
    assert meaning("metrics.jsonl", "approx_kl/last_update") == meaning("metrics.jsonl", "approx_kl")
    assert meaning("eval.jsonl", "acc@8") == meaning("eval.jsonl", "acc@16") != meaning("eval.jsonl", "maj@8")
    assert meaning("metrics.jsonl", "verdict/a/b") is None


def test_every_sentence_is_one():
    for table in METRICS.values():
        for name, sentence in table.items():
            assert re.fullmatch(r"[^\n]+\.", sentence), name
