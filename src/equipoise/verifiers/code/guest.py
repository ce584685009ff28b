"""What runs inside the sandbox, and how values cross its border. Standard library only.

This file is compiled outside and sent in over a pipe, which is why it stays one file; inside, it is
the first process of its pid namespace: of bubblewrap's, or of one that `fork_guest.py`, whose code
comes with the configuration, makes for each program. Without rights it serves one of these modes:

- programs: for each input, fork a process that runs the response as a script; report what it wrote and how it ended.
- functions: fork one process that runs the response as a module and answers calls of its functions.
- referee: fork one process that runs a dataset's own test code, with the response's functions as proxies that ask
  outside.
- resident: what `resident_guest.py` does, whose code comes with the configuration.

In each the first process only watches: it ends, and with it everything in the sandbox,
when nobody is left outside.

Nothing here is believed outside. The response shares a process with `_answer_calls` and can forge
what that writes, so it can lie about its own return values and nothing else: expected outputs and
the verdict never enter the sandbox of the response. `json`, `re`, `signal` and `contextlib` are not
imported: they would double the time a sandbox takes to start.
"""

from __future__ import annotations

import builtins
import errno
import os
import select
import sys
from _json import encode_basestring_ascii, make_scanner
from _signal import getsignal  # type: ignore[import-not-found]  # `signal` is slow to import

TYPE_CHECKING = False  # what typing's own is; typing is as slow to import as contextlib
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

LIMIT_STATUS = 83  # exit status of a program that ran into one of its limits
_OUT_OF = (
    errno.ENOSPC,
    errno.EFBIG,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.EAGAIN,
    errno.ENOMEM,
)
_SIGKILL, _SIGCHLD = 9, 17
_SET_CHILD_SUBREAPER = 36
_ORPHAN_SECONDS = 5.0  # for processes that start others faster than they are killed
_TICK_MS = 50
_TAIL_BYTES = 4000  # of stderr, for the reason of a verdict
_REASON_CHARACTERS = 500


class Opaque(Exception):
    """A value not built of None, bool, numbers, str, bytes, list, tuple, sets and dict."""


class NotStrict(ValueError):
    """Text that `encode` never writes."""


def encode(value: Any) -> str:
    """Strict JSON; what JSON has not is an object with one key that names its type.

    Subclasses lose their class and keep their content, read by the built-in type's own methods:
    what an overridden `__eq__`, `__iter__` or `__str__` says is not asked.
    """
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    kind = type(value)
    if issubclass(kind, str):
        return encode_basestring_ascii(str.__str__(value))
    if issubclass(kind, int):
        plain = int.__index__(value)
        return int.__repr__(plain) if -(2**53) <= plain <= 2**53 else f'{{"int": "{plain:x}"}}'
    if issubclass(kind, float):
        text = float.__repr__(value)
        return text if text not in ("nan", "inf", "-inf") else f'{{"float": "{text}"}}'
    if issubclass(kind, list):
        return "[" + ", ".join([encode(x) for x in list.__iter__(value)]) + "]"
    for name, base in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if issubclass(kind, base):
            return f'{{"{name}": [' + ", ".join([encode(x) for x in base.__iter__(value)]) + "]}"
    if issubclass(kind, dict):
        pairs = [f"[{encode(k)}, {encode(v)}]" for k, v in dict.items(value)]
        return '{"dict": [' + ", ".join(pairs) + "]}"
    if issubclass(kind, bytes):
        return f'{{"bytes": "{bytes.hex(value)}"}}'
    if issubclass(kind, complex):
        real = complex.__getattribute__(value, "real")
        imaginary = complex.__getattribute__(value, "imag")
        return f'{{"complex": [{encode(real)}, {encode(imaginary)}]}}'
    raise Opaque(type.__getattribute__(kind, "__name__"))


def _no_constant(text: str) -> object:
    raise NotStrict(f"{text} is not strict JSON")


class _Scanner:
    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)


_scan = make_scanner(_Scanner())  # type: ignore[arg-type]  # typeshed asks for another make_scanner


