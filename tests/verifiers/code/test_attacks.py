"""Responses that try to be judged correct without being it, to break out, or to take the harness with them."""

import gc
import os
import re
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.verifiers.code import fork_server, sandbox
from equipoise.verifiers.code import judge as code_judge

SMALL = sandbox.Limits(
    seconds=10,
    total_seconds=20,
    memory_bytes=256 << 20,
    output_bytes=1 << 20,
    processes=12,
    disk_bytes=4 << 20,
    files=200,
)
BRIEF = replace(SMALL, seconds=0.4, total_seconds=2)

# Sums of numbers nobody would guess, so that only who adds gets them right.
NUMBERS = [(918273, 645546), (-77, 1299721), (31337, 271828)]
PROGRAMS = code_judge.Programs(tuple((f"{a} {b}\n", f"{a + b}\n") for a, b in NUMBERS))
CALLS = code_judge.Calls("add", tuple(((a, b), a + b) for a, b in NUMBERS))
CHECK = "def check(candidate):\n" + "".join(f"    assert candidate({a}, {b}) == {a + b}\n" for a, b in NUMBERS)
ASSERTS = code_judge.tests({"prompt": "def add(a, b):\n    '''The sum.'''\n", "test": CHECK, "entry_point": "add"})
TESTS = {"program": PROGRAMS, "calls": CALLS, "asserts": ASSERTS}

HONEST = "a, b = map(int, input().split())\nprint(a + b)\n"
FUNCTION = "def add(a, b):\n    return a + b\n"


