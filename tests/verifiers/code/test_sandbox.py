"""The sandbox: what it leaves behind (nothing), who can use it, and that load does not change a verdict."""

import ast
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.verifiers.code import cgroups, fork_guest, fork_server, guest, judge, sandbox
from tests.verifiers.code.test_attacks import SYSTEM_CALLS

TESTS = judge.Programs((("3 4\n", "7\n"),))
HONEST = "a, b = map(int, input().split())\nprint(a + b)\n"
CALLS = judge.Calls("add", (((3, 4), 7),))
ASSERTS = judge.tests({"test_list": ["assert add(3, 4) == 7"]})


needs_sandbox = pytest.mark.usefixtures("sandboxed")

# One of each kind of ending, with the verdict it must have whatever else the machine is doing.
ENDINGS = [
    (HONEST, TESTS, "correct"),
    ("def add(a, b): return a + b", CALLS, "correct"),
    ("def add(a, b): return a + b", ASSERTS, "correct"),
    ("print(8)", TESTS, "wrong"),
    ("def add(a, b): return a - b", ASSERTS, "wrong"),
    ("import ctypes\nctypes.string_at(0)", TESTS, "crashed"),
    ("import os\ndef add(a, b): os._exit(0)", CALLS, "crashed"),
    ("x = bytearray(64 << 30)", TESTS, "limit"),
    ("import os\nwhile True: os.fork()", TESTS, "limit"),
    ("while True: print('x' * 65536)", TESTS, "limit"),
    ("I think it is seven.", TESTS, "unparsed"),
]


def kinds(repeats, workers, limits=sandbox.Limits(seconds=60, total_seconds=120)):  # noqa: B008 (frozen)
    with ThreadPoolExecutor(workers) as pool:
        found = [pool.submit(judge.judge, source, tests, limits) for source, tests, _ in ENDINGS * repeats]
        return [future.result().kind for future in found]


def expected(repeats):
    return [kind for _, _, kind in ENDINGS * repeats]


