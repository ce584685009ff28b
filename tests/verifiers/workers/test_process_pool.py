"""The pool: whatever a worker does costs its own job and nothing else."""

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from equipoise.verifiers import Verdict
from equipoise.verifiers.workers import process_pool, worker
from equipoise.verifiers.workers.process_pool import Pool, PoolError, in_order

JOBS = "tests.verifiers.workers.pool_jobs"
ROOT = Path(__file__).parents[3]


def kinds(outcomes):
    return [o.kind if isinstance(o, Verdict) else o for o in outcomes]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def processes_under(pid: int) -> list[int]:
    """All living descendants, by the parents the kernel names."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        mine = children.get(left.pop(), [])
        found += mine
        left += mine
    return found


def until(condition) -> bool:
    """Whether it comes true, however busy the machine is: what was killed is not gone at once."""
    deadline = time.monotonic() + 300
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def deaf(pid: int) -> bool:
    """Whether it holds SIGTERM back."""
    (blocked,) = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(blocked, 16) >> (signal.SIGTERM - 1) & 1)


def running(words: str) -> list[str]:
    out = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if words in line and "ps -eo" not in line]


def test_results_come_in_the_order_of_the_jobs_at_any_concurrency():
    draw = random.Random(0)
    jobs = [(draw.randrange(1000), draw.choice((0, 0, 0.001, 0.01))) for _ in range(200)]
    expected = [("correct" if n % 2 else "wrong", str(n)) for n, _ in jobs]
    for workers in (1, 2, 16):
        with Pool(f"{JOBS}:parity", workers=workers) as p:
            outcomes = in_order([p.submit(*job, seconds=600) for job in jobs])
        assert [(o.kind, o.reason) for o in outcomes] == expected


@pytest.fixture(scope="module")
def one_worker():
    with Pool(f"{JOBS}:misbehave", workers=1, quiet=True) as p:
        yield p


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("hang", "timeout", "killed after 0.3 s"),
        ("sleep", "timeout", "killed after 0.3 s"),
        ("deaf", "timeout", "killed after 0.3 s"),
        ("child", "timeout", "killed after 0.3 s"),
        ("raise", "crashed", "LookupError: a \ud800 in the message"),
        ("quit", "crashed", "SystemExit: 0"),
        ("exit", "crashed", "ended with status 0"),
        ("segfault", "crashed", "SIGSEGV"),
        ("memory", "limit", "out of memory"),
        ("nan", "crashed", "a finite number"),
        ("none", "crashed", "gave None: must be a finite number"),
        ("much", "wrong", "xxx"),
        ("surrogate", "wrong", "\ud800\x00"),
    ],
)
def test_a_job_that_misbehaves_is_a_verdict_and_the_next_one_is_fine(one_worker, how, kind, words):
    patience = 0.3 if kind == "timeout" else 60
    mark = f"left-behind-by-{os.getpid()}"
    before, asked, after = (
        one_worker.submit(x, mark, seconds=seconds) for x, seconds in (("fine", 60), (how, patience), ("fine", 60))
    )
    verdict = asked.result(timeout=300)
    assert (before.result(), after.result(timeout=300)) == (0.5, 0.5)
    assert verdict.kind == kind
    assert words in verdict.reason
    assert len(verdict.reason) < 5000
    if kind == "timeout":
        assert 0.3 <= verdict.seconds < 100
    assert until(lambda: not running(mark))


def test_waiting_for_a_core_does_not_count(monkeypatch):
    """10 jobs of 0.1 s on the cores there are take longer than any one's deadline if all start at once."""
    monkeypatch.setattr(process_pool, "PATIENCE", 600)  # on the wall clock, which other load may use up
    with Pool(f"{JOBS}:spin", workers=10 * process_pool.cores()) as p:
        start = time.monotonic()
        outcomes = in_order([p.submit(0.1, seconds=0.5) for _ in range(10 * process_pool.cores())])
        assert time.monotonic() - start > 0.5
        if outcomes != [1.0] * len(outcomes):  # a machine that stood still for longer than the deadline
            outcomes = in_order([p.submit(0.1, seconds=0.5) for _ in range(10 * process_pool.cores())])
        assert outcomes == [1.0] * len(outcomes)


