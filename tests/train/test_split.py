"""The same numbers however a batch is split: over micro-batches, and over two processes."""

import contextlib
import os
import random
import signal
import socket

import pytest
import torch

from equipoise.train import RunFolder, Trainer, checkpoint, ranks
from equipoise.train.update import Updater

from .tiny import evaluations, last_checkpoint, metrics, overrides, settings

OBJECTIVES = {
    "grpo": {"objective__preset": "grpo"},
    "dapo+balanced+hadw": {
        "objective__preset": "dapo", "objective__aggregation": "balanced", "objective__difficulty": "hadw",
        "objective__kl": 0.05, "objective__entropy_bonus": 0.01, "rollout__top_p": 0.9, "rollout__min_p": 0.02,
    },
    "gspo": {"objective__preset": "gspo"},
    "dfpo": {"objective__preset": "dfpo"},
    "prefix": {"objective__preset": "grpo", "objective__cancellation": "prefix"},
}  # fmt: skip
SPLIT = {"train__steps": 2, "train__updates": 2, "eval__every": 2}
ROUNDING = 2e-5  # of a weight or metric after several steps, relative; float32 sums in another order


def first_gradient(out) -> torch.Tensor:
    """After its first step AdamW's average is (1 − β₁) times the (clipped) gradient."""
    state = torch.load(RunFolder(out).checkpoints / "step-1" / checkpoint.STATE, weights_only=False)
    return torch.cat([s["exp_avg"].flatten() for s in state["optimizer"]["state"].values()]) / 0.1


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def weights(out) -> torch.Tensor:
    from safetensors.torch import load_file

    return torch.cat([w.flatten() for _, w in sorted(load_file(last_checkpoint(out) / "model.safetensors").items())])


def assert_same_curve(a, b) -> None:
    """Every metric of every step, and every evaluation, to rounding."""
    one, two = metrics(a), metrics(b)
    assert [r["step"] for r in one] == [r["step"] for r in two]
    for x, y in zip(one, two, strict=True):
        assert x.keys() == y.keys()
        for name in x:
            # A loss and a drift are sums that cancel, so their rounding is that of their terms, not of their size.
            assert x[name] == pytest.approx(y[name], rel=ROUNDING, abs=2e-6), (x["step"], name)
    assert [e["step"] for e in evaluations(a)] == [e["step"] for e in evaluations(b)]
    for x, y in zip(evaluations(a), evaluations(b), strict=True):
        assert x == y


# two whole runs each; the steps of the marked ones are split in test_mini.py too
MARKED = {"gspo": pytest.mark.long, "prefix": pytest.mark.long}
MARKED_OBJECTIVES = [pytest.param(name, marks=MARKED.get(name, ())) for name in OBJECTIVES]


@pytest.mark.parametrize("name", MARKED_OBJECTIVES)
def test_micro_batches_change_nothing(model, tmp_path, monkeypatch, name):
    apply, gradients = Updater._apply, []

    def watched(self, norm, fine):
        gradients[-1].append(torch.cat([p.grad.flatten() for p in self.parameters]).clone())
        apply(self, norm, fine)

    monkeypatch.setattr(Updater, "_apply", watched)
    sizes = (0, 1) if name == "grpo" else (0, 3)
    for size in sizes:
        gradients.append([])
        options = SPLIT | OBJECTIVES[name] | {"log__terminal": False, "train__micro_batch": size}
        Trainer(settings(model, tmp_path / str(size), **options)).run()
    assert gradients[0][0].norm() > 0.01
    for found, size in zip(gradients[1:], sizes[1:], strict=True):
        assert distance(found[0], gradients[0][0]) < 1e-6
        assert len(found) == len(gradients[0]) == 4
        assert_same_curve(tmp_path / str(size), tmp_path / "0")
        assert distance(weights(tmp_path / str(size)), weights(tmp_path / "0")) < ROUNDING


def test_micro_batches_are_really_that_small(model, tmp_path, monkeypatch):
    sizes = []
    loss = Updater._loss

    def watched(self, share, part, credit):
        sizes.append(part.rows.stop - part.rows.start)
        return loss(self, share, part, credit)

    monkeypatch.setattr(Updater, "_loss", watched)
    for preset, size, wanted in (("grpo", 3, [3, 3, 3, 3, 3, 1]), ("dfpo", 3, [4, 4, 4, 4]), ("grpo", 0, [16])):
        sizes.clear()
        every = {"objective__entropy_bonus": 1e-9}  # pulls on every response, also on those without an advantage
        options = {"objective__preset": preset, "train__micro_batch": size, "train__steps": 1, "log__terminal": False}
        Trainer(settings(model, tmp_path / f"{preset}-{size}", **options, **every)).run()
        assert sizes == wanted


def free_port() -> str:
    """One below those that the system gives whoever asks for any: until it is used, nobody else may be given it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return str(port)


def start_two(server, arguments):
    """What torchrun does: two processes that find each other by the environment."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [server.start(arguments, environment=shared | {"RANK": str(k), "LOCAL_RANK": str(k)}) for k in (0, 1)]


def run_two(server, arguments) -> list:
    return [child.end() for child in start_two(server, arguments)]


FIRST = {"train__steps": 1, "train__updates": 1, "train__mini_batch": 0}


def test_two_processes_take_the_step_of_one(server, model, tmp_path):
    file = tmp_path / "empty.toml"
    file.touch()
    options = SPLIT | OBJECTIVES["dapo+balanced+hadw"] | FIRST | {"eval__every": 0}
    arguments = {n: ["train", str(file), *overrides(model, tmp_path / str(n), **options)] for n in (1, 2)}
    for ended in (server.run(arguments[1]), *run_two(server, arguments[2])):
        assert ended.code == 0, ended.stderr
    assert distance(first_gradient(tmp_path / "2"), first_gradient(tmp_path / "1")) < 1e-6
    assert_same_curve(tmp_path / "2", tmp_path / "1")


