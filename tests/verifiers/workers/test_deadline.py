"""Deadlines: what the processes use counts, what the machine makes them wait does not."""

import os
import subprocess
import sys
import time

import pytest

from equipoise.verifiers import grade
from equipoise.verifiers.code import cgroups, judge, sandbox
from equipoise.verifiers.code.sandbox import Limits
from equipoise.verifiers.verdict import Verdict
from equipoise.verifiers.workers import deadline
from equipoise.verifiers.workers.deadline import PATIENCE, Deadline, _children, _used

SPIN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\nprint(1)"


def start(source):
    return subprocess.Popen([sys.executable, "-c", source])


def until(deadline, most=600):
    began = time.monotonic()
    while not deadline.passed() and time.monotonic() - began < most:
        time.sleep(max(0.0, min(deadline.left(), 0.05)))
    return time.monotonic() - began


def test_without_processes_it_is_the_wall_clock():
    assert 0.2 <= until(Deadline(0.2)) < 300


def test_sleeping_counts():
    with start("import time; time.sleep(600)") as process:
        took = until(Deadline(1.0, (process.pid,)))
        process.kill()
    assert 0.9 <= took < 300


def test_children_are_found_without_the_kernels_list(monkeypatch):
    """Not every kernel has /proc/PID/task/TID/children; the parents of all processes say the same."""
    pid = os.getpid()
    with start("import time; time.sleep(60)") as process:
        try:
            listed = _children(pid, str(pid))
            read = deadline._read

            def without(path):
                if path.endswith("/children"):
                    raise FileNotFoundError(path)
                return read(path)

            monkeypatch.setattr(deadline, "_read", without)
            assert process.pid in listed
            assert set(listed) <= set(_children(pid, str(pid)))
        finally:
            process.kill()


def test_what_used_more_than_it_had_is_known_afterwards():
    spent = Deadline(0.01, (os.getpid(),))
    until_used = time.process_time() + 0.1
    while time.process_time() < until_used:
        pass
    assert spent.overspent()
    assert not Deadline(60.0, (os.getpid(),)).overspent()


def test_what_has_passed_stays_passed(monkeypatch):
    """A look at a moment when a process is runnable says less than the one before."""
    used = [(0.0, 0.0, False), (0.0, 0.0, False), (0.0, 0.0, True)]
    monkeypatch.setattr(deadline, "_used", lambda *_: used.pop(0))
    inner = Deadline(0.01, (1,))
    time.sleep(0.05)
    assert inner.passed()
    assert inner.passed()
    assert len(used) == 1


def test_a_cgroup_counts_what_no_process_does(tmp_path):
    """Children that the kernel reaped are in no parent's time."""
    for text in ("9000000000\n", "usage_usec 9000000\nuser_usec 1\n"):  # versions 1 and 2
        (tmp_path / "counter").write_text(text)
        assert _used((), (str(tmp_path / "counter"),))[0] == 9.0
    spent = Deadline(0.001, (os.getpid(),), (str(tmp_path / "counter"),))
    (tmp_path / "counter").write_text("99000000000000000\n")  # more than this process ever had
    time.sleep(0.01)
    assert spent.passed()
    assert spent.overspent()
    for text in ("", "nr_periods 3\n"):
        (tmp_path / "counter").write_text(text)
        assert _used((), (str(tmp_path / "counter"),))[0] == 0.0


def test_the_counter_of_a_cgroup_has_children_that_nobody_waited_for():
    with cgroups.bounded({"memory": 1 << 40, "pids": 1000}) as made:
        if not (counters := cgroups.counters(made)):
            pytest.skip("no cgroup that counts can be made here")
        unseen = "import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\ninput()\n"
        unseen += "if os.fork() == 0:\n    while time.process_time() < 0.5: pass\n    os._exit(0)\n"
        unseen += "try: os.wait()\nexcept OSError: print(flush=True)\ninput()"
        command = [sys.executable, "-c", "import time\n" + unseen]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            cgroups.join(made, process.pid)
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.read(1)
            assert _used((process.pid,))[0] < 0.4
            assert _used((process.pid,), counters)[0] >= 0.5
            process.kill()


@pytest.fixture
def patient(monkeypatch):
    """Any load leaves a deadline its CPU time: no bound on the wall clock is met first."""
    monkeypatch.setattr(deadline, "PATIENCE", 600)


@pytest.mark.usefixtures("patient")
def test_cpu_time_of_processes_together_counts():
    with start(f"import os\nos.fork()\n{SPIN.format(600)}") as process:
        deadline = Deadline(1.0, (process.pid,))
        until(deadline)
        cpu, _, _ = _used((process.pid,))
        for child in _children(process.pid, str(process.pid)):
            os.kill(child, 9)
        process.kill()
    assert 0.8 <= cpu < 300  # of 1200


def test_waiting_for_a_core_is_free_up_to_a_bound():
    """Many that want the core one of them has: its deadline of CPU time outlasts the same on the wall clock."""
    core = min(os.sched_getaffinity(0))
    pinned = f"import os\nos.sched_setaffinity(0, [{core}])\n"
    others = [start(pinned + SPIN.format(600)) for _ in range(3)]
    with start(pinned + SPIN.format(600)) as process:
        took = until(Deadline(0.5, (process.pid,)))
        process.kill()
    for other in others:
        other.kill()
        other.wait()
    assert 1.0 < took < 0.5 * PATIENCE + 300  # of 600


ROW = {"inputs": ["\n"], "outputs": ["1\n"]}
needs_sandbox = pytest.mark.skipif(sandbox.available() is not None, reason=str(sandbox.available()))


@pytest.mark.long
@needs_sandbox
@pytest.mark.usefixtures("patient")
def test_a_program_is_judged_alike_alone_and_in_a_crowd():
    """Six at once, each with most of its time in CPU: on the wall clock all of them would be late."""
    responses = [f"```python\n{SPIN.format(0.5)}\n# {k}\n```" for k in range(6)]
    futures = [grade.submit_code(response, ROW, Limits(seconds=1.0, total_seconds=5)) for response in responses]
    assert [future.result().kind for future in futures] == ["correct"] * 6


@needs_sandbox
@pytest.mark.usefixtures("patient")
def test_the_cpu_time_of_a_program_is_that_of_all_its_processes():
    limits = Limits(seconds=0.5, total_seconds=5)
    late = judge.judge(f"```python\n{SPIN.format(3)}\n```", judge.tests(ROW), limits)
    assert late.kind == "timeout"
    workers = "import os\nchildren = [os.fork() for _ in range(1)]\n" + SPIN.format(0.4) + "\nos.wait()"
    both = judge.judge(f"```python\n{workers}\n```", judge.tests({**ROW, "outputs": ["1\n1\n"]}), limits)
    assert both.kind != "correct"  # 0.8 seconds of CPU, whether or not there are two cores


@pytest.mark.parametrize("kind", ["timeout", "crashed", "unavailable", "wrong", "limit"])
def test_what_may_be_another_verdict_the_next_time_is_not_kept(kind):
    asked = []

    def verdict():
        asked.append(1)
        return grade._done(Verdict(kind))

    for _ in range(3):
        grade._once(("test", kind), verdict)
    grade.forget()
    assert len(asked) == (3 if kind in ("timeout", "crashed", "unavailable") else 1)
