"""Callbacks: what they see, in which order, and how they end a run."""

import numpy as np
import pytest

import equipoise as eq
from equipoise.config import ConfigError
from equipoise.train import RunFolder, checkpoint, read_lines
from equipoise.train.callbacks import Callbacks

from .tiny import settings

OPTIONS = {"log__terminal": False, "train__steps": 4, "eval__every": 2, "train__checkpoint_every": 3}


class Recorder(eq.TrainerCallback):
    def __init__(self, stop_at=None):
        self.seen, self.stop_at = [], stop_at

    def _heard(self, event, step):
        self.seen.append((event, step))
        return (event, step) == self.stop_at

    def on_step(self, step, metrics):
        assert "reward/mean" in metrics
        return self._heard("step", step)

    def on_evaluation(self, step, result):
        assert "acc@2" in result
        return self._heard("evaluation", step)

    def on_checkpoint(self, step, path):
        assert (path / checkpoint.STATE).is_file()
        return self._heard("checkpoint", step)


def run(model, out, callback):
    return eq.Trainer(settings(model, out, **OPTIONS), callbacks=[callback]).train()


def test_they_hear_every_step_evaluation_and_checkpoint_in_order(model, tmp_path):
    recorder = Recorder()
    run(model, tmp_path / "run", recorder)
    assert recorder.seen == [
        ("evaluation", 0), ("step", 1), ("step", 2), ("evaluation", 2), ("step", 3), ("checkpoint", 3), ("step", 4),
        ("evaluation", 4), ("checkpoint", 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "step"), [("step", 1), ("step", 3), ("evaluation", 2), ("checkpoint", 3), ("evaluation", 0)]
)
def test_each_may_end_the_run_which_is_then_whole(model, tmp_path, event, step):
    result = run(model, tmp_path / "run", Recorder(stop_at=(event, step)))
    folder = RunFolder(tmp_path / "run")
    assert (result.step, result.stopped_by) == (step, "Recorder")
    assert len(read_lines(folder.metrics)) == step
    assert read_lines(folder.eval)[-1]["step"] == (2 if event == "checkpoint" else step)
    assert checkpoint.steps(folder.checkpoints)[-1:] == ([step] if step else [])


def test_a_run_that_ends_before_its_first_checkpoint_has_none_to_average(model, tmp_path):
    config = settings(model, tmp_path / "run", **OPTIONS, train__average=2)
    assert eq.Trainer(config, callbacks=[Recorder(stop_at=("evaluation", 0))]).train().step == 0
    assert not RunFolder(tmp_path / "run").averaged.exists()


def test_an_ended_run_resumes(model, tmp_path):
    run(model, tmp_path / "run", Recorder(stop_at=("step", 2)))
    assert eq.Trainer(settings(model, tmp_path / "run", **OPTIONS), resume=True).train().step == 4


def test_any_object_with_one_of_the_methods_serves():
    class Plain:
        def on_step(self, step, metrics):
            return step == 2

    callbacks = Callbacks([Plain()])
    callbacks.call("on_evaluation", 1, {})
    callbacks.call("on_step", 1, {})
    assert callbacks.stopped_by == ""
    callbacks.call("on_step", 2, {})
    assert callbacks.stopped_by == "Plain"


@pytest.mark.parametrize(("answer", "ends"), [(np.float64(2) > 1, True), (np.float64(2) > 3, False), (1.0, False)])
def test_a_comparison_of_numpys_numbers_ends_it_as_well(answer, ends):
    class Plain:
        def on_step(self, step, metrics):
            return answer

    callbacks = Callbacks([Plain()])
    callbacks.call("on_step", 1, {})
    assert bool(callbacks.stopped_by) == ends


def test_a_method_nobody_calls_is_refused():
    class Misspelt:
        def on_evaluate(self, step, result): ...

    with pytest.raises(ConfigError, match=r"Misspelt.on_evaluate is never called; did you mean \"on_evaluation\"\?"):
        Callbacks([Misspelt()])
    with pytest.raises(ConfigError, match="object has none of on_step, on_evaluation, on_checkpoint"):
        Callbacks([object()])
    with pytest.raises(ConfigError, match=r"Recorder is a class: must be an object, Recorder\(\)"):
        Callbacks([Recorder])