def parse(text: str) -> object:
    """JSON text to JSON values; anything before, after or beside one value is an error."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise NotStrict("not JSON") from None
    if end != len(text):
        raise NotStrict("text after the JSON value")
    return value


def build(value: object) -> Any:
    """Parsed JSON to the built-in value it stands for."""
    if isinstance(value, list):
        return [build(x) for x in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise NotStrict("an object has one key, its type")
    ((name, content),) = value.items()
    if isinstance(content, str):
        if name == "int":
            return int(content, 16)
        if name == "float":
            return float(content)
        if name == "bytes":
            return bytes.fromhex(content)
    elif isinstance(content, list):
        if name == "dict" and all(isinstance(pair, list) and len(pair) == 2 for pair in content):
            return {build(k): build(v) for k, v in content}
        if name == "complex" and len(content) == 2:
            real, imaginary = build(content)
            return complex(real, imaginary)
        if name in ("tuple", "set", "frozenset"):
            return {"tuple": tuple, "set": set, "frozenset": frozenset}[name](
                build(x) for x in content
            )
    raise NotStrict(f"{name!r} is no type")


class Channel:
    """The two pipes to the outside."""

    def __init__(self) -> None:
        self.requests, self.replies = os.dup(0), os.dup(1)
        self.buffer = bytearray()

    def _fill(self) -> None:
        if not (chunk := os.read(self.requests, 1 << 16)):
            os._exit(0)  # nobody is left outside
        self.buffer += chunk

    def line(self) -> str:
        while (end := self.buffer.find(b"\n")) < 0:
            self._fill()
        return self.take(end + 1)[:-1].decode("ascii")

    def take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self._fill()
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.replies, view) :]

    def close(self) -> None:
        os.close(self.requests)
        os.close(self.replies)


def main(config: dict[str, Any]) -> None:
    """Drop rights, say so, and serve. Runs as the first process of the sandbox."""
    import resource

    if config["contained"] and getsignal(_SIGCHLD) != 0:
        raise OSError("SIGCHLD is ignored by whoever started this: children would go uncounted")
    if "forked" in config:
        config = _loaded("fork_guest", config["forked"])["forked"](config)
    if not config["contained"]:
        _adopt_orphans()
    if config["uid"] is not None:
        os.setgroups([])
        os.setgid(config["uid"])
        os.setuid(config["uid"])
    for name, bound in config["rlimits"].items():
        which = getattr(resource, name)
        _, hard = resource.getrlimit(which)
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (bound, bound))
    os.closerange(3, 1 << 16)  # bubblewrap leaves open what it was told to wait on
    os.umask(0o077)
    os.chdir(config["folder"])
    channel = Channel()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    vars(builtins).update(exit=_exit, quit=_exit)  # `site` would define them; it is not imported
    if config["files"] is not None:
        config["files"] += _files(config["folder"]) + 3  # and the three that this file keeps there
    channel.write(b"ready\n")
    modes = {
        "programs": _programs,
        "functions": _functions,
        "referee": _referee,
        "resident": _resident,
    }
    modes[config["mode"]](config, channel)


def _resident(config: dict[str, Any], channel: Channel) -> None:
    _loaded("resident_guest", config["serve"])["serve"](config, channel)


def _loaded(name: str, code: CodeType) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": name, "__builtins__": builtins}
    exec(code, module)
    return module


def _exit(code: object = None) -> None:
    raise SystemExit(code)


def _describe(error: BaseException) -> str:
    """`ValueError: the message`, whatever the exception's class makes of being asked."""
    name = type.__getattribute__(type(error), "__name__")
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"{name}: {text}"[:_REASON_CHARACTERS] if text else name


def _is_limit(error: BaseException) -> bool:
    cannot_start = isinstance(error, RuntimeError) and error.args == ("can't start new thread",)
    return (
        isinstance(error, MemoryError)
        or cannot_start
        or (isinstance(error, OSError) and error.errno in _OUT_OF)
    )


def _received(channel: Channel) -> CodeType | None:
    """The response's code object, from its length and source, or None after saying why."""
    try:
        source = channel.take(int(channel.line())).decode("utf-8", "surrogatepass")
        return compile(source, "<response>", "exec", dont_inherit=True)
    except MemoryError:
        channel.write(b"limit\n")
    except Exception as error:
        channel.write(b"refused " + encode_basestring_ascii(_describe(error)).encode() + b"\n")
    return None


def _run_module(code: CodeType, name: str, prelude: str = "") -> dict[str, Any]:
    module = type(sys)(name)
    sys.modules[name] = module
    module.__dict__["__builtins__"] = builtins  # not this file's own, which sandbox.py gave it
    sys.argv = ["response.py"]
    exec(compile(prelude, "<prompt>", "exec", dont_inherit=True), module.__dict__)
    exec(code, module.__dict__)
    return module.__dict__


def _files(folder: str) -> int:
    """Files and folders of all kinds on the scratch disk."""
    disk = os.statvfs(folder)
    return disk.f_files - disk.f_ffree


