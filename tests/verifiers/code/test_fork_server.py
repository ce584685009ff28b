"""Programs forked from one warm process: what one of them leaves behind, the next one does not find."""

import errno
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from equipoise.verifiers.code import cgroups, fork_guest, fork_server, judge, sandbox
from equipoise.verifiers.workers.deadline import Deadline
from tests.verifiers.code.test_attacks import ASSERTS, FUNCTION, HONEST, PROGRAMS, SMALL, SYSTEM_CALLS, TESTS, named
from tests.verifiers.code.test_sandbox import ENDINGS

pytestmark = pytest.mark.usefixtures("forking")


@pytest.fixture
def forking(sandboxed):
    if not sandbox.can_fork():
        pytest.skip("no namespaces can be made inside of a sandbox here")


@pytest.fixture
def first_processes(monkeypatch):
    """Of each program that is started: what /proc says of its first process and of its namespaces."""
    found, seen = sandbox._pid, []

    def pid(handle):
        first = found(handle)
        parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        seen.append({"parent": parent, **namespaces(first)})
        return first

    monkeypatch.setattr(sandbox, "_pid", pid)
    return seen


def namespaces(pid):
    return {
        name: os.readlink(f"/proc/{pid}/ns/{name}") for name in ("pid", "mnt", "ipc", "uts", "cgroup", "user", "net")
    }


def run_alone(script):
    """In an interpreter of its own, to the end."""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, timeout=600)
    assert run.returncode == 0, run.stderr


def verdict(source, tests, limits=SMALL):
    return judge.judge(f"```python\n{source}\n```", tests, limits)


def test_programs_are_forked_from_one_process_the_tests_from_another(first_processes):
    fork_server.close()
    for _ in range(2):
        assert verdict(FUNCTION, ASSERTS).kind == "correct"
    parents = [first["parent"] for first in first_processes]
    assert len(parents) == 4
    assert len(set(parents)) == 2
    assert parents[0] != parents[1]  # a response and its tests
    assert parents[2] != parents[3]


def test_a_program_has_namespaces_of_its_own():
    with sandbox.run(SMALL, {"mode": "programs"}) as one, sandbox.run(SMALL, {"mode": "programs"}) as other:
        inside = [namespaces(guest.pid) for guest in (one, other)]
    with sandbox.run(SMALL, {"mode": "programs"}) as later:
        inside.append(namespaces(later.pid))
    for name in ("pid", "mnt", "ipc", "uts", "cgroup"):
        assert inside[0][name] != inside[1][name]
    host = namespaces(os.getpid())
    assert all(found[name] != host[name] for found in inside for name in host)
    assert inside[0]["user"] != inside[1]["user"]  # those that run at one time share none


def test_a_program_has_no_rights_and_one_scratch_disk_however_many_came_before():
    mounts = []
    for _ in range(3):
        with sandbox.run(SMALL, {"mode": "programs"}) as guest:
            status = dict(line.split(":\t") for line in Path(f"/proc/{guest.pid}/status").read_text().splitlines())
            mounts.append([line.split()[4] for line in Path(f"/proc/{guest.pid}/mountinfo").read_text().splitlines()])
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        if os.geteuid() == 0:
            assert set(status["Uid"].split()) == {"65534"}
    assert mounts[0] == mounts[1] == mounts[2]
    assert mounts[0].count("/tmp") == 1