@pytest.mark.parametrize(("runnable", "used"), [(True, 0.1), (False, 2.0)])
def test_a_wait_that_has_not_ended_does_not_count(monkeypatch, runnable, used):
    """3 s after its start it has run 0.1 s and waited 1 s, by the system's count,
    which has the wait of a runnable worker only when it ends.
    """
    monkeypatch.setattr(process_pool, "is_runnable", lambda pid: runnable)
    monkeypatch.setattr(process_pool, "_ran_and_waited", lambda pid: (5.1, 8.0))
    with socket.socket() as channel:
        worker = process_pool._Worker(pid=0, channel=channel, started=100.0, ran=5.0, waited=7.0)
        assert process_pool._used(worker, now=103.0) == pytest.approx(used)


def test_a_job_too_long_to_send_is_a_limit(monkeypatch):
    monkeypatch.setattr(process_pool, "LONGEST_JOB", 100)
    with Pool("builtins:len", workers=1) as pool:
        found = pool.submit("x" * 100, seconds=1.0).result()
    assert found == Verdict("limit", "104 bytes to verify: must be at most 100")


def test_a_total_budget_ends_what_has_not_begun_and_what_runs():
    with Pool(f"{JOBS}:misbehave", workers=1) as p:
        start = time.monotonic()
        within, over = start + 300, start + 0.2  # the one that sleeps begins before or after, and ends after it
        budgets = [("fine", 60, within), ("sleep", 0.5, over), ("fine", 60, over), ("fine", 60, over)]
        outcomes = in_order([p.submit(how, seconds=seconds, expires=end) for how, seconds, end in budgets])
        assert time.monotonic() - start < 300  # of 3600
    assert kinds(outcomes) == [0.5, "timeout", "timeout", "timeout"]
    assert "total budget" in outcomes[3].reason


@pytest.mark.parametrize("valid", [False, True])
def test_a_worker_that_writes_what_it_likes_breaks_nothing(valid):
    with Pool(f"{JOBS}:babble", workers=2, quiet=True) as p:
        outcomes = in_order([p.submit(seed, valid, seconds=600) for seed in range(60)])
        assert set(kinds(outcomes)) == {"crashed"}


def test_a_reply_without_the_ticket_of_its_job_is_no_verdict():
    with Pool(f"{JOBS}:forge", workers=1, quiet=True) as p:
        forged = p.submit("now", seconds=600).result()
        assert (forged.kind, forged.value) == ("crashed", None)
        assert "not the reply to this job" in forged.reason


def test_what_a_job_leaves_running_cannot_answer_the_next_one():
    with Pool(f"{JOBS}:forge", workers=1, quiet=True) as p:
        first, second, third = (p.submit(how, seconds=60) for how in ("later", "honest", "none"))
        assert first.result() == 0.0
        assert second.result().kind == "crashed"
        assert third.result() == 0.0


def test_descriptors_and_processes_do_not_grow():
    with Pool(f"{JOBS}:misbehave", workers=2, quiet=True) as p:
        before = open_descriptors()
        others = set(processes_under(os.getpid()))  # pools that other tests left open
        for _ in range(3):
            in_order([p.submit(how, seconds=60) for how in ("exit", "segfault", "fine", "raise") * 8])
            assert open_descriptors() <= before + 4  # the selector, the fork server's socket, two workers' channels
            assert len(set(processes_under(os.getpid())) - others) <= 3  # the fork server and two workers
    assert until(lambda: set(processes_under(os.getpid())) <= others)


def test_a_worker_is_replaced_after_its_share_of_jobs(monkeypatch):
    monkeypatch.setattr(process_pool, "RECYCLE", 10)
    with Pool(f"{JOBS}:echo", workers=1) as p:
        assert in_order([p.submit(float(i), seconds=600) for i in range(35)]) == [float(i) for i in range(35)]
        assert [w.jobs for w in p._idle] == [5]


def test_the_pool_survives_the_death_of_its_fork_server():
    with Pool(f"{JOBS}:echo", workers=2) as p:
        assert p.submit(1.0, seconds=600).result() == 1.0
        workers = processes_under(p._fork_server.pid)
        os.kill(p._fork_server.pid, signal.SIGKILL)
        assert until(lambda: not any(map(alive, workers)))
        assert in_order([p.submit(float(i), seconds=600) for i in range(20)]) == [float(i) for i in range(20)]