@pytest.mark.parametrize(
    "name",
    [pytest.param("dapo+balanced+hadw", marks=pytest.mark.long), pytest.param("dfpo", marks=pytest.mark.slow)],
)
def test_two_processes_change_nothing(server, model, tmp_path, name):
    file = tmp_path / "empty.toml"
    file.touch()
    options = SPLIT | OBJECTIVES[name] | {"log__rollouts_every": 1, "train__mini_batch": 2}
    first = options | FIRST
    for n, run in ((1, lambda a: [server.run(a)]), (2, lambda a: run_two(server, a))):
        for what, chosen in (("first", first), ("run", options)):
            for ended in run(["train", str(file), *overrides(model, tmp_path / f"{what}-{n}", **chosen)]):
                assert ended.code == 0, ended.stderr
    one, two = tmp_path / "run-1", tmp_path / "run-2"
    assert distance(first_gradient(tmp_path / "first-2"), first_gradient(tmp_path / "first-1")) < 1e-6
    assert_same_curve(two, one)
    assert distance(weights(two), weights(one)) < ROUNDING
    states = [torch.load(last_checkpoint(out) / checkpoint.STATE, weights_only=False) for out in (one, two)]
    if "hadw" in name:
        anchors = [s["objective"]["difficulty"]["anchors"] for s in states]
        assert anchors[0] == anchors[1] != []
    assert states[0]["position"] == states[1]["position"]
    assert {p.relative_to(one) for p in one.rglob("*")} == {p.relative_to(two) for p in two.rglob("*")}


@pytest.mark.long
def test_torchrun(model, server, tmp_path):
    """The real one, in the way the documentation says."""
    file = tmp_path / "empty.toml"
    file.touch()
    options = OBJECTIVES["dapo+balanced+hadw"] | {"train__steps": 2}
    assert server.run(["train", str(file), *overrides(model, tmp_path / "one", **options)]).code == 0
    ended = server.run(
        ["train", str(file), *overrides(model, tmp_path / "two", **options)],
        torchrun=["--nproc-per-node", "2", "--master-port", free_port()],
    )
    assert ended.code == 0, ended.stderr
    assert_same_curve(tmp_path / "two", tmp_path / "one")
    assert ended.stdout.count("step    1/2") == 1  # one of the two talks
    assert "destroy_process_group" not in ended.stderr


def test_only_the_first_of_two_processes_writes(server, model, tmp_path):
    file = tmp_path / "empty.toml"
    file.touch()
    out = tmp_path / "run"
    arguments = ["train", str(file), *overrides(model, out, train__steps=2, log__rollouts_every=1)]
    traced = run_two(server, arguments)
    assert [ended.code for ended in traced] == [0, 0]
    assert traced[1].stdout == ""
    assert [r["step"] for r in metrics(out)] == [1, 2]
    assert [e["step"] for e in evaluations(out)] == [0, 2]
    assert RunFolder(out).path.joinpath(".lock").read_text() != ""


def test_two_processes_stop_after_the_same_step(server, model, tmp_path):
    """Ctrl-C may reach one of them in this step and the other in the next, or while it waits for the other."""
    file = tmp_path / "empty.toml"
    file.touch()
    out = tmp_path / "run"
    options = {"train__steps": 10_000, "train__checkpoint_every": 100_000, "eval__every": 0}
    children = start_two(server, ["train", str(file), *overrides(model, out, **options)])
    while len(metrics(out)) < 2:
        assert all(child.wait(0.01) is None for child in children), children[0].end()
    children[1].kill(signal.SIGINT)
    ended = [child.end() for child in children]
    assert [e.code for e in ended] == [130, 130]
    last = metrics(out)[-1]["step"]
    assert checkpoint.steps(RunFolder(out).checkpoints) == [last]
    assert f"stopped after step {last}" in ended[0].stderr


def test_more_processes_than_prompts_is_refused(server, model, tmp_path):
    file = tmp_path / "empty.toml"
    file.touch()
    for ended in run_two(server, ["train", str(file), *overrides(model, tmp_path / "run", rollout__prompts=1)]):
        assert ended.code == 1
        assert "rollout.prompts = 1: must be at least one for each of the 2 processes" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_a_share_is_contiguous_and_the_shares_are_the_whole(monkeypatch):
    for count in (1, 2, 3, 7):
        monkeypatch.setattr(ranks, "count", lambda count=count: count)
        for size in range(9):
            parts = []
            for me in range(count):
                monkeypatch.setattr(ranks, "me", lambda me=me: me)
                parts.append(list(ranks.share(range(size))))
            assert [x for part in parts for x in part] == list(range(size))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_gradients_of_processes_add_up_and_nothing_counts_as_zero(monkeypatch):
    a, b = torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(3))
    a.grad = torch.ones(2, 2)
    monkeypatch.setattr(ranks, "count", lambda: 2)
    other = torch.tensor([1.0, 2, 3, 4, 5, 6, 7])
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat: flat.add_(other))
    ranks.sum_gradients([a, b])
    assert a.grad.tolist() == [[2, 3], [4, 5]]
    assert b.grad.tolist() == [5, 6, 7]


def test_the_environment_of_one_process_starts_no_group():
    assert "WORLD_SIZE" not in os.environ
    ranks.start()
    assert not torch.distributed.is_initialized()
    assert (ranks.count(), ranks.me(), ranks.gather("x")) == (1, 0, ["x"])