# Each with all it can do to whoever comes next; then the next one looks around and answers.
LEFT_BEHIND = named(
    r"""
#: threads
import threading, time
for _ in range(5): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
#: patched modules
import os, sys, select, errno, marshal, types, struct, ctypes, io, codecs
for module in (os, select, marshal, struct, io, codecs):
    for name in list(vars(module)):
        if not name.startswith('__'):
            try: setattr(module, name, None)
            except Exception: pass
#: builtins
import builtins
builtins.len = builtins.compile = builtins.exec = builtins.int = lambda *_: 0
builtins.AssertionError = builtins.Exception = KeyboardInterrupt
builtins.__import__ = None
#: built-in types
import ctypes, gc
gc.get_referents(int.__dict__)[0]['bit_count'] = lambda _: 7
ctypes.pythonapi.PyType_Modified(ctypes.py_object(int))
#: small integers
import ctypes
ctypes.c_char.from_address(id(250) + 24).value = b'\x07'
#: open files and locks
import fcntl, os
kept = [os.open(os.__file__, os.O_RDONLY) for _ in range(50)]
fcntl.flock(kept[0], fcntl.LOCK_EX)
#: files
import os
for name in ('json.py', 'sitecustomize.py', '.stdin', 'left', '.stdout'):
    try: open('/tmp/' + name, 'w').write('print(1)')
    except OSError: pass
os.makedirs('/tmp/deep/er', exist_ok=True)
os.chmod('/tmp', 0)
#: full disk
try:
    with open('/tmp/big', 'wb') as f:
        while True: f.write(bytes(1 << 16))
except OSError: pass
#: working folder, mask, limits, priority
import os, resource
os.chdir('/'); os.umask(0o777)
for name in ('RLIMIT_NOFILE', 'RLIMIT_FSIZE', 'RLIMIT_NPROC', 'RLIMIT_STACK'):
    resource.setrlimit(getattr(resource, name), (0, 0) if name != 'RLIMIT_STACK' else (1 << 20, 1 << 20))
for who, whom in ((os.PRIO_PROCESS, 1), (os.PRIO_PGRP, 0), (os.PRIO_USER, os.getuid())):
    try: os.setpriority(who, whom, 19)
    except OSError: pass
#: environment and path
import os, sys
os.environ.update(PYTHONSTARTUP='/tmp/left', LD_PRELOAD='/tmp/left.so', HOME='/')
os.putenv('PYTHONPATH', '/tmp')
sys.path[:] = ['/tmp']; sys.meta_path.clear(); sys.modules.clear()
#: signals
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
#: settings of the interpreter
import gc, sys
gc.disable(); sys.setrecursionlimit(60); sys.setswitchinterval(100); sys.set_int_max_str_digits(640)
sys.settrace(lambda *_: None)
sys.stdout = sys.stderr = None
#: atexit
import atexit, os, time
atexit.register(os.write, 1, b'1563819\n')
os.register_at_fork(before=lambda: 1 / 0, after_in_child=lambda: os._exit(0))
#: background process
import os, time, signal
if os.fork() == 0:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        while True:
            for fd in range(64):
                try: os.write(fd, b'1563819\n')
                except OSError: pass
            time.sleep(0.01)
    os._exit(0)
#: as many processes as there may be
import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(60)
except OSError: pass
#: signals to everybody
import os, signal
for pid in (1, os.getppid(), -1, *range(2, 40)):
    if pid != os.getpid():
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL):
            try: os.kill(pid, number)
            except OSError: pass
#: process groups and sessions
import os, signal
for whom in (0, 1):
    for attempt in (lambda: os.setpgid(0, os.getpgid(whom)), lambda: os.killpg(os.getpgid(1), signal.SIGKILL),
                    lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(1), 19)):
        try: attempt()
        except OSError: pass
if os.fork() == 0: os.kill(0, signal.SIGKILL)
#: keys, shared memory, queues and an address
import _socket, ctypes, mmap
libc = ctypes.CDLL(None)
libc.shmget(1, 4096, 0o1666); libc.msgget(1, 0o1666); libc.semget(1, 1, 0o1666); libc.mq_open(b'/q', 0o102, 0o666, 0)
libc.syscall({'x86_64': 248, 'aarch64': 217}[__import__('os').uname().machine], b'user', b'left', b'x', 1, -3)
one, other = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
one.setsockopt(_socket.SOL_SOCKET, 16, 1); one.send(b'x')  # an abstract address of its own
#: every descriptor
import os
for fd in range(3, 256):
    try: os.write(fd, b'c' * 100)
    except OSError: pass
#: descriptors sent
import _socket, array, os
one, other = _socket.socketpair()
for fd in (0, 1, 2):
    try: one.sendmsg([b'c'], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array('i', [fd]))])
    except OSError: pass
#: death by signal
import os
os.abort()
#: out of memory
x = []
while True: x.append(bytearray(1 << 20))
"""
)