def _watch(child: int, config: dict[str, Any], channel: Channel) -> str:
    """Wait for the child, end what it left running: `exit N`, `signal N` or `files`."""
    poll, ended = select.poll(), ""
    descriptor = os.pidfd_open(child)
    poll.register(descriptor, select.POLLIN)
    poll.register(channel.requests, 0)  # only the end of the outside
    while not ended:
        events = dict(poll.poll(_TICK_MS))
        if events.get(channel.requests, 0) & (select.POLLHUP | select.POLLERR):
            if config["contained"]:
                os._exit(0)  # and with it the namespace
            ended = "alone"
        elif descriptor in events:
            ended = "exit"
        elif config["files"] is not None and _files(config["folder"]) > config["files"]:
            ended = "files"
    os.close(descriptor)
    # A child that has ended is a zombie still: the signal finds it,
    # ends the others and leaves its status alone.
    if config["contained"]:
        os.kill(-1, _SIGKILL)
    else:
        _kill(-child)  # its group, if it has come to make one
        _kill(child)
    _, status = os.waitpid(child, 0)
    while config["contained"]:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    if not config["contained"]:
        _end_orphans()
    if ended == "alone":
        os._exit(0)
    if ended == "files":
        return ended
    return (
        f"signal {os.WTERMSIG(status)}"
        if os.WIFSIGNALED(status)
        else f"exit {os.WEXITSTATUS(status)}"
    )


def _adopt_orphans() -> None:
    """Without a pid namespace: whoever below this process loses its parent becomes our child."""
    import ctypes

    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_orphans() -> None:
    """Kill the children that are left, and then theirs, which are ours by then."""
    import time

    until = time.monotonic() + _ORPHAN_SECONDS
    while time.monotonic() < until:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended == 0:
            for child in _children():
                _kill(child)
            time.sleep(0.001)


def _kill(whom: int) -> None:
    try:  # noqa: SIM105 (contextlib is as slow to import as all the rest)
        os.kill(whom, _SIGKILL)
    except (ProcessLookupError, PermissionError):  # not there, or somebody else's by now
        pass


def _children() -> list[int]:
    own, found = str(os.getpid()), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                _, parent, *_ = file.read().decode("latin-1").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if parent == own:
            found.append(int(pid))
    return found


