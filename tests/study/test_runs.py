"""Several runs at a time: what the bars show, and what becomes of one that fails. The runs are pretended."""

import io
import os
import signal

import pytest
from rich.console import Console

from equipoise.config import dump, load
from equipoise.study import runs
from equipoise.train import Interrupted, RunError, RunFolder


class Ended:
    """A run that has ended with this status."""

    def __init__(self, status):
        self.returncode = status

    def poll(self):
        return self.returncode

    terminate = wait = poll


class Server:
    """Whatever is started has ended at once, with 1 if its output is to be that of a run in `failing`."""

    def __init__(self, failing=()):
        self.failing = failing

    def start(self, arguments, log):
        log.write_text("no memory\n")
        return Ended(int(log.stem in self.failing))

    def close(self):
        """Nothing was opened."""


class Endless:
    """A server of runs that end when they are told to, which hears of a SIGTERM when it starts one."""

    def __init__(self):
        self.started, self.closed = [], False

    def start(self, arguments, log):
        self.started.append(Going())
        os.kill(os.getpid(), signal.SIGTERM)
        return self.started[-1]

    def close(self):
        self.closed = True


class Going:
    stopped, returncode = False, 0

    def poll(self):
        return 0 if self.stopped else None

    wait = poll

    def terminate(self):
        self.stopped = True


@pytest.fixture
def configs(tmp_path):
    return {name: load(None, [f"--train.out={tmp_path / name}"]) for name in "abc"}


@pytest.fixture
def bars(monkeypatch):
    made = runs._progress(Console(file=io.StringIO()))
    monkeypatch.setattr(runs, "_progress", lambda console: made)
    return made


@pytest.mark.parametrize("finished", [[], ["b"]], ids=["none finished before", "one finished before"])
def test_of_many_runs_only_the_bar_of_all_is_left(configs, bars, monkeypatch, finished):
    monkeypatch.setattr(runs, "FEW", 2)
    monkeypatch.setattr(runs, "finished", lambda config: config in [configs[name] for name in finished])
    assert runs.train_all(configs, Console(), 2, server=Server(["c"]), patient=True).keys() == {"c"}
    (whole,) = bars.tasks
    assert (whole.description, whole.completed, whole.total) == ("runs", 3, 3)


def test_of_a_few_runs_each_has_a_bar(configs, bars):
    runs.train_all(configs, Console(), server=Server())
    assert [bar.description for bar in bars.tasks] == list(configs)


def test_sigterm_ends_the_runs_under_way(configs, bars):
    """As `timeout` and the schedulers of clusters send it."""
    server, before = Endless(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="the same command goes on with them"):
        runs.train_all(configs, Console(), 1, server=server)
    assert [run.stopped for run in server.started] == [True]
    assert server.closed
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_patient_caller_hears_of_a_failure_at_once(configs, bars):
    said = io.StringIO()
    runs.train_all(configs, Console(file=said), server=Server(["b"]), patient=True)
    assert "the run b failed: no memory" in said.getvalue()


def test_a_run_that_fails_ends_all_unless_the_caller_is_patient(configs, bars):
    with pytest.raises(RunError, match="the run b failed: no memory"):
        runs.train_all(configs, Console(), server=Server(["b"]))
    found = runs.train_all(configs, Console(), server=Server(["b"]), patient=True)
    assert found.keys() == {"b"}
    assert "no memory" in found["b"]


class Training(Server):
    """What is started leaves its configuration, evaluations up to `last`, and a checkpoint."""

    def __init__(self, configs, last, failing=()):
        super().__init__(failing)
        self.configs, self.last, self.started = configs, last, []

    def start(self, arguments, log):
        self.started.append(log.stem)
        config = self.configs[log.stem]
        folder = RunFolder(config.train.out)
        (folder.checkpoints / "step-1").mkdir(parents=True)
        folder.config.write_text(dump(config))
        folder.eval.write_text(f'{{"step": 0}}\n{{"step": {self.last(config)}}}\n')
        return super().start(arguments, log)


def test_without_weights_a_run_is_done_with_its_last_evaluation_and_keeps_no_checkpoint(configs, bars):
    server = Training(configs, lambda config: config.train.steps, failing=["b"])
    assert runs.train_all(configs, Console(), server=server, patient=True, weights=False) == {}
    assert not any(RunFolder(config.train.out).checkpoints.exists() for config in configs.values())
    again = Training(configs, lambda config: config.train.steps)
    runs.train_all(configs, Console(), server=again, patient=True, weights=False)
    assert again.started == []


def test_without_weights_a_run_that_fails_before_it_keeps_its_checkpoints_and_is_named(configs, bars):
    server = Training(configs, lambda config: config.train.steps - 1, failing=["b"])
    found = runs.train_all(configs, Console(), server=server, patient=True, weights=False)
    assert found.keys() == {"b"}
    assert all(RunFolder(config.train.out).checkpoints.exists() for config in configs.values())


class Told(Server):
    """Keeps the flags of what was started."""

    def __init__(self):
        super().__init__()
        self.flags = []

    def start(self, arguments, log):
        self.flags.append(arguments[2:])
        return super().start(arguments, log)


@pytest.mark.parametrize(("weights", "flags"), [(True, []), (False, ["--no-weights"])])
def test_without_weights_a_run_is_told_to_write_none_at_its_end(configs, bars, weights, flags):
    server = Told()
    runs.train_all(configs, Console(), server=server, patient=True, weights=weights)
    assert server.flags == [flags] * len(configs)
