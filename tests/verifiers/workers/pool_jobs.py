"""What the pool's tests make workers do; imported by the workers, so by name."""

import contextlib
import glob
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

from equipoise.verifiers import Verdict


def echo(value: float) -> float:
    return value


def parity(number: int, seconds: float) -> Verdict:
    time.sleep(seconds)
    return Verdict("correct" if number % 2 else "wrong", str(number))


def spin(seconds: float) -> float:
    """Use that much of a core."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return 1.0


def misbehave(how: str, mark: str = "") -> Verdict | float:
    """`mark` is an argument of the process that "child" starts, by which a test finds it."""
    match how:
        case "fine":
            return 0.5
        case "hang":
            while True:
                pass
        case "sleep":
            time.sleep(3600)
        case "deaf":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            time.sleep(3600)
        case "child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", mark])
            time.sleep(3600)
        case "raise":
            raise LookupError("a \ud800 in the message")
        case "quit":
            sys.exit(0)
        case "exit":
            os._exit(0)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "memory":
            raise MemoryError
        case "nan":
            return float("nan")
        case "none":
            return None  # type: ignore[return-value]
        case "much":
            return Verdict("wrong", "x" * 10_000_000, answer="y" * 10_000_000)
        case "surrogate":
            return Verdict("wrong", "\ud800\x00", answer="\udfff")
    raise AssertionError(how)


NEXT_HAS_COME = threading.Event()


def forge(how: str) -> float:
    """Write a whole reply that says `correct` to every socket, at once or when the next job has come."""
    body = json.dumps({"kind": "correct", "reason": "", "seconds": 0.0, "value": 1.0, "answer": None}).encode()
    data = (24 + len(body)).to_bytes(4, "big") + bytes(24) + body

    def write() -> None:
        for path in glob.glob("/proc/self/fd/*"):
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("socket:"):
                    os.write(int(os.path.basename(path)), data)

    def write_later() -> None:
        NEXT_HAS_COME.wait()
        write()

    if how == "now":
        write()
        time.sleep(3600)
    elif how == "later":
        threading.Thread(target=write_later, daemon=True).start()
    elif how == "honest":
        NEXT_HAS_COME.set()
        time.sleep(3600)  # until the pool has read what the thread writes
    return 0.0


def babble(seed: int, valid: bool) -> float:
    """Write bytes of its own to every socket it has, as a worker taken over by what it read might."""
    draw = random.Random(seed)
    data = draw.randbytes(draw.choice((0, 1, 3, 4, 5, 50, 5000)))
    if valid:  # a whole frame around something that is no verdict
        body = draw.choice((b"nan", b"1e999", b"{}", b"[" * 50_000, b'"correct"', b"\xff", b"null", b"true", b"7",
                            json.dumps({"kind": "correct"}).encode(), json.dumps({"kind": "great", "reason": "",
                            "seconds": 0.0, "value": None, "answer": None}).encode(), json.dumps({"kind": "correct",
                            "reason": "", "seconds": 0.0, "value": 5.0, "answer": None}).encode()))  # fmt: skip
        data = len(body).to_bytes(4, "big") + body
    for path in glob.glob("/proc/self/fd/*"):
        fd = int(os.path.basename(path))
        try:
            if os.readlink(path).startswith("socket:"):
                os.write(fd, data)
                if draw.random() < 0.3:
                    socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_WR)
        except OSError:
            pass
    os._exit(0)
