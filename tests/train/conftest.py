import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from equipoise.train import Trainer

from . import fork_server
from .tiny import make_model, overrides, settings

ROOT = Path(__file__).resolve().parents[2]
# Without a GPU: a process that has used one cannot be forked.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
PATIENCE = 600.0


@dataclass
class Ended:
    code: int
    stdout: str
    stderr: str


class Forked:
    """fork_server.py as a child of this process, in place of one that imports everything again."""

    def __init__(self) -> None:
        (theirs, to), (back, theirs_back) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for end in (to, back):
                os.close(end)
            self._serve(theirs, theirs_back)
        for end in (theirs, theirs_back):
            os.close(end)
        self.stdin, self.stdout = os.fdopen(to, "w"), os.fdopen(back)

    @staticmethod
    def _serve(requests: int, answers: int) -> NoReturn:
        try:
            os.chdir(ROOT)
            os.environ.update(ENVIRONMENT)
            with os.fdopen(requests) as asked, os.fdopen(answers, "w") as answered:
                fork_server.serve(asked, answered)
        finally:
            os._exit(0)  # what the tests' process would do at its end is not ours to do

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def spawned() -> subprocess.Popen:
    program = [sys.executable, "-m", "tests.train.fork_server"]
    return subprocess.Popen(
        program, cwd=ROOT, env=ENVIRONMENT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


STARTED = pytest.StashKey[Forked]()


def pytest_collection_finish(session) -> None:
    needed = any("server" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not torch.cuda.is_available() and not session.config.option.collectonly:
        session.config.stash[STARTED] = Forked()


class Server:
    """The test's end of fork_server.py."""

    def __init__(self, folder: Path, process: Forked | subprocess.Popen) -> None:
        self.folder, self.started, self.process = folder, 0, process

    def _ask(self, request: dict):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def next_out(self) -> str:
        """Where the next child's .stdout and .stderr go."""
        self.started += 1
        return str(self.folder / str(self.started))

    def start(self, arguments: list[str], environment: dict[str, str] | None = None, **more) -> "Child":
        """`more`: die_at, torchrun."""
        out = more.pop("out", None) or self.next_out()
        request = {"start": arguments, "environment": environment or {}, "out": out, **more}
        return Child(self, self._ask(request), out)

    def run(self, arguments: list[str], **more) -> Ended:
        return self.start(arguments, **more).end()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Child:
    server: Server
    pid: int
    out: str
    code: int | None = None

    def wait(self, timeout: float) -> int | None:
        """The exit code (−signal for one killed), or None if it still runs after `timeout` seconds."""
        if self.code is None:
            self.code = self.server._ask({"wait": self.pid, "timeout": timeout})
        return self.code

    def kill(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def end(self) -> Ended:
        code = self.wait(PATIENCE)
        assert code is not None, f"still running after {PATIENCE} s"
        return Ended(code, Path(self.out + ".stdout").read_text(), Path(self.out + ".stderr").read_text())


@pytest.fixture(scope="session")
def server(tmp_path_factory, pytestconfig):
    server = Server(tmp_path_factory.mktemp("server"), pytestconfig.stash.get(STARTED, None) or spawned())
    yield server
    server.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def train(equipoise, model, tmp_path):
    """Run `equipoise train` on a tiny configuration: train("--resume", train__steps=3)."""
    file = tmp_path / "empty.toml"
    file.write_text("")

    def run(*flags: str, out: Path = tmp_path / "run", **options) -> Ended:
        return Ended(*equipoise("train", file, *flags, *overrides(model, out, **options)))

    return run


@pytest.fixture(autouse=True)
def _same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(model, tmp_path):
    """Train a tiny run to its end, without an evaluation unless asked for one, and give back the trainer; its metrics
    are in `tmp_path / name`.
    """

    def go(name: str = "run", **options) -> Trainer:
        trainer = Trainer(settings(model, tmp_path / name, **{"log__terminal": False, "eval__every": 0} | options))
        trainer.run()
        return trainer

    return go


@pytest.fixture
def trainer(model, tmp_path):
    made = []

    def make(**options) -> Trainer:
        quiet = {"log__terminal": False, "eval__every": 0}
        made.append(Trainer(settings(model, tmp_path / str(len(made)), **quiet | options)))
        return made[-1]

    yield make
    for t in made:
        t.folder.unlock()