def _become_child(config: dict[str, Any], stdin: int, stdout: int, stderr: int) -> None:
    import resource

    os.setsid()
    for descriptor, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(descriptor, target)
        os.close(descriptor)
    seconds = config["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _scratch(folder: str, name: str, *, keep: bool = False) -> int:
    """A new file in the scratch folder, whatever the response has put in its place."""
    path = f"{folder}/{name}"
    if os.path.lexists(path):
        os.unlink(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    if not keep:
        os.unlink(path)
    return descriptor


def _programs(config: dict[str, Any], channel: Channel) -> None:
    """Request: bytes of stdin. Reply: how it ended, bytes of stdout and of stderr."""
    if (code := _received(channel)) is None:
        return
    folder, cap = config["folder"], config["output_bytes"]
    while True:
        stdin = _scratch(folder, ".stdin", keep=True)
        data = channel.take(int(channel.line()))
        with open(stdin, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(stdin, 0, os.SEEK_SET)
        stdout, stderr = _scratch(folder, ".stdout"), _scratch(folder, ".stderr")
        child = os.fork()
        if child == 0:
            channel.close()
            _become_child(config, stdin, stdout, stderr)
            try:
                _run_module(code, "__main__")
            except (MemoryError, RuntimeError, OSError) as error:
                if not _is_limit(error):
                    raise
                _leave_at_limit(error)
            # the interpreter ends as it would after a script:
            # threads joined, atexit run, stdout flushed
            return
        ended = _watch(child, config, channel)
        written = os.fstat(stdout).st_size, os.fstat(stderr).st_size
        if max(written) > cap:
            ended = "output"
        out = os.pread(stdout, min(written[0], cap), 0)
        tail = os.pread(stderr, _TAIL_BYTES, max(0, written[1] - _TAIL_BYTES))
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        channel.write(f"{ended} {len(out)} {len(tail)}\n".encode() + out + tail)


def _leave_at_limit(error: BaseException) -> None:
    """At once: there may be no disk left to flush to, and no end to the threads there are to join."""
    try:  # noqa: SIM105 (contextlib is as slow to import as all the rest)
        os.write(2, _describe(error).encode("utf-8", "replace") + b"\n")
    except OSError:
        pass
    os._exit(LIMIT_STATUS)


def _functions(config: dict[str, Any], channel: Channel) -> None:
    if (code := _received(channel)) is not None:
        _serve(config, channel, lambda: _answer_calls(code, config["prelude"], channel))


def _referee(config: dict[str, Any], channel: Channel) -> None:
    channel.line()  # when the response has loaded
    _serve(config, channel, lambda: _run_tests(config, channel))


def _serve(config: dict[str, Any], channel: Channel, work: Callable[[], None]) -> None:
    """One process does the work and owns the channel; this one says how it ended."""
    stdout, stderr = _scratch(config["folder"], ".stdout"), _scratch(config["folder"], ".stderr")
    child = os.fork()
    if child == 0:
        _become_child(config, os.open("/dev/null", os.O_RDONLY), stdout, stderr)
        work()
        os._exit(0)
    channel.write(b"ended " + _watch(child, config, channel).encode() + b"\n")
    os._exit(0)


def _answer_calls(code: CodeType, prelude: str, channel: Channel) -> None:
    """Request `nonce [name, args, kwargs]`; reply nonce, then `value …`, `raised`, `opaque`, ….

    The nonce is drawn for each request, so a reply written before its request came is the reply to
    nothing.
    """
    try:
        module = _run_module(code, "response", prelude)
    except BaseException as error:
        kind = "limit" if _is_limit(error) else "refused"
        channel.write(f"{kind} {encode_basestring_ascii(_describe(error))}\n".encode())
        return
    channel.write(b"loaded\n")
    while True:
        nonce, _, request = channel.line().partition(" ")
        name, args, kwargs = build(parse(request))
        try:
            reply = "value " + encode(_function(module, name)(*args, **kwargs))
        except Opaque as error:
            reply = "opaque " + encode_basestring_ascii(str(error))
        except BaseException as error:
            ended = "raised" if isinstance(error, Exception) else "exit"
            kind = "limit" if _is_limit(error) else ended
            reply = f"{kind} {encode_basestring_ascii(_describe(error))}"
        channel.write(f"{nonce} {reply}\n".encode())


def _function(module: dict[str, Any], name: str) -> Callable[..., object]:
    """A method of `class Solution`, on a new object for every call, or else a function."""
    solution = module.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        method: Callable[..., object] = getattr(solution(), name)
        return method
    if name not in module:
        raise NameError(f"the response defines no {name}")
    function: Callable[..., object] = module[name]
    return function


class _NotSendable(BaseException):
    """The test code calls the response with a value that cannot cross the border."""


class ResponseError(Exception):
    """The response raised an exception of a class of its own."""


def _run_tests(config: dict[str, Any], channel: Channel) -> None:
    """Run the test code: `call [name, args, kwargs]`, then `passed`, `failed` or `broken`.

    `broken` is the tests' own fault: an error before the response was first called,
    no call at all, or an argument that cannot be sent.
    """
    calls = 0

    def proxy(name: str) -> Callable[..., object]:
        def candidate(*args: object, **kwargs: object) -> object:
            nonlocal calls
            try:
                request = encode([name, list(args), kwargs])
            except Opaque as error:
                raise _NotSendable(f"{name} is called with a value of type {error}") from None
            calls += 1
            channel.write(f"call {request}\n".encode())
            kind, _, content = channel.line().partition(" ")
            if kind == "value":
                return build(parse(content))
            raise _raised(str(parse(content)))

        candidate.__name__ = name
        return candidate

    namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        exec(compile(config["setup"], "<setup>", "exec", dont_inherit=True), namespace)
        namespace.update({name: proxy(name) for name in config["names"]})
        exec(compile(config["tests"], "<tests>", "exec", dont_inherit=True), namespace)
        if config["entry_point"] is not None:
            namespace["check"](namespace[config["entry_point"]])
    except _NotSendable as error:
        outcome = f"broken {encode_basestring_ascii(str(error))}"
    except BaseException as error:
        where = _line(error)
        kind = "failed" if calls else "broken"
        outcome = f"{kind} {encode_basestring_ascii(_describe(error) + where)}"
    else:
        outcome = "passed" if calls else 'broken "the tests never call the response"'
    channel.write(outcome.encode() + b"\n")


def _line(error: BaseException) -> str:
    """Where in the test code it happened."""
    found, frame = "", error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<tests>":
            found = f" (line {frame.tb_lineno} of the tests)"
        frame = frame.tb_next
    return found


def _raised(description: str) -> Exception:
    """The exception to raise in the test code for one raised in the response.

    Only built-in errors keep their class, and StopIteration does not:
    raised inside `map`, it would end the test's own loop early and silently.
    """
    name, _, text = description.partition(": ")
    kind = getattr(builtins, name, None)
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, (StopIteration, UnicodeError))
    ):
        return kind(text)
    return ResponseError(description)