def remains():
    """What a verdict could leave: children, descriptors, temporary files, cgroups."""
    gc.collect()  # what earlier tests left to be collected is not ours to count
    fork_server.close()  # they stay for the next verdict
    ours = [str(child) for folder, _ in cgroups.folders() for child in folder.glob(f"equipoise-{os.getpid()}-*")]
    tasks = Path("/proc/self/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    temporary = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("equipoise-")]
    return {
        "children": children,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "temporary": sorted(temporary),
        "cgroups": ours,
    }


@pytest.fixture
def own_temporary_folder(tmp_path, monkeypatch):
    """Where another process of the test run puts nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def assert_nothing_is_left_behind(verdicts):
    limits = sandbox.Limits(output_bytes=1 << 16, disk_bytes=1 << 20)
    judge.judge(HONEST, TESTS)
    before = remains()
    for i in range(verdicts):
        source, tests, kind = ENDINGS[i % len(ENDINGS)]
        verdict = judge.judge(source, tests, limits)
        assert verdict.kind == kind, verdict.reason
    assert_no_more_than(before)


def more_than(before, now):
    lists = before.keys() - {"descriptors"}
    return now["descriptors"] > before["descriptors"] or any(set(now[kind]) - set(before[kind]) for kind in lists)


def assert_no_more_than(before):
    """Less may be there: what an earlier test left can have ended meanwhile. What was killed is not gone at once."""
    deadline = time.monotonic() + 300
    while more_than(before, now := remains()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert now.pop("descriptors") <= before["descriptors"]
    for kind, names in now.items():
        assert set(names) <= set(before[kind])


@needs_sandbox
@pytest.mark.usefixtures("own_temporary_folder")
def test_verdicts_leave_nothing_behind():
    assert_nothing_is_left_behind(3 * len(ENDINGS))


@pytest.mark.slow
@needs_sandbox
@pytest.mark.usefixtures("own_temporary_folder")
def test_10000_verdicts_leave_nothing_behind():
    assert_nothing_is_left_behind(10_000)


@needs_sandbox
def test_verdicts_are_the_same_at_concurrency_1_and_8():
    assert kinds(1, 1) == expected(1)
    assert kinds(2, 8) == expected(2)


@pytest.mark.slow
@needs_sandbox
def test_verdicts_are_the_same_at_concurrency_64():
    assert kinds(24, 64) == expected(24)


@pytest.mark.slow
@needs_sandbox
def test_verdicts_are_the_same_over_100_repeats():
    assert kinds(100, 2) == expected(100)


@needs_sandbox
def test_a_timeout_at_any_load_is_a_timeout():
    limits = sandbox.Limits(seconds=1, total_seconds=2)
    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(judge.judge, "import time\ntime.sleep(60)", TESTS, limits) for _ in range(6)]
        assert {future.result().kind for future in found} == {"timeout"}


@needs_sandbox
def test_a_program_has_three_descriptors_and_no_environment_of_ours(monkeypatch):
    monkeypatch.setenv("EQUIPOISE_SECRET", "planted")
    source = (
        "import os\nopened = []\nfor fd in range(1024):\n    try: os.fstat(fd); opened.append(fd)\n"
        "    except OSError: pass\nassert opened == [0, 1, 2], opened\n"
        "ours = {'HOME', 'LC_CTYPE', 'LD_LIBRARY_PATH', 'MALLOC_ARENA_MAX', 'PWD', 'PYTHONHASHSEED', 'PYTHONUTF8'}\n"
        "assert set(os.environ) <= ours, os.environ\n"
    )
    verdict = judge.judge(source + HONEST, TESTS)
    assert verdict.kind == "correct", verdict.reason
    as_function = source.replace("[0, 1, 2]", "[0, 1, 2, 3, 4]") + "def add(a, b): return a + b"  # and the channel
    verdict = judge.judge(as_function, CALLS)
    assert verdict.kind == "correct", verdict.reason


@needs_sandbox
def test_the_namespace_dies_with_a_killed_worker(tmp_path):
    """Killed at the worst moment, in the middle of a call: nothing runs on, and the next process tidies up."""
    worker = (
        "import sys\nfrom equipoise.verifiers.code import judge, sandbox\nfound = sandbox._pid\n"
        "def pid(handle):\n    first = found(handle)\n    print(first, flush=True)\n    return first\n"
        "sandbox.available()\nsandbox._pid = pid\n"
        "tests = judge.tests({'test_list': ['assert f(1)', 'import time; time.sleep(600)']})\n"
        "judge.judge('def f(x): return x', tests, sandbox.Limits(seconds=600, total_seconds=600))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, text=True, env=os.environ)
    first = [int(process.stdout.readline()) for _ in range(2)]  # the response's and the referee's
    time.sleep(0.5)
    assert all(Path(f"/proc/{pid}").exists() for pid in first)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 300
    while any(alive(pid) for pid in first) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in first)
    cgroups.folders.cache_clear()
    assert not [c for folder, _ in cgroups.folders() for c in folder.glob(f"equipoise-{process.pid}-*")]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_sandbox
def test_memory_is_bounded_for_all_processes_together_where_there_are_cgroups():
    if not any("memory" in bounds for _, bounds in cgroups.folders()):
        pytest.skip("no memory cgroup can be made here")
    source = (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(b'x') * (100 << 20)\n"
        "        time.sleep(600)\nkilled = sum(os.wait()[1] == 9 for _ in range(4))\n"
        "print(7 if killed == 4 else killed)"
    )
    limits = sandbox.Limits(memory_bytes=200 << 20, disk_bytes=1 << 20, output_bytes=1 << 20)
    verdict = judge.judge(source, TESTS, limits)
    assert verdict.kind == "correct", verdict.reason


# a program is one of the ten it may have
COUNT_FORKS = (
    "import os, signal\nn = 0\ntry:\n    while n < 100:\n        if os.fork() == 0: signal.pause()\n        n += 1\n"
    "except OSError:\n    pass\nprint(7 if n == 9 else n)"
)


@needs_sandbox
def test_the_limit_of_processes_binds_whoever_starts_the_sandbox():
    verdict = judge.judge(COUNT_FORKS, TESTS, sandbox.Limits(processes=10))
    assert verdict.kind == "correct", verdict.reason


def ordinary_python():
    """An interpreter that a user without rights can start."""
    for name in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", name]
        ask = (
            "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.access(os.path.realpath(sys.executable), 1))"
        )
        if shutil.which("setpriv") and subprocess.run([*as_nobody, "-c", ask], capture_output=True).returncode == 0:
            return as_nobody
    return None


RESIDENT_WORK = """
import os, socket
def warm(): pass
def answer(request):
    attempts = {b"file": lambda: os.write(os.open("/tmp/x", 65), b"x"), b"fork": os.fork, b"socket": socket.socket}
    if request == b"uid": return str(os.getuid())
    try:
        attempts[request]()
    except OSError:
        return "refused"
    return "done"
"""


@needs_sandbox
def test_an_ordinary_user_gets_the_same_verdicts():
    if os.geteuid() != 0:
        pytest.skip("every other test here ran as an ordinary user")
    if (python := ordinary_python()) is None:
        pytest.skip("no interpreter that an ordinary user can start")
    called = [(TESTS, "tests"), (CALLS, "calls"), (ASSERTS, "asserts")]
    endings = [*ENDINGS, (SYSTEM_CALLS + HONEST, TESTS, "correct"), (COUNT_FORKS, TESTS, "correct")]
    cases = [(source, next(name for t, name in called if t is tests), kind) for source, tests, kind in endings]
    script = (
        "import os\nfrom equipoise.verifiers.code import judge, sandbox\nassert os.getuid() == 65534\n"
        "assert sandbox.available() is None, sandbox.available()\n"
        f"assert sandbox.can_fork() == {sandbox.can_fork()}\n"
        "tests = judge.Programs((('3 4\\n', '7\\n'),))\ncalls = judge.Calls('add', (((3, 4), 7),))\n"
        "asserts = judge.tests({'test_list': ['assert add(3, 4) == 7']})\nnames = globals()\n"
        "limits = sandbox.Limits(processes=10)\n"
        f"for source, which, kind in {cases}:\n    verdict = judge.judge(source, names[which], limits)\n"
        "    assert verdict.kind == kind, (source, verdict)\n"
        "from equipoise.verifiers.code.resident import Resident\nimport sys\n"
        "there = Resident(sys.path[1] + '/work.py', ())\n"
        "for what in (b'file', b'fork', b'socket'):\n    assert there.ask(what, 5.0) == 'refused', what\n"
        "assert there.ask(b'uid', 5.0) == '65534'\nthere.close()\nprint('same')"
    )
    with tempfile.TemporaryDirectory() as folder:  # the checkout may lie where only root can read
        packages = Path(folder, "equipoise")
        (packages / "verifiers").mkdir(parents=True)
        (packages / "__init__.py").touch()
        (packages / "verifiers" / "__init__.py").touch()
        Path(folder, "work.py").write_text(RESIDENT_WORK)
        verifiers = Path(judge.__file__).parents[1]
        shutil.copytree(verifiers / "code", packages / "verifiers" / "code")
        (packages / "verifiers" / "workers").mkdir()
        for module in ("verdict.py", "workers/__init__.py", "workers/deadline.py", "workers/worker.py"):
            shutil.copy(verifiers / module, packages / "verifiers" / module)
        for path in [Path(folder), *Path(folder).rglob("*")]:
            path.chmod(0o755)
        environment = {"PYTHONPATH": folder, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*python, "-c", script]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=600)
    assert run.stdout.strip() == "same", run.stderr


@pytest.mark.usefixtures("own_temporary_folder")
def test_unsafe_only_where_asked_for_and_still_bounded(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap
    monkeypatch.setenv("EQUIPOISE_SECRET", "planted")
    sandbox.forget()
    try:
        unsafe = sandbox.Limits(allow_unsafe=True)
        assert judge.judge(HONEST, TESTS).kind == "unavailable"
        before = remains()
        assert judge.judge(HONEST, TESTS, unsafe).kind == "correct"
        assert judge.judge("def add(a, b): return a + b", CALLS, unsafe).kind == "correct"
        assert judge.judge("def add(a, b): return a + b", ASSERTS, unsafe).kind == "correct"
        assert (
            judge.judge("import os\nprint(7 if 'EQUIPOISE_SECRET' in os.environ else 0)", TESTS, unsafe).kind == "wrong"
        )
        assert judge.judge("x = bytearray(64 << 30)", TESTS, unsafe).kind == "limit"
        assert judge.judge("while True: print('x' * 65536)", TESTS, unsafe).kind == "limit"
        assert judge.judge("while True: pass", TESTS, replace(unsafe, seconds=0.5)).kind == "timeout"
        liar = "class Liar(int):\n    __eq__ = lambda *_: True\ndef add(a, b): return Liar(0)"
        assert judge.judge(liar, ASSERTS, unsafe).kind == "wrong"
        assert_no_more_than(before)
    finally:
        sandbox.forget()


# Notes its processes in the file NOTED; `daemon` starts one in a session of its own, whose parent has ended.
NOTING = """
import os, signal, time
def note():
    with open(NOTED, 'a') as file: file.write(f'{os.getpid()}\\n')
def daemon():
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note()
            os.close(write)
            time.sleep(600)
        os._exit(0)
    os.close(write)
    os.read(read, 1)
note()
"""
OUTLIVING = {
    "asleep": ("time.sleep(600)", TESTS, "timeout"),
    "a daemon, asleep": ("daemon()\ntime.sleep(600)", TESTS, "timeout"),
    "a daemon of a daemon": ("if os.fork() == 0:\n    os.setsid()\n    daemon()\ntime.sleep(600)", TESTS, "timeout"),
    "a daemon, left": ("daemon()\nprint(7)", TESTS, "correct"),
    "a daemon of each test": ("daemon()\nprint(7)", judge.Programs((("", "7"), ("", "7"))), "correct"),
    "a daemon of a function": ("def add(a, b):\n    daemon()\n    return a + b", CALLS, "correct"),
    "a daemon of a function that ends": ("def add(a, b):\n    daemon()\n    os._exit(0)", CALLS, "crashed"),
    "a daemon of a function in tests": ("def add(a, b):\n    daemon()\n    time.sleep(600)", ASSERTS, "timeout"),
    "who watches it is stopped": ("daemon()\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)", TESTS, "timeout"),
}  # fmt: skip


@pytest.mark.parametrize("left", OUTLIVING)
def test_without_a_sandbox_too_nothing_outlives_its_verdict(left, monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "available", lambda: "not asked for here")
    source, tests, kind = OUTLIVING[left]
    noted = tmp_path / "noted"
    code = NOTING.replace("NOTED", repr(str(noted))) + source
    verdict = judge.judge(code, tests, sandbox.Limits(allow_unsafe=True, seconds=2))
    assert verdict.kind == kind, verdict.reason
    pids = noted.read_text().split()
    assert len(pids) >= 1 + ("daemon" in left)
    assert not any(map(alive, pids))


def test_without_a_sandbox_too_nothing_outlives_a_killed_worker(tmp_path):
    noted = tmp_path / "noted"
    code = NOTING.replace("NOTED", repr(str(noted))) + "daemon()\ntime.sleep(600)"
    worker = (
        "from equipoise.verifiers.code import judge, sandbox\nsandbox.available = lambda: 'not asked for here'\n"
        f"judge.judge({code!r}, judge.Programs((('', ''),)), sandbox.Limits(allow_unsafe=True, seconds=600))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", worker], env=os.environ)
    while not noted.exists() or len(noted.read_text().split()) < 2:
        time.sleep(0.02)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(alive, noted.read_text().split())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, noted.read_text().split()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", 0),
        ("total_seconds", float("inf")),
        ("output_bytes", -1),
        ("processes", 0),
        ("seconds", float("nan")),
    ],
)
def test_limits_are_checked_at_the_door(name, value):
    with pytest.raises(ValueError, match=name):
        sandbox.Limits(**{name: value})


def test_less_memory_than_an_interpreter_needs_is_refused():
    with pytest.raises(ValueError, match="64 MiB"):
        sandbox.Limits(memory_bytes=1 << 20)


@pytest.mark.parametrize("module", [guest, fork_guest])
def test_the_guest_imports_the_standard_library_alone(module):
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= {*sys.stdlib_module_names, "__future__"}


def test_verifying_code_does_not_import_torch():
    ask = "import sys, equipoise.verifiers.code.judge; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=os.environ, timeout=600)
    assert run.stdout.strip() == "False", run.stderr


@pytest.fixture
def trials(monkeypatch):
    """What the next trials of a sandbox will say, and which were asked."""
    says, asked = [], []
    monkeypatch.setattr(sandbox, "_found", {})
    monkeypatch.setattr(sandbox, "_missing", lambda: None)
    monkeypatch.setattr(sandbox, "_problem", lambda start: asked.append(start) or says.pop(0))
    return says, asked


def test_a_trial_that_failed_is_made_again_after_a_while_and_one_that_worked_never(trials, monkeypatch):
    says, asked = trials
    says += ["busy", None]
    assert (sandbox.can_fork(), sandbox.why_no_fork(), sandbox.can_fork()) == (False, "busy", False)
    assert len(asked) == 1
    now = time.monotonic() + sandbox.AGAIN_SECONDS + 1
    monkeypatch.setattr(sandbox.time, "monotonic", lambda: now)
    assert sandbox.can_fork()
    now += 1e9
    assert sandbox.can_fork()
    assert sandbox.available() is None
    assert len(asked) == 2


def test_a_long_trial_is_made_again_after_ten_times_as_long(trials, monkeypatch):
    says, asked = trials
    now = 1000.0

    def slow(start):
        nonlocal now
        now += 60
        asked.append(start)
        return "late"

    monkeypatch.setattr(sandbox, "_problem", slow)
    monkeypatch.setattr(sandbox.time, "monotonic", lambda: now)
    for waited, trials_made in ((0, 1), (599, 1), (2, 2)):
        now += waited
        assert sandbox.why_no_fork() == "late"
        assert len(asked) == trials_made
    assert not says


@pytest.mark.usefixtures("own_temporary_folder")
@pytest.mark.parametrize("bwrap", ["none", "fails", "hangs"])
def test_whether_programs_can_be_forked_is_said_with_the_reason(bwrap, monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    if bwrap != "none":
        fake.write_text(
            "#!/bin/sh\n" + ("echo 'bwrap: no such luck' >&2; exit 1\n" if bwrap == "fails" else "read x\n")
        )
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sandbox, "TRIAL_SECONDS", 0.5)
    monkeypatch.setattr(sandbox, "_found", {})
    fork_server.close()
    before = remains()
    assert not sandbox.can_fork()
    said = {"none": "not installed", "fails": "no such luck", "hangs": "not over after 0.5 s"}
    assert said[bwrap] in sandbox.why_no_fork()
    assert_no_more_than(before)


@needs_sandbox
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        *(("pid", 1), ("pid", 3), ("pid", 4), ("mnt", 2), ("user", 1)),
        *(pytest.param("pid", most, marks=pytest.mark.long) for most in (2, 16)),
    ],
)
def test_where_few_namespaces_are_allowed_the_verdicts_are_the_same(kind, most):
    """One for each sandbox that runs at a time is enough; those of the dead are counted for a moment still."""
    script = (
        "import os\nfrom equipoise.verifiers.code import judge, sandbox\n"
        "tests = judge.Programs((('3 4\\n', '7\\n'),))\n"
        "asserts = judge.tests({'test_list': ['assert add(3, 4) == 7']})\n"
        f"for _ in range(5):\n    verdict = judge.judge({HONEST!r}, tests)\n"
        "    assert verdict.kind == 'correct', verdict\n"
        f"for _ in range({1 if most == 1 else 5}):\n    verdict = judge.judge('def add(a, b): return a + b', asserts)\n"
        f"    assert verdict.kind == {'unavailable' if most == 1 else 'correct'!r}, verdict\n"
        "print(sandbox.can_fork(), sandbox.why_no_fork(), flush=True)\n"
    )
    allow = f"echo {most} > /proc/sys/user/max_{kind}_namespaces"
    alone = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*alone, allow], capture_output=True).returncode != 0:
        pytest.skip("no limit of namespaces can be set here")
    command = [*alone, f'{allow}\nexec "$0" "$@"', sys.executable, "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=600)
    assert run.returncode == 0, run.stderr
    enough = {"pid": 4, "mnt": 4, "user": 2}[kind]  # two servers and their programs; a server's user is its programs'
    if sandbox.can_fork():
        assert run.stdout.split()[0] == str(most >= enough)
    if most < enough:
        assert "allow more namespaces" in run.stdout


@needs_sandbox
@pytest.mark.usefixtures("own_temporary_folder")
@pytest.mark.parametrize("way", ["_start_forked", "_start_contained"])
def test_a_trial_has_one_deadline_for_all_it_waits_for(way, monkeypatch, tmp_path):
    """A slow start, and then a guest that is never ready: neither alone would take as long."""
    fake = tmp_path / "bwrap"
    fake.write_text(f'#!/bin/sh\nsleep 3\nexec {shutil.which("bwrap")} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sandbox, "TRIAL_SECONDS", 4.0)
    monkeypatch.setattr(sandbox.Guest, "send", lambda *_: None)
    fork_server.close()
    before, began = remains(), time.monotonic()
    why = sandbox._problem(getattr(sandbox, way))
    assert time.monotonic() - began < 6
    assert "not over after 4 s" in why
    assert_no_more_than(before)


@needs_sandbox
@pytest.mark.parametrize("forks", [True, False])
def test_bubblewrap_finds_its_libraries_and_the_program_does_not_see_where(forks, monkeypatch, tmp_path):
    """A bubblewrap that was built or unpacked somewhere has its libraries there."""
    if forks and not sandbox.can_fork():
        pytest.skip("no namespaces can be made inside of a sandbox here")
    fake = tmp_path / "bwrap"
    fake.write_text(f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" = /planted ] && exec {shutil.which("bwrap")} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/planted")
    monkeypatch.setattr(sandbox, "can_fork", lambda: forks)
    fork_server.close()
    seen = "import os\nassert not any('/planted' in value for value in os.environ.values())\n"
    verdict = judge.judge(seen + HONEST, TESTS)
    assert verdict.kind == "correct", verdict.reason
    fork_server.close()


@needs_sandbox
def test_children_that_nobody_waits_for_are_refused_and_all_cpu_time_is_counted():
    """With SIGCHLD ignored the kernel reaps children, and their time is in no process's count."""
    ignore = "import signal\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept PermissionError: pass\n"
    burn = (
        "import os, time\ndef burn(seconds):\n    end = time.process_time() + seconds\n"
        "    while time.process_time() < end: pass\n"
        "for _ in range(8):\n    read, write = os.pipe()\n"
        "    if os.fork() == 0:\n        burn(0.25)\n        os._exit(0)\n"
        "    os.close(write)\n    os.read(read, 1)\n    os.close(read)\n"
    )
    limits = sandbox.Limits(seconds=1, total_seconds=30)
    assert judge.judge(ignore + burn + "print(7)", TESTS, limits).kind == "timeout"
    refused = "import signal\ntry: signal.signal(signal.SIGCHLD, print)\nexcept PermissionError: print(7)\n"
    assert judge.judge(refused, TESTS).kind == "correct"


@needs_sandbox
def test_whoever_ignores_sigchld_is_told():
    script = (
        "import signal\nfrom equipoise.verifiers.code import sandbox\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "print(sandbox.available())"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, timeout=600)
    assert "ignores SIGCHLD" in run.stdout, run.stdout + run.stderr