def named(text):
    """The sources in a text where a line `#: name` stands before each."""
    parts = re.split(r"^#: (.*)\n", text.lstrip("\n"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


pytestmark = pytest.mark.usefixtures("sandboxed")


@pytest.fixture(autouse=True, scope="module")
def rubbish_of_other_tests():
    """What they left open is closed now; and no test here need look through what they left alive."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    """After the test no process lives in a pid namespace it made, and there are no more descriptors than before."""
    namespaces = set()
    found = sandbox._pid

    def pid(handle):
        first = found(handle)
        namespaces.add(os.readlink(f"/proc/{first}/ns/pid"))
        return first

    monkeypatch.setattr(sandbox, "_pid", pid)
    gc.collect()  # what earlier tests here left open is closed now, not during this one
    descriptors, before = open_descriptors(), children()
    yield namespaces
    deadline = time.monotonic() + 300
    # What was killed is not gone at once. Asked once more, a namespace of another process may have got its number.
    while (left := processes_in(namespaces)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []
    assert open_descriptors() <= descriptors
    assert set(children()) <= set(before)  # one that an earlier test left may have ended meanwhile


@pytest.fixture
def open_folder():
    """A folder that everybody may read and write: what keeps a response out of it is the sandbox alone."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def open_descriptors():
    """Without a fork server's three."""
    return len(os.listdir("/proc/self/fd")) - 3 * len(fork_server._idle.servers)


def children():
    """Without the fork servers, which stay for the next verdict."""
    servers = {str(server._process.pid) for server in fork_server._idle.servers}
    tasks = Path("/proc/self/task").iterdir()
    return [pid for task in tasks for pid in (task / "children").read_text().split() if pid not in servers]


def processes_in(namespaces):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") in namespaces:
                found.append(pid)
        except OSError:
            pass
    return found


def judge(source, tests, limits=SMALL):
    return code_judge.judge(f"```python\n{source}\n```", tests, limits)


def assert_it_ran(verdict):
    """An attack with a mistake in it is no attack."""
    assert not re.search("(Syntax|Name|Attribute|Import|Type)Error", verdict.reason), verdict.reason


def test_the_honest_solutions_are_correct():
    assert judge(HONEST, PROGRAMS).kind == "correct"
    assert judge(FUNCTION, CALLS).kind == "correct"
    assert judge(FUNCTION, ASSERTS).kind == "correct"


EQUAL = "__eq__ = lambda *_: True; __ne__ = lambda *_: False; __hash__ = lambda _: 0"
LIARS = named(
    f"""
#: int
class Liar(int): {EQUAL}; __ge__ = __le__ = __bool__ = lambda *_: True
def add(a, b): return Liar(0)
#: object
class Liar: {EQUAL}; __bool__ = __len__ = __int__ = __index__ = lambda _: 1; __iter__ = lambda _: iter([1])
def add(a, b): return Liar()
#: str
class Liar(str): {EQUAL}; strip = __str__ = lambda *_: 'x'
def add(a, b): return Liar('0')
#: float
class Liar(float): {EQUAL}; __repr__ = __str__ = lambda _: '1'
def add(a, b): return Liar('nan')
#: list
class Liar(list): {EQUAL}; __iter__ = lambda _: iter([])
def add(a, b): return Liar()
#: dict
class Liar(dict): {EQUAL}; items = lambda _: []
def add(a, b): return Liar()
#: class
class Liar: {EQUAL}; __class__ = property(lambda _: int)
def add(a, b): return Liar()
#: metaclass
class Meta(type): {EQUAL}; __subclasscheck__ = __instancecheck__ = lambda *_: True
class Liar(metaclass=Meta): {EQUAL}
def add(a, b): return Liar()
#: nested
class Liar(int): {EQUAL}
def add(a, b): return [Liar(0)]
#: mock
from unittest.mock import ANY
def add(a, b): return ANY
"""
)


@pytest.mark.parametrize("tests", ["calls", "asserts"])
@pytest.mark.parametrize("liar", LIARS)
def test_a_value_that_lies_about_equality_is_wrong(liar, tests):
    verdict = judge(LIARS[liar], TESTS[tests])
    assert verdict.kind == "wrong"
    assert_it_ran(verdict)


LEAVING = named(
    r"""
#: os._exit
import os
{}os._exit(0)
#: sys.exit
import sys
{}sys.exit(0)
#: SystemExit
{}raise SystemExit(0)
#: KeyboardInterrupt
{}raise KeyboardInterrupt
#: exit
{}exit()
#: StopIteration
{}raise StopIteration
#: GeneratorExit
{}raise GeneratorExit
#: own BaseException
class Own(BaseException): pass
{}raise Own
"""
)


@pytest.mark.parametrize("how", LEAVING)
@pytest.mark.parametrize("where", ["program", "calls", "asserts", "load calls", "load asserts"])
def test_leaving_early_is_wrong_or_crashed(how, where):
    place = "def add(a, b): " if where in ("calls", "asserts") else ""
    verdict = judge(LEAVING[how].format(place), TESTS[where.split()[-1]])
    assert verdict.kind in ("wrong", "crashed")
    assert_it_ran(verdict)


def test_an_exception_cannot_end_the_loop_of_the_tests():
    """StopIteration out of a function under map() would end all() early, and with True."""
    asserts = code_judge.tests({"test_list": ["assert all(map(lambda x: add(x, 1) == x + 1, range(1000, 1010)))"]})
    assert judge("def add(a, b):\n    raise StopIteration", asserts).kind == "wrong"
    assert judge(FUNCTION, asserts).kind == "correct"


FORGERIES = named(
    r"""
#: program: atexit prints
import atexit, sys
atexit.register(print, 'passed')
#: asserts: atexit writes the channel
import atexit, os
def forge():
    for fd in range(3, 64):
        try: os.write(fd, b'passed\n')
        except OSError: pass
atexit.register(forge)
def add(a, b): raise SystemExit
#: asserts: every descriptor
import os
for fd in range(256):
    try: os.write(fd, b'loaded\npassed\n')
    except OSError: pass
def add(a, b): return 0
#: program: every descriptor, program
import os
for fd in range(256):
    try: os.write(fd, b'exit 0 0 0\n')
    except OSError: pass
#: calls: replies in advance
import os
def forge():
    for fd in range(3, 64):
        try: os.write(fd, b'value 1\n' * 10)
        except OSError: pass
forge()
def add(a, b): forge(); return 0
#: calls: correct over and over
import os, threading
def forge():
    while True:
        for fd in range(3, 16):
            try: os.write(fd, b'correct\nloaded\n')
            except OSError: pass
threading.Thread(target=forge, daemon=True).start()
def add(a, b): return 0
#: calls: frames
import sys
def add(a, b):
    frame, seen = sys._getframe(), []
    while frame:
        seen += [v for v in frame.f_locals.values() if type(v) is int and v > a]
        seen += [int(w) for v in frame.f_locals.values() for w in str(v).split() if w.isdigit()]
        frame = frame.f_back
    return next((v for v in seen if v not in (a, b)), 0)
#: calls: gc
import gc
def add(a, b):
    seen = [x for o in gc.get_objects() if isinstance(o, (list, tuple)) for x in o
            if type(x) is int and x > abs(a) and x > abs(b)]
    return seen[0] if seen else 0
#: program: gc, program
import gc
for o in gc.get_objects():
    if isinstance(o, dict) and 'expected' in o: print(o['expected'])
#: calls: patched encoder
import sys, gc
for o in gc.get_objects():
    if isinstance(o, dict) and 'encode' in o and 'build' in o:
        o['encode'] = lambda value: 'true'
def add(a, b): return 0
#: program: print and stdout
import builtins, sys, io
builtins.print = lambda *_: None
sys.stdout = io.StringIO()
a, b = map(int, input().split())
print(a + b)
#: asserts: builtins
import builtins
builtins.len = lambda _: 0
builtins.all = builtins.any = lambda *_: True
builtins.isinstance = builtins.issubclass = lambda *_: True
def add(a, b): return 0
#: calls: json
import json
json.dumps = json.loads = lambda *_: 1
import _json
def add(a, b): return 0
#: asserts: AssertionError
import builtins
class Never(BaseException): pass
builtins.AssertionError = Never
vars(builtins)['__debug__'] = False
def add(a, b): return 0
#: asserts: own check
def check(candidate): pass
def add(a, b): return 0
import sys
sys.modules['tests'] = None
#: program: files for the next run
import os
from pathlib import Path
for name in ('conftest.py', 'sitecustomize.py', 'usercustomize.py', 'json.py', 'os.py', '.pythonstartup'):
    Path(name).write_text('print(1563819)')
os.environ.update(PYTHONSTARTUP='.pythonstartup', PYTHONPATH='/tmp', PYTHONINSPECT='1')
#: program: opening tests
import os, glob
for path in glob.glob('/*') + glob.glob('/tmp/*') + glob.glob('/tmp/.*'):
    if os.path.isfile(path): print(open(path).read())
#: calls: pickle
import os, pickle
class Boom:
    def __reduce__(self): return (os.system, ('true',))
def add(a, b):
    for fd in range(3, 64):
        try: os.write(fd, pickle.dumps(Boom()) + b'\n')
        except OSError: pass
#: asserts: prompt as answer
'''def add(a, b): correct'''
"""
)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forging_is_wrong_or_crashed(forgery):
    verdict = judge(FORGERIES[forgery], TESTS[forgery.partition(":")[0]])
    assert verdict.kind in ("wrong", "crashed"), verdict.reason
    assert_it_ran(verdict)


def test_a_program_finds_no_proc_and_no_sys():
    source = "import os\nassert not os.path.exists('/proc/self') and not os.path.exists('/sys')\n" + HONEST
    assert judge(source, PROGRAMS).kind == "correct"


LOOPS = named(
    r"""
#: masked signals
import signal
for s in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGXCPU):
    signal.signal(s, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
while True: pass
#: alarm
import signal
signal.alarm(0)
signal.setitimer(signal.ITIMER_REAL, 0)
while True: pass
#: patched clock
import time
time.time = time.monotonic = time.perf_counter = lambda: 0.0
while True: time.sleep(0.1)
#: swallowed exceptions
while True:
    try:
        while True: pass
    except BaseException: pass
#: waiting in a thread
import threading
threading.Thread(target=threading.Event().wait).start()
#: endless import
import time
class Finder:
    def find_spec(*_): time.sleep(99)
import sys
sys.meta_path = [Finder()]
import x
#: endless destructor
import time
class D:
    def __del__(self): time.sleep(99)
d = D()
#: regex
import re
re.match(r'(a+)+$', 'a' * 60 + 'b')
#: power
x = 9 ** 9 ** 9
"""
)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_does_not_end_is_a_timeout(loop):
    verdict = judge(LOOPS[loop], PROGRAMS, BRIEF)
    assert verdict.kind == "timeout"
    assert verdict.seconds < 100


def test_a_function_that_does_not_end_is_a_timeout():
    assert judge("def add(a, b):\n    while True: pass", CALLS, BRIEF).kind == "timeout"
    assert judge("def add(a, b):\n    while True: pass", ASSERTS, BRIEF).kind == "timeout"
    assert judge("while True: pass", ASSERTS, BRIEF).kind == "timeout"


def test_sleeping_just_under_the_limit_in_every_test_ends_at_the_total():
    tests = code_judge.Programs(tuple((f"{i} {i}\n", f"{2 * i}\n") for i in range(100)))
    verdict = judge("import time\ntime.sleep(0.3)\n" + HONEST, tests, replace(BRIEF, seconds=5, total_seconds=1))
    assert verdict.kind == "timeout"
    assert "together" in verdict.reason
    assert verdict.seconds < 25  # of 30


BOMBS = named(
    r"""
#: fork
import os
while True: os.fork()
#: fork, going on
import os
while True:
    try: os.fork()
    except OSError: pass
#: threads
import threading, time
while True: threading.Thread(target=time.sleep, args=(99,)).start()
#: subprocesses
import subprocess, sys
while True: subprocess.Popen([sys.executable, '-c', 'while True: pass'])
#: 64 GB
x = bytearray(64 << 30)
#: 64 GB, bit by bit
x = []
while True: x.append(bytearray(1 << 20))
#: mmap
import mmap
x = mmap.mmap(-1, 64 << 30)
#: big int
x = 1 << (1 << 35)
#: stdout
while True: print('x' * 65536)
#: stderr
import sys
while True: sys.stderr.write('x' * 65536)
#: stdout without newline
import os
while True: os.write(1, b'x' * 65536)
#: 10 GB file
f = open('big', 'wb')
while True: f.write(bytes(1 << 20))
#: many big files
for i in range(99):
    with open(f'f{i}', 'wb') as f: f.write(bytes(1 << 20))
#: sparse file
f = open('big', 'wb')
f.truncate(10 << 30)
#: 1e6 files
for i in range(10 ** 6): open(str(i), 'w').close()
#: 1e6 folders
import os
for i in range(10 ** 6): os.mkdir(str(i))
#: open files
fs = [open('/dev/null') for _ in range(10 ** 4)]
"""
)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_a_limit_or_a_timeout(bomb):
    going_on = bomb == "fork, going on"
    verdict = judge(BOMBS[bomb], PROGRAMS, replace(BRIEF, seconds=1 if going_on else 10, total_seconds=10))
    assert verdict.kind in (("limit", "timeout") if going_on else ("limit",)), verdict.reason


FUNCTION_BOMBS = named(
    r"""
#: returned
def add(a, b): return 'x' * (1 << 24)
#: returned list
def add(a, b): return [[]] * (1 << 20)
#: printed
def add(a, b):
    while True: print('x' * 65536)
#: memory
def add(a, b): return bytearray(64 << 30)
#: on load
x = bytearray(64 << 30)
def add(a, b): return a + b
#: channel
import os
def add(a, b):
    while True:
        for fd in range(3, 16):
            try: os.write(fd, b'x' * 65536)
            except OSError: pass
#: forks
import os
def add(a, b):
    while True: os.fork()
"""
)


@pytest.mark.parametrize("tests", ["calls", "asserts"])
@pytest.mark.parametrize("bomb", FUNCTION_BOMBS)
def test_a_bomb_in_a_function_is_a_limit(bomb, tests):
    verdict = judge(FUNCTION_BOMBS[bomb], TESTS[tests], replace(BRIEF, seconds=10, total_seconds=10))
    assert verdict.kind == "limit", verdict.reason


def test_a_daemon_cannot_answer_late_and_does_not_survive():
    daemon = (
        "import os, time, signal\nif os.fork() == 0:\n    os.setsid()\n"
        "    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "    if os.fork() == 0:\n        {}\n        time.sleep(60)\n    os._exit(0)\n"
    )
    answer = "time.sleep(30); a, b = map(int, input().split()); print(a + b, flush=True)"
    assert judge(daemon.format(answer), PROGRAMS).kind == "wrong"
    assert judge(daemon.format("pass") + HONEST, PROGRAMS).kind == "correct"


NETWORK = """
import _socket
def reach(family, address, kind=_socket.SOCK_STREAM):
    try:
        s = _socket.socket(family, kind)
        s.connect(address)
        s.send(b"hello")
    except OSError:
        return
    print("reached", address)
reach(_socket.AF_INET, ("127.0.0.1", {port}))
reach(_socket.AF_INET, ("127.0.0.1", {port}), _socket.SOCK_DGRAM)
reach(_socket.AF_INET6, ("::1", {port}))
reach(_socket.AF_UNIX, {path!r})
reach(_socket.AF_UNIX, {abstract!r})
for target in ({path!r}, {abstract!r}):
    try:
        one, other = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        one.sendto(b"hello", target)
        print("reached", target)
    except OSError:
        pass
try:
    _socket.getaddrinfo("localhost", 80)
    _socket.getaddrinfo("example.com", 80)
    print("resolved")
except OSError:
    pass
"""


def test_no_network_and_no_sockets(open_folder):
    reached = []
    path, abstract = str(open_folder / "s"), b"\0equipoise-test-" + str(os.getpid()).encode()
    listeners = []
    for family, address in [
        (socket.AF_INET, ("127.0.0.1", 0)),
        (socket.AF_UNIX, path),
        (socket.AF_UNIX, abstract),
    ]:
        listener = socket.socket(family)
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
        listeners.append(listener)
    port = listeners[0].getsockname()[1]
    source = NETWORK.format(port=port, path=path, abstract=abstract) + HONEST
    try:
        with socket.create_connection(("127.0.0.1", port)):  # the listener does listen
            reached.append(listeners[0].accept()[0])
        assert judge(source, PROGRAMS).kind == "correct"
        for listener in listeners:
            with pytest.raises(BlockingIOError):
                listener.accept()
    finally:
        for s in [*reached, *listeners]:
            s.close()


def test_planted_secrets_are_not_read(open_folder, monkeypatch):
    secret = "equipoise-planted-secret"
    monkeypatch.setenv("API_TOKEN", secret)
    planted = open_folder / "token"
    planted.write_text(secret)
    planted.chmod(0o666)
    paths = [str(planted), "/etc/passwd", "/etc/shadow", os.path.expanduser("~/.bashrc"), __file__, code_judge.__file__]
    source = (
        f"import os\nleaks = [p for p in {paths!r} if os.path.exists(p)]\n"
        f"leaks += [k for k, v in os.environ.items() if {secret!r} in v]\n"
        "os.symlink('/etc/passwd', 'link') if not os.path.islink('link') else None\n"
        "os.symlink('../../../../../../etc', 'up') if not os.path.islink('up') else None\n"
        f"for p in ('link', 'up/passwd', '/proc/1/root/etc/passwd', '/tmp/../etc/passwd', {str(planted)!r}):\n"
        "    try: leaks.append(open(p).read())\n    except OSError: pass\nassert not leaks, leaks\n" + HONEST
    )
    verdict = judge(source, PROGRAMS)
    assert verdict.kind == "correct", verdict.reason


def test_nothing_of_the_host_is_written(open_folder):
    kept = open_folder / "kept"
    kept.write_text("as it was")
    kept.chmod(0o666)
    here = Path(code_judge.__file__).parent
    folders = [
        str(open_folder),
        os.path.expanduser("~"),
        str(here),
        "/",
        "/usr/lib",
        "/var/tmp",
        sys.base_prefix + "/lib",
        "/dev",
    ]
    before = {folder: sorted(os.listdir(folder)) for folder in folders if folder != str(here)}
    source = (
        f"import os\nwritten = []\nfor folder in {folders!r}:\n    for name in ('pwned', 'kept'):\n        try:\n"
        "            with open(os.path.join(folder, name), 'w') as f: f.write('pwned')\n"
        "            written.append(folder)\n"
        "        except OSError: pass\n    try: os.remove(os.path.join(folder, 'kept')); written.append(folder)\n"
        "    except OSError: pass\nassert not written, written\nopen('/tmp/pwned-inside', 'w').close()\n" + HONEST
    )
    verdict = judge(source, PROGRAMS)
    assert verdict.kind == "correct", verdict.reason
    assert kept.read_text() == "as it was"
    assert not (here / "pwned").exists()
    assert {folder: sorted(os.listdir(folder)) for folder in before} == before
    assert not Path("/tmp/pwned-inside").exists()


SYSTEM_CALLS = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    assert result == -1 and ctypes.get_errno() in (1, 38), (name, result, ctypes.get_errno())
refused("ptrace", 0, 0, 0, 0)
refused("ptrace", 16, 1, 0, 0)
refused("process_vm_readv", 1, None, 0, None, 0, 0)
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000):
    refused("unshare", flag)
refused("mount", b"none", b"/tmp", b"tmpfs", 0, None)
refused("umount2", b"/tmp", 2)
refused("chroot", b"/tmp")
refused("setns", 0, 0)
refused("memfd_create", b"x", 0)
refused("shmget", 0, 1 << 20, 0o1600)
refused("personality", 0x0040000)
refused("sethostname", b"x", 1)
refused("swapoff", b"/")
refused("fanotify_init", 0, 0)
for name in ("RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NPROC", "RLIMIT_CPU", "RLIMIT_NOFILE"):
    soft, hard = resource.getrlimit(getattr(resource, name))
    assert hard != resource.RLIM_INFINITY, name
    try:
        resource.setrlimit(getattr(resource, name), (hard, hard + 1))
        raise AssertionError(name)
    except ValueError:
        pass
for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.chroot("/tmp"),
                lambda: os.mknod("/tmp/device", 0o60600, os.makedev(8, 0)), lambda: os.nice(-5)):
    try:
        attempt()
        raise AssertionError("allowed")
    except OSError:  # EPERM, or EINVAL where an ordinary user started the sandbox: there is no uid 0 to ask for
        pass
