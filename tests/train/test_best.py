"""The best checkpoint is kept, and the mean of the last ones is made."""

import pytest
import torch
from safetensors.torch import load_file

from equipoise import policy as models
from equipoise.config.config import accuracies
from equipoise.train import ConfigError, RunError, RunFolder, Trainer, checkpoint
from equipoise.train.average import average
from equipoise.train.best import Best

from .tiny import evaluations, make_model, metrics, settings


def test_the_highest_counts_the_first_of_equals_and_not_the_start():
    best = Best("acc@2")
    best.see_all([{"step": 0, "acc@2": 0.9}, {"step": 2, "acc@2": 0.3}, {"step": 4, "acc@2": 0.5}])
    assert best.step == 4
    best.see(6, {"acc@2": 0.5})
    assert best.step == 4
    best.see(8, {"acc@2": None})  # what was not finite
    assert best.step == 4


def test_earlier_evaluations_may_have_had_other_metrics():
    """A resumed run may take another number of samples."""
    best = Best("acc@4")
    best.see_all([{"step": 2, "acc@2": 0.9}, {"step": 4, "acc@4": 0.5}])
    assert best.step == 4


def test_a_run_without_the_option_has_no_best():
    best = Best("")
    best.see(2, {"acc@2": 1.0})
    assert best.step is None


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
@pytest.mark.parametrize("greedy", [True, False])
def test_the_metrics_are_those_of_an_evaluation(model, tmp_path, samples, greedy):
    """Independent of the list: what a real evaluation has and gives an interval."""
    options = {"eval__samples": samples, "eval__greedy": greedy, "reward__functions": ["task"]}
    config = settings(model, tmp_path / "run", log__terminal=False, **options)
    trainer = Trainer(config)
    trainer._evaluate()
    trainer.folder.unlock()
    (found,) = evaluations(tmp_path / "run")
    assert set(accuracies(samples, greedy=greedy)) == set(found["interval"])


def test_a_vote_over_numbers_is_refused_before_training(model, tmp_path):
    trainer = Trainer(settings(model, tmp_path / "run", train__keep_best="maj@2", log__terminal=False))
    with pytest.raises(RunError, match=r'train.keep_best = "maj@2": the evaluations of this run have none'):
        trainer.run()
    assert metrics(tmp_path / "run") == []


def with_values(monkeypatch, values):
    """Evaluations whose acc@2 is what the table says, by step."""
    inner = Trainer._sampled

    def sampled(self):
        evaluation = inner(self)
        evaluation.metrics["acc@2"] = values[self.step]
        return evaluation

    monkeypatch.setattr(Trainer, "_sampled", sampled)


OPTIONS = {"eval__every": 1, "train__checkpoint_every": 4, "train__keep": 0, "log__terminal": False}
VALUES = {0: 1.0, 1: 0.2, 2: 0.6, 3: 0.4, 4: 0.5, 5: 0.1, 6: 0.3}


def test_the_best_checkpoint_outlives_later_ones(model, tmp_path, monkeypatch):
    with_values(monkeypatch, VALUES)
    folder = RunFolder(tmp_path / "run")
    Trainer(settings(model, folder.path, train__steps=6, train__keep_best="acc@2", **OPTIONS)).run()
    assert checkpoint.steps(folder.checkpoints) == [2, 6]
    assert (folder.checkpoints / "best").resolve() == (folder.checkpoints / "step-2").resolve()
    assert models.load(folder.checkpoints / "best").eos == (2,)


def test_a_resumed_run_remembers_what_was_best(model, tmp_path, monkeypatch):
    with_values(monkeypatch, VALUES)
    folder = RunFolder(tmp_path / "run")
    for steps in (4, 6):
        config = settings(model, folder.path, train__steps=steps, train__keep_best="acc@2", **OPTIONS)
        Trainer(config, resume=steps == 6).run()
    assert checkpoint.steps(folder.checkpoints) == [2, 6]


def test_a_run_that_begins_again_before_its_best_has_none(model, tmp_path, monkeypatch):
    with_values(monkeypatch, VALUES)
    folder = RunFolder(tmp_path / "run")
    config = settings(model, folder.path, train__steps=4, train__keep_best="acc@2", **OPTIONS)
    Trainer(config).run()
    trainer = Trainer(config, resume=True, from_step=0)
    trainer.folder.unlock()
    assert list(folder.checkpoints.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train__keep_best": "acc@9"}, r'train\.keep_best = "acc@9": must be a metric of .*acc@2, best@2, maj@2'),
        ({"train__keep_best": "acc@2", "eval__every": 0}, r"train\.keep_best .*eval\.every"),
        ({"train__average": 3, "train__keep": 1}, r"train\.average = 3: must be at most train\.keep \+ 1"),
        ({"train__average": 1}, r"train\.average = 1: must be 0 or at least 2"),
    ],
)
def test_what_cannot_be_kept_is_refused(model, tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        settings(model, tmp_path / "run", **options)


def test_the_mean_of_the_last_checkpoints_is_written_at_the_end(model, tmp_path):
    folder = RunFolder(tmp_path / "run")
    options = {"train__checkpoint_every": 1, "train__keep": 3, "train__average": 2, "log__terminal": False}
    Trainer(settings(model, folder.path, train__steps=4, **options)).run()
    ends = [load_file(folder.checkpoints / f"step-{step}" / "model.safetensors") for step in (3, 4)]
    found = load_file(folder.path / "averaged" / "model.safetensors")
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, (ends[0][name] + ends[1][name]) / 2)
    assert any(not torch.equal(found[name], ends[1][name]) for name in found)
    assert models.load(folder.path / "averaged").eos == (2,)
    assert not (folder.path / "averaged" / checkpoint.STATE).exists()


def test_bfloat16_is_averaged_in_float32(tmp_path):
    """Three times the same weight must come back: sums in bfloat16 would not."""
    for name in "abc":
        models.save(models.load(make_model(tmp_path / name), dtype=torch.bfloat16), tmp_path / name)
    average([tmp_path / name for name in "abc"], tmp_path / "mean")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "mean"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
