"""`equipoise sandbox serve`: verdicts over HTTP, for a trainer that cannot isolate anything.

It must run where the sandbox works, and does not start elsewhere. Every request needs the token,
compared before the body is read; bodies, limits and the number of requests at a time are bounded;
it listens on 127.0.0.1 unless told otherwise. What it runs is isolated exactly as on the trainer's
machine: by `equipoise.verifiers.code.sandbox`.

Not covered: encryption. On a network that others share put it behind a proxy that ends TLS,
or a tunnel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from equipoise.verifiers import grade
from equipoise.verifiers.code import sandbox
from equipoise.verifiers.code.remote import KINDS
from equipoise.verifiers.code.sandbox import Limits
from equipoise.verifiers.verdict import Verdict, encode
from equipoise.verifiers.workers.process_pool import Pool
from equipoise.verifiers.workers.shared import pool

LONGEST_BODY = 64 << 20  # bytes
READ_SECONDS = 30.0  # for a request to arrive
SHORTEST_TOKEN = 16  # characters
AT_ONCE = 64  # requests
# What a request may ask for at most, whatever its own limits say.
CAPS = Limits(
    seconds=60,
    total_seconds=300,
    memory_bytes=8 << 30,
    output_bytes=64 << 20,
    processes=128,
    disk_bytes=1 << 30,
    files=10_000,
)


class RunnerError(RuntimeError):
    """The runner cannot start; the message is one sentence for the user."""


class Runner(ThreadingHTTPServer):
    """Bound, but not yet serving."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        super().__init__(address, RunnerHandler)
        self.authorization = f"Bearer {token}".encode()
        self.turns = threading.BoundedSemaphore(AT_ONCE)

    @property
    def url(self) -> str:
        """For the trainer: 0.0.0.0 is every address of this machine, and elsewhere none of them."""
        bound = str(self.server_address[0])
        host = socket.gethostname() if bound == "0.0.0.0" else bound
        return f"http://{host}:{self.server_port}"


class RunnerHandler(BaseHTTPRequestHandler):
    server: Runner
    timeout = READ_SECONDS

    def do_GET(self) -> None:
        if self._may():
            why = sandbox.available()
            self._reply(200, {"isolates": why is None, "why": why})

    def do_POST(self) -> None:
        if not self._may():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 12 or int(length) > LONGEST_BODY:
            self._refuse(413, f"a body must have a length of at most {LONGEST_BODY} bytes")
            return
        if not self.server.turns.acquire(blocking=False):
            self._refuse(503, f"{AT_ONCE} requests are running")
            return
        try:
            self._judge(self.rfile.read(int(length)))
        finally:
            self.server.turns.release()

    def _judge(self, body: bytes) -> None:
        try:
            request = json.loads(body)
            nonce = str(request["nonce"])[:64]
            target, arguments, seconds = _work(request["kind"], request["arguments"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._refuse(400, f"{type(error).__name__}: {error}"[:200])
            return
        verdict = target.submit(*arguments, seconds=seconds).result()
        if not isinstance(verdict, Verdict):
            verdict = Verdict("crashed", "it gave a plain number")
        self._reply(200, {"nonce": nonce, "verdict": json.loads(encode(verdict))})

    def _may(self) -> bool:
        said = self.headers.get("Authorization", "").encode("utf-8", "replace")
        # In the same time for every token, so that none can be guessed a character at a time.
        right = secrets.compare_digest(said, self.server.authorization)
        if self.path == "/verdict" and right:
            return True
        self._refuse(403, "the token is not the runner's")
        return False

    def _refuse(self, status: int, why: str) -> None:
        self._reply(status, {"error": why})

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        with contextlib.suppress(ConnectionError):  # the caller has gone
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing: a token could stand in a line, and responses are not for a log."""


def server(token: str, *, host: str = "127.0.0.1", port: int = 0) -> Runner:
    """Bound, but not yet serving; port 0 takes a free one."""
    if (why := sandbox.available()) is not None:
        raise RunnerError(f"there is nothing to isolate with here: {why}")
    if len(token) < SHORTEST_TOKEN:
        raise RunnerError(
            f"a token of {len(token)} characters: it must have at least {SHORTEST_TOKEN}"
        )
    return Runner((host, port), token)


def _work(kind: str, arguments: list[Any]) -> tuple[Pool[Verdict], list[Any], float]:
    """The pool that does it, its arguments within bounds, and a hanging worker's deadline."""
    if kind not in KINDS:
        raise ValueError(f"kind = {kind!r}: it must be one of {', '.join(KINDS)}")
    if kind == "code":
        response, row, wanted = arguments
        limits = bounded(wanted)
        asked: list[Any] = [str(response), str(row), dataclasses.asdict(limits)]
        return pool("code"), asked, grade.code_seconds(limits)
    from equipoise.tasks import gym

    job, alone, seconds = arguments
    asked = [str(job), bool(alone), min(float(seconds), CAPS.seconds)]
    return gym.local_pool(), asked, gym.JOB_SECONDS


def bounded(wanted: dict[str, Any]) -> Limits:
    """The limits of a request, none above `CAPS`, and never the unsafe variant."""
    names = [field.name for field in dataclasses.fields(Limits) if field.name != "allow_unsafe"]
    return Limits(
        **{name: min(wanted.get(name, getattr(CAPS, name)), getattr(CAPS, name)) for name in names}
    )