def test_nobody_is_left_when_the_caller_is_killed():
    script = (
        "import time\nfrom equipoise.verifiers.workers.process_pool import Pool\n"
        f"p = Pool('{JOBS}:misbehave', workers=2)\n[p.submit('deaf', seconds=600) for _ in range(2)]\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    caller = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    assert caller.stdout.readline() == "ready\n"
    assert until(lambda: sum(map(deaf, processes_under(caller.pid))) == 2)
    below = processes_under(caller.pid)
    assert len(below) == 3
    caller.kill()
    caller.communicate()
    assert until(lambda: not [pid for pid in below if Path(f"/proc/{pid}").exists()])


def test_submitting_waits_while_too_much_is_unfinished(monkeypatch):
    monkeypatch.setattr(process_pool, "DEPTH", 4)
    with Pool(f"{JOBS}:parity", workers=1) as p:
        futures = []

        def produce() -> None:
            futures.extend(p.submit(i, 0.05, seconds=600) for i in range(12))

        producer = threading.Thread(target=produce)
        producer.start()
        most = 0
        while producer.is_alive():
            most = max(most, sum(not f.done() for f in list(futures)))
            time.sleep(0.005)
        assert [o.reason for o in in_order(futures)] == [str(i) for i in range(12)]
    assert most <= 4


def test_a_target_that_cannot_be_imported_is_a_sentence():
    with Pool(f"{JOBS}:nothing", workers=1) as p:
        verdict = p.submit(seconds=600).result()
    assert verdict.kind == "crashed"
    assert f"{JOBS}:nothing cannot be imported: AttributeError" in verdict.reason


def test_a_pool_that_cannot_start_says_so_to_everyone_waiting(monkeypatch):
    monkeypatch.setattr(process_pool, "BOOT", "raise SystemExit(3)")
    p = Pool(f"{JOBS}:echo")
    with pytest.raises(PoolError, match="cannot be started"):
        p.submit(1.0, seconds=600).result(timeout=300)
    p._thread.join()
    with pytest.raises(PoolError, match="cannot be started"):
        p.submit(1.0, seconds=600)
    p.close()


def test_closing_cancels_what_is_left_and_refuses_more():
    others = set(processes_under(os.getpid()))
    p = Pool(f"{JOBS}:misbehave", workers=1)
    jobs = [p.submit("sleep", seconds=600) for _ in range(3)]
    assert until(lambda: len(set(processes_under(os.getpid())) - others) == 2)  # the fork server and the worker
    p.close()
    assert all(job.cancelled() for job in jobs)
    with pytest.raises(ValueError, match="closed"):
        p.submit("fine", seconds=1)
    assert until(lambda: set(processes_under(os.getpid())) <= others)


def test_a_fork_server_whose_caller_has_ended_says_nothing(capfd):
    ours, theirs = socket.socketpair()
    ours.close()
    assert worker.main(theirs, {"preload": []}) is None
    assert capfd.readouterr() == ("", "")


def test_a_caller_that_leaves_answers_unread_ends_a_worker_without_an_error():
    """As one that is interrupted twice: what it closes is reset, where it was not read to its end."""
    caller, channel = socket.socketpair()
    caller.sendall(worker.frame(bytes(worker.TICKET) + b"[1]"))
    answered = threading.Event()

    def work(number):
        answered.set()
        return float(number)

    serving = threading.Thread(target=worker.serve, args=(channel, work))
    errors = []
    before, threading.excepthook = threading.excepthook, lambda args: errors.append(args.exc_type)
    try:
        serving.start()
        assert answered.wait(600)
        while not channel_has_answered(caller):
            time.sleep(0.001)
        caller.close()
        serving.join(600)
    finally:
        threading.excepthook = before
    assert not serving.is_alive()
    assert errors == []


def channel_has_answered(caller) -> bool:
    return bool(select.select([caller], [], [], 0)[0])


@pytest.mark.parametrize(("ranks", "runs", "share"), [(1, 1, 16), (1, 3, 5), (2, 4, 2), (1, 40, 1)])
def test_runs_and_ranks_on_one_machine_share_its_cores(ranks, runs, share, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv(process_pool.RUNS_AT_ONCE, str(runs))
    assert process_pool.cores() == share