LOOK = """
import builtins, fcntl, gc, os, resource, signal, sys, threading, time
import json
assert json.dumps([len([1]), int("2"), 250, 7]) == "[1, 2, 250, 7]"
assert (5).bit_count() == 2 and sum([125, 125]) == int("250") == 250
assert isinstance(AssertionError("x"), Exception) and callable(builtins.__import__)
assert threading.active_count() == 1
with open(os.__file__) as file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
assert set(os.listdir("/tmp")) <= {".stdin"}, os.listdir("/tmp")
assert os.statvfs("/tmp").f_bfree > 100
assert os.getcwd() == "/tmp" and os.umask(0o077) == 0o077 and os.nice(0) == 0
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, 128)
assert set(os.environ) <= {"HOME", "LC_CTYPE", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "PWD", "PYTHONHASHSEED",
                           "PYTHONUTF8"} and os.environ["HOME"] == "/tmp"
assert "/tmp" not in sys.path and sys.meta_path
handlers = {signal.getsignal(number) for number in range(1, 65) if number not in (signal.SIGINT, 32, 33)}
assert handlers <= {signal.SIG_DFL, signal.SIG_IGN, None}, handlers
assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
assert gc.isenabled() and sys.getrecursionlimit() == 1000 and sys.gettrace() is None
assert sys.getswitchinterval() < 1 and sys.get_int_max_str_digits() > 640
assert os.getppid() in (0, 1) and os.getpid() < 10
opened = []
for fd in range(128):
    try: os.fstat(fd); opened.append(fd)
    except OSError: pass
assert opened == DESCRIPTORS, opened
pid = os.fork()
if pid == 0: os._exit(5)
assert os.waitpid(pid, 0)[1] == 5 << 8
for pid in range(2, 40):
    if pid != os.getpid():
        try: os.kill(pid, 0); raise AssertionError(pid)
        except ProcessLookupError: pass
"""


@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_what_a_program_leaves_the_next_one_does_not_find(left, first_processes):
    fork_server.close()  # all of this test from the same servers
    look_from_a_program = LOOK.replace("DESCRIPTORS", "[0, 1, 2]")
    look_from_a_function = LOOK.replace("DESCRIPTORS", "[0, 1, 2, 3, 4]")  # and the channel
    for kind, honest in (("program", HONEST), ("asserts", FUNCTION)):
        for source in (LEFT_BEHIND[left], honest + LEFT_BEHIND[left]):
            assert verdict(source, TESTS[kind]).kind in ("correct", "wrong", "crashed", "limit")
        after = verdict(look_from_a_program + HONEST, PROGRAMS)
        assert after.kind == "correct", after.reason
        after = verdict(look_from_a_function + FUNCTION, ASSERTS)
        assert after.kind == "correct", after.reason
        assert verdict("def add(a, b): return 0", ASSERTS).kind == "wrong"
    assert len({first["parent"] for first in first_processes}) == 2


def test_a_response_at_its_limit_of_processes_takes_none_of_the_tests():
    fill = (
        "import os, time\ndef add(a, b):\n    try:\n        while True:\n"
        "            if os.fork() == 0: time.sleep(60)\n    except OSError:\n        return a + b\n"
    )
    tests = judge.tests({"test_list": ["import os\nassert add(2, 3) == 5\nif os.fork() == 0: os._exit(0)\nos.wait()"]})
    assert verdict(fill, tests).kind == "correct"


RIGHTS = """
import ctypes
libc = ctypes.CDLL(None)
held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
assert libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) == 0 and not any(held)
for right in range(64):
    assert libc.prctl(23, right, 0, 0, 0) != 1  # the bounding set
    assert libc.prctl(47, 1, right, 0, 0) != 1  # the ambient set
assert libc.prctl(39, 0, 0, 0, 0) == 1  # no new privileges
"""


def test_a_program_holds_no_right_and_can_have_none(monkeypatch):
    found = verdict(RIGHTS + HONEST, PROGRAMS)
    assert found.kind == "correct", found.reason
    monkeypatch.setattr(sandbox, "can_fork", lambda: False)
    # In a bubblewrap of its own it inherits as root that it may change its uid, which no new privileges makes nothing.
    held = RIGHTS.replace("any(held)", "any((*held[:2], *held[3:5]))").replace("prctl(23, right", "prctl(23, 64")
    found = verdict(held + HONEST, PROGRAMS)
    assert found.kind == "correct", found.reason


def idle_server():
    """One that has just worked, and the pid of its first process."""
    assert verdict(HONEST, PROGRAMS).kind == "correct"
    server = fork_server._idle.servers[-1]
    return server, sandbox._pid(server._first)


