"""A run asks no network: it trains, evaluates and reports with sockets to the outside refused in every Python process.

A hook sees each address that a Python process looks up, connects or binds to, in the trainer and in its workers; pairs
of sockets between a process and its own children have none. Not seen: what a compiled library does behind Python's
back, and workers started without the environment (the sandbox's guests, which have no network at all).
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HOOK = """
    import os, sys

    REFUSED = {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}

    def watch(event, arguments):
        if event in REFUSED:
            with open(os.environ["ASKED"], "a") as log:
                print(event, arguments[-1] if event != "socket.getaddrinfo" else arguments[0], file=log)
            raise OSError(f"{event}: this test refuses the network")

    sys.addaudithook(watch)
    with open(os.environ["STARTED"], "a") as log:
        print(os.getpid(), file=log)
"""
RUN = """
    import sys
    from equipoise.cli import main

    out = sys.argv[1]
    tiny = ["--train.steps", "1", "--rollout.prompts", "2", "--rollout.group_size", "2", "--rollout.max_tokens", "8",
            "--eval.per_level", "1", "--eval.samples", "2", "--train.threads", "1", "--model.device", "cpu"]
    main(["train", "run.toml", "--train.out", out, *tiny])
    main(["report", out])
"""


@pytest.fixture
def environment(tmp_path):
    """Python processes load the hook when they start, because it is called sitecustomize."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(textwrap.dedent(HOOK))
    path = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    offline = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    files = {"ASKED": str(tmp_path / "asked"), "STARTED": str(tmp_path / "started")}
    return offline | files | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def run(code, environment, folder, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    piped = {"capture_output": True, "text": True}
    return subprocess.run(command, env=environment, cwd=folder, timeout=600, check=False, **piped)


def test_the_hook_sees_and_refuses_a_connection(environment, tmp_path):
    code = "import socket; socket.create_connection(('127.0.0.1', 9))"
    ran = run(code, environment, tmp_path)
    assert "this test refuses the network" in ran.stderr
    assert Path(environment["ASKED"]).read_text() == "socket.getaddrinfo 127.0.0.1\n"


@pytest.mark.long
def test_a_run_asks_no_network(environment, tmp_path):
    """With rows from a file, graded by the math rules and by a function in worker processes."""
    rows = [{"prompt": f"{k}+1=", "answer": f"{k + 1}"} for k in range(10, 42)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text("def short(prompt, response, row):\n    return 1 / (1 + len(response))\n")
    (tmp_path / "run.toml").write_text(
        '[task]\nname = "rows.jsonl"\n[reward]\nfunctions = ["task", "own.py:short"]\nweights = [1.0, 0.1]\n'
    )
    ran = run(RUN, environment, tmp_path, tmp_path / "run")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "report.html").exists()
    started = set(Path(environment["STARTED"]).read_text().split())
    assert len(started) > 1  # the trainer and a worker, or the server that forks workers
    assert not Path(environment["ASKED"]).exists()