assert os.getuid() != 0 and os.geteuid() != 0
"""


def test_system_calls_that_lead_out_are_refused():
    verdict = judge(SYSTEM_CALLS + HONEST, PROGRAMS)
    assert verdict.kind == "correct", verdict.reason


def test_killing_everything_kills_nothing_of_ours():
    source = (
        "import os, signal\nfor pid in (-1, 1, os.getppid(), *range(2, 50)):\n    if pid != os.getpid():\n"
        "        for s in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):\n            try: os.kill(pid, s)\n"
        "            except OSError: pass\n" + HONEST
    )
    assert judge(source, PROGRAMS).kind == "correct"
    assert judge("import os\nos.kill(0, 9)", PROGRAMS).kind in ("crashed", "limit")


SPOILING = named(
    r"""
#: stdin is a folder
import os
os.unlink('/tmp/.stdin'); os.mkdir('/tmp/.stdin')
#: stdin is a link
import os
os.unlink('/tmp/.stdin'); os.symlink('/dev/zero', '/tmp/.stdin')
#: stdout is a folder
import os
os.makedirs('/tmp/.stdout', exist_ok=True)
#: closed descriptors
import os
os.closerange(0, 256)
#: removed folder
import os
os.chmod('/tmp', 0)
"""
)


@pytest.mark.parametrize("how", SPOILING)
def test_spoiling_the_scratch_folder_hurts_the_response_alone(how):
    assert judge(HONEST + SPOILING[how], PROGRAMS).kind in ("correct", "wrong", "crashed")
    assert judge(SPOILING[how], PROGRAMS).kind in ("wrong", "crashed")


BYTES = named(
    r"""