def test_a_server_holds_the_rights_it_needs_and_no_other():
    _, pid = idle_server()
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    needed = 1 << 21 | (1 << 6 | 1 << 7 if os.geteuid() == 0 else 0)  # SYS_ADMIN; SETGID, SETUID
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff")} == {needed}
    assert {int(status[name], 16) for name in ("CapInh", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


@pytest.mark.parametrize("who", ["bubblewrap", "server"])
def test_a_server_that_was_killed_is_replaced(who):
    server, pid = idle_server()
    os.kill(server._process.pid if who == "bubblewrap" else pid, signal.SIGKILL)
    assert verdict(HONEST, PROGRAMS).kind == "correct"
    assert server not in fork_server._idle.servers


def killed_at_work(monkeypatch, times, when):
    """The servers whose program is started next are killed, `times` of them."""
    asked, left = fork_server.ForkingSandbox.fork, [None] * times

    def fork(server, deadline):
        kill = functools.partial(os.kill, sandbox._pid(server._first), signal.SIGKILL)
        if left and left.pop() is None:
            kill() if when == "asked" else threading.Timer(0.5, kill).start()
        return asked(server, deadline)

    monkeypatch.setattr(fork_server.ForkingSandbox, "fork", fork)


@pytest.mark.parametrize("when", ["asked", "at work"])
@pytest.mark.parametrize(("times", "kind"), [(1, "correct"), (2, "unavailable")])
def test_a_server_that_dies_is_replaced_once_and_no_program_is_wrong_for_it(times, kind, when, monkeypatch):
    slow = "import time\ntime.sleep(1.5)\n" if when == "at work" else ""
    with monkeypatch.context() as patched:
        killed_at_work(patched, times, when)
        found = verdict(slow + HONEST, PROGRAMS, sandbox.Limits(seconds=60, total_seconds=120))
    assert found.kind == kind, found.reason
    assert all(server.usable() for server in fork_server._idle.servers)
    assert verdict(HONEST, PROGRAMS).kind == "correct"


def test_a_server_that_does_not_answer_is_killed(monkeypatch):
    server, pid = idle_server()
    asked = server.fork
    monkeypatch.setattr(server, "fork", lambda _: asked(Deadline(0.5)))
    os.kill(pid, signal.SIGSTOP)
    assert verdict(HONEST, PROGRAMS).kind == "correct"  # of another one
    assert server not in fork_server._idle.servers
    assert not Path(f"/proc/{pid}").exists()


def test_an_answer_that_nobody_waited_for_is_given_to_nobody(monkeypatch):
    server, _ = idle_server()

    def interrupted(*_):
        time.sleep(0.1)  # until it has answered
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fork_server, "_received_handle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verdict(HONEST, PROGRAMS)
    assert server not in fork_server._idle.servers
    assert not server.usable()
    assert verdict(HONEST, PROGRAMS).kind == "correct"


def test_a_server_that_speaks_unasked_is_not_used_again():
    server, _ = idle_server()
    server._control.send(b"?")
    while server.usable():
        time.sleep(0.01)
    assert verdict(HONEST, PROGRAMS).kind == "correct"
    assert server not in fork_server._idle.servers


def test_a_server_ends_though_a_forked_process_has_its_socket():
    _, pid = idle_server()
    child = os.fork()
    if child == 0:
        time.sleep(300)
        os._exit(0)
    began = time.monotonic()
    fork_server.close()
    took = time.monotonic() - began
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert took < 30
    assert not Path(f"/proc/{pid}").exists()


def test_a_fork_that_fails_is_tried_again_in_another_namespace(monkeypatch):
    calls, answers = [], [BlockingIOError(errno.EAGAIN, "no process"), 7, OSError("again"), OSError("again")]

    def fork():
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(fork_guest, "_call", lambda name, *_: calls.append(name))
    monkeypatch.setattr(fork_guest.os, "fork", fork)
    assert fork_guest._first_of_new_namespace(3) == 7
    assert calls == ["unshare", "setns"] * 2
    with pytest.raises(OSError, match="again"):
        fork_guest._first_of_new_namespace(3)


def test_a_server_without_a_process_to_fork_is_replaced():
    server, pid = idle_server()
    with cgroups.bounded({"memory": 1 << 40, "pids": 1}) as made:
        if not any((cgroup / "pids.max").exists() for cgroup in made):
            pytest.skip("no cgroup that counts processes can be made here")
        cgroups.join(made, pid)
        assert verdict(HONEST, PROGRAMS).kind == "correct"
    assert server not in fork_server._idle.servers


def test_nothing_leaks_where_descriptors_run_out():
    """A verdict or `unavailable`, and whatever was opened is closed, wherever the last descriptor goes."""
    script = (
        "import os, resource\nfrom equipoise.verifiers.code import cgroups, fork_server, judge, sandbox\n"
        "def now(): return len(os.listdir('/proc/self/fd')), open('/proc/thread-self/children').read()\n"
        "tests = judge.tests({'test_list': ['assert add(3, 4) == 7']})\n"
        "def kind(): return judge.judge('def add(a, b): return a + b', tests).kind\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\nseen = set()\n"
        "for warm in (False, True):\n    for extra in range(1, 34, 2 if warm else 5):\n"
        "        assert kind() == 'correct'\n        fork_server.close()\n        before = now()\n"
        "        assert not warm or kind() == 'correct'\n"
        "        most = max(map(int, os.listdir('/proc/self/fd'))) + 1\n"
        "        for free in range(most): \n            try: os.fstat(free)\n            except OSError: extra -= 1\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (most + max(extra, 0), hard))\n"
        "        try: seen.add(kind())\n"
        "        finally: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "        fork_server.close()\n        assert now() == before, (warm, extra, before, now())\n"
        "assert seen == {'correct', 'unavailable'}, seen\n"
        "ours = [c for folder, _ in cgroups.folders() for c in folder.glob(f'equipoise-{os.getpid()}-*')]\n"
        "assert not ours, ours"
    )
    run_alone(script)


def test_the_pidfd_of_a_program_is_not_inherited(monkeypatch):
    found, inheritable = sandbox._pid, []
    monkeypatch.setattr(sandbox, "_pid", lambda handle: inheritable.append(os.get_inheritable(handle)) or found(handle))
    assert verdict(HONEST, PROGRAMS).kind == "correct"
    assert inheritable == [False]


@pytest.mark.parametrize("forks", [True, False])
def test_the_sandbox_of_the_tests_is_there_before_the_response_is_sent(forks, monkeypatch):
    """A response that could keep the next sandbox from starting would be `unavailable`, which no reward counts."""
    events, sent = [], sandbox.Guest.send

    def send(guest, data, deadline):
        events.append("response" if b"# of the response" in data else "sandbox")
        sent(guest, data, deadline)

    monkeypatch.setattr(sandbox, "can_fork", lambda: forks)
    monkeypatch.setattr(sandbox.Guest, "send", send)
    assert verdict(FUNCTION + "\n# of the response", ASSERTS).kind == "correct"
    assert events[:3] == ["sandbox", "sandbox", "response"]


def test_nothing_of_a_response_its_tests_or_its_input_is_in_a_server():
    fork_server.close()
    tests = judge.tests({"test_list": ["marked = 'MARKED of the tests'\nassert add(2, 3) == 5"]})
    assert verdict(FUNCTION + "\nmarked = 'MARKED of the response'", tests).kind == "correct"
    programs = judge.Programs((("MARKED of the input\n", "MARKED of the output\n"),))
    assert verdict("print(input())", programs).kind == "wrong"
    searched = 0
    for server in fork_server._idle.servers:
        pid = sandbox._pid(server._first)
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                first, last = (int(address, 16) for address in line.split()[0].split("-"))
                if "rw" in line.split()[1]:
                    memory.seek(first)
                    searched += 1
                    assert b"MARKED of" not in memory.read(last - first), line
    assert searched > 20


def test_programs_of_one_server_draw_other_random_numbers():
    draw = "import random, sys, tempfile\nsys.exit(f'{random.random()} {next(tempfile._get_candidate_names())}')"
    drawn = [verdict(draw, PROGRAMS).reason for _ in range(3)]
    assert len(set(drawn)) == 3


def test_servers_end_with_their_thread():
    processes = []

    def work():
        assert verdict(FUNCTION, ASSERTS).kind == "correct"
        processes.extend(server._process for server in fork_server._idle.servers)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(processes) == 2
    assert all(process.wait(60) is not None for process in processes)


def test_a_forked_process_starts_servers_of_its_own():
    script = (
        "import os\nfrom equipoise.verifiers.code import fork_server, judge\n"
        "def good(): return judge.judge('print(7)', judge.Programs((('', '7\\n'),))).kind == 'correct'\n"
        "assert good()\npid = os.fork()\nif pid == 0: os._exit(0 if good() else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nassert good()"
    )
    run_alone(script)


def test_verdicts_are_the_same_where_nothing_can_be_forked(monkeypatch):
    monkeypatch.setattr(sandbox, "can_fork", lambda: False)
    monkeypatch.setattr(fork_server.ForkingSandbox, "fork", None)
    for source, tests, kind in [*ENDINGS, (SYSTEM_CALLS + HONEST, PROGRAMS, "correct")]:
        found = judge.judge(source, tests)
        assert found.kind == kind, found.reason
