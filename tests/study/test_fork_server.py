"""Runs that are forked from one process: what they say, how they end, and what ends them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise import run_server
from equipoise.study import fork_server
from equipoise.study.fork_server import ForkServer
from equipoise.train import RunError
from equipoise.verifiers.workers.process_pool import RUNS_AT_ONCE


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fork_server, "GPU_DEVICES", ("/",))  # as where there is one: nothing is imported first
    server = ForkServer()
    yield server
    server.close()


def test_a_run_is_the_command_with_its_output_and_status(server, tmp_path):
    fine = server.start(["--version"], tmp_path / "fine")
    wrong = server.start(["doctor", "more"], tmp_path / "wrong")
    assert (fine.wait(), wrong.wait()) == (0, 2)
    assert (tmp_path / "fine").read_text().startswith("equipoise 1.")
    assert "unrecognized arguments: more" in (tmp_path / "wrong").read_text()
    fine.terminate()  # nothing to end: its number may be another's by now


def test_a_run_is_told_with_how_many_it_shares_the_cores(monkeypatch):
    asked, server = [], ForkServer()
    server.runs_at_once = 3
    monkeypatch.setattr(server, "ask", asked.append)
    server.start(["--version"], Path("log"))
    told = {}
    monkeypatch.setenv(RUNS_AT_ONCE, "1")
    monkeypatch.setattr(os, "fork", lambda: 0)  # this process is the run
    monkeypatch.setattr(run_server, "_be_the_run", lambda *_: told.update(os.environ))
    run_server._answer(asked[0], set())
    assert told[RUNS_AT_ONCE] == "3"


def test_a_server_that_was_killed_is_one_sentence(server, tmp_path):
    server.start(["--version"], tmp_path / "log").wait()
    server._process.kill()
    server._process.wait()
    with pytest.raises(RunError, match="the process that starts the runs was ended"):
        server.start(["--version"], tmp_path / "log")


def test_runs_are_asked_to_stop_when_their_caller_is_killed(tmp_path):
    """The run waits for somebody who reads its log."""
    caller = f"""
import os
from pathlib import Path
from equipoise import run_server
from equipoise.study import fork_server
fork_server.GPU_DEVICES = ("/",)
server = fork_server.ForkServer()
os.mkfifo({str(tmp_path / "log")!r})
run = server.start(["--version"], Path({str(tmp_path / "log")!r}))
print(run.pid, flush=True)
run.wait()
"""
    with subprocess.Popen([sys.executable, "-c", caller], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        process.kill()
    deadline = time.monotonic() + 300
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_run_whose_caller_did_not_wait_for_the_answer_is_stopped(tmp_path):
    """By a second Ctrl-C, say, while the server was still importing."""
    os.mkfifo(tmp_path / "never.toml")
    request = {"start": ["train", str(tmp_path / "never.toml")], "log": str(tmp_path / "log"), "runs_at_once": 1}
    command = [sys.executable, "-m", "equipoise.run_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        server.stdout.close()
        server.stdin.write(json.dumps([1, request]) + "\n")
        server.stdin.close()
        assert server.wait() == 0  # it waits for its runs, and this one would never end by itself


@pytest.mark.long  # imports everything in a new process
def test_nothing_has_threads_before_it_forks():
    """A thread does not survive a fork, and what it held stays locked."""
    modules = ", ".join(("equipoise.cli", *run_server.IMPORTED_FIRST))
    count = f"import os, {modules}; print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.check_output([sys.executable, "-c", count], env=environment, text=True)
    assert said.split()[-1] == "1"