#: program: NUL
print('\0' * 100)
#: program: invalid UTF-8
import sys
sys.stdout.buffer.write(b'\xff\xfe\x80')
#: program: lone surrogate printed
print('\ud800')
#: calls: lone surrogate returned
def add(a, b): return '\ud800'
#: asserts: lone surrogate to asserts
def add(a, b): return '\ud800\0'
#: program: segfault
import ctypes
ctypes.string_at(0)
#: calls: segfault in a call
import ctypes
def add(a, b): ctypes.string_at(0)
#: asserts: segfault under asserts
import ctypes
def add(a, b): ctypes.string_at(0)
#: program: abort
import os
os.abort()
#: calls: deep value
def add(a, b):
    x = []
    for _ in range(10 ** 5): x = [x]
    return x
#: asserts: deep value to asserts
def add(a, b):
    x = []
    for _ in range(10 ** 5): x = [x]
    return x
#: calls: a value that holds itself
def add(a, b):
    x = []
    x.append(x)
    return x
#: asserts: huge int
def add(a, b): return 10 ** 100_000
#: calls: message of an exception
def add(a, b): raise ValueError('\ud800\n\0' * 10 ** 6)
#: asserts: exception that cannot be printed
class E(Exception):
    def __str__(self): raise self
def add(a, b): raise E
"""
)


@pytest.mark.parametrize("what", BYTES)
def test_odd_bytes_leave_the_harness_alive(what):
    verdict = judge(BYTES[what], TESTS[what.partition(":")[0]])
    assert verdict.kind in ("wrong", "crashed"), verdict.reason
    assert_it_ran(verdict)


FORGED_REPLIES = {
    "deep": "b'[' * 10 ** 5 + b']' * 10 ** 5",
    "deep objects": "b'{\"tuple\": [' * 10 ** 4 + b']}' * 10 ** 4",
    "nan": "b'NaN'",
    "long number": "b'1' * 10 ** 5",
    "float overflow": "b'1e999'",
    "unknown type": "b'{\"object\": [1]}'",
    "two keys": 'b\'{"int": "1", "float": "1"}\'',
    "odd contents": "b'{\"dict\": [1]}'",
    "unhashable": "b'{\"set\": [[1]]}'",
    "cut off": "b'[1, 2'",
    "twice": "b'1 1'",
    "empty": "b''",
    "not text": "bytes(range(128, 256))",
    "many keys": "b'{' + b', '.join(b'\"%d\": 1' % i for i in range(50000)) + b'}'",
}


@pytest.mark.parametrize("tests", ["calls", "asserts"])
@pytest.mark.parametrize("reply", FORGED_REPLIES)
def test_a_forged_reply_with_the_right_nonce_is_still_parsed_strictly(reply, tests):
    """The response can take the channel over and answer anything at all."""
    source = (
        "import os, gc\nchannel = next(o for o in gc.get_objects() if type(o).__name__ == 'Channel')\n"
        "def add(a, b):\n    raise SystemExit\nchannel.write(b'loaded\\n')\nwhile True:\n"
        "    nonce = channel.line().split()[0].encode()\n"
        f"    channel.write(nonce + b' value ' + {FORGED_REPLIES[reply]} + b'\\n')\n"
    )
    assert judge(source, TESTS[tests]).kind in ("wrong", "crashed")


def test_a_set_of_colliding_numbers_does_not_hang_the_harness():
    """Hashing n multiples of 2**61 - 1 takes n**2 steps: whoever decodes them must be killable."""
    source = "def add(a, b): return {i * (2 ** 61 - 1) for i in range(20)}"
    assert judge(source, CALLS).kind == "wrong"
    forged = (
        "import gc\nchannel = next(o for o in gc.get_objects() if type(o).__name__ == 'Channel')\n"
        "channel.write(b'loaded\\n')\n"
        "numbers = ', '.join('{\"int\": \"%x\"}' % (i * (2 ** 61 - 1)) for i in range(20000))\n"
        "while True:\n    nonce = channel.line().split()[0]\n"
        "    channel.write((nonce + ' value {\"set\": [' + numbers + ']}\\n').encode())\n"
    )
    assert judge(forged, CALLS, BRIEF).kind == "wrong"
    assert judge(forged, ASSERTS, replace(BRIEF, total_seconds=2)).kind in ("wrong", "timeout")


def test_stdin_never_read_or_closed_is_no_matter():
    tests = code_judge.Programs((("x" * (5 << 20) + "\n", "done\n"),))
    assert judge("print('done')", tests).kind == "correct"
    assert judge("import sys, os\nsys.stdin.close()\nprint('done')", tests).kind == "correct"
    assert judge("import os\nos.close(0)\nprint('done')", tests).kind == "correct"
    assert judge("print('done' if len(input()) == 5 << 20 else 'cut')", tests).kind == "correct"


def test_no_namespaces_means_unavailable(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.forget()
    try:
        verdict = code_judge.judge(HONEST, PROGRAMS)
        assert verdict.kind == "unavailable"
        assert "bubblewrap" in verdict.reason
    finally:
        sandbox.forget()


def test_a_bubblewrap_that_fails_means_unavailable(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fork_server.close()
    sandbox.forget()
    try:
        verdict = code_judge.judge(HONEST, PROGRAMS)
        assert verdict.kind == "unavailable"
        assert "No permissions" in verdict.reason
        assert "user namespaces" in verdict.reason
    finally:
        sandbox.forget()
