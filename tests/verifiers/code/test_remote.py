"""The runner over HTTP: the same verdicts, and what it does to callers and replies that are not what they should be."""

import dataclasses
import json
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from equipoise import doctor
from equipoise.tasks import sandbox_server
from equipoise.verifiers import grade
from equipoise.verifiers.code import backend, remote, sandbox
from equipoise.verifiers.code.sandbox import Limits

TOKEN = "0123456789abcdef0123"
ROW = {"inputs": ["1\n"], "outputs": ["2\n"]}
JOB = ["```python\nprint(int(input()) + 1)\n```", json.dumps(ROW), dataclasses.asdict(Limits())]


@pytest.fixture(scope="module")
def address():
    if (why := sandbox.available()) is not None:
        pytest.skip(why)
    with sandbox_server.server(TOKEN) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def raw(address, data, wait=300.0):
    """What comes back for these bytes."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait) as connection:
        connection.sendall(data)
        return connection.recv(4096)


def post(address, body, token=TOKEN, length=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = len(data) if length is None else length
    head = f"POST /verdict HTTP/1.0\r\nAuthorization: Bearer {token}\r\nContent-Length: {size}\r\n\r\n"
    return raw(address, head.encode() + data)


def test_the_same_verdicts_come_over_http(address, monkeypatch):
    assert remote.ask(address, TOKEN, "code", JOB, 60).kind == "correct"
    monkeypatch.setenv(backend.BACKEND_VARIABLE, address)
    monkeypatch.setenv(backend.TOKEN_VARIABLE, TOKEN)
    assert backend.problem() is None
    grade.forget()
    assert grade.grade_code("```python\nprint(int(input()) + 1)\n```", ROW).kind == "correct"
    assert grade.grade_code("```python\nprint(int(input()) + 2)\n```", ROW).kind == "wrong"
    grade.forget()


def test_doctor_names_the_runner_and_not_the_bubblewrap_of_this_machine(address, monkeypatch):
    monkeypatch.setenv(backend.BACKEND_VARIABLE, address)
    monkeypatch.setenv(backend.TOKEN_VARIABLE, TOKEN)
    grade.forget()
    found = {finding.subject: finding for finding in doctor.examine()}["code verdicts"]
    grade.forget()
    assert found.state == "ok"
    assert address in found.words
    assert "bubblewrap" not in found.words


def test_the_address_for_the_trainer_names_a_machine(address):
    for host, named in {"0.0.0.0": socket.gethostname(), "127.0.0.1": "127.0.0.1"}.items():
        with sandbox_server.server(TOKEN, host=host) as server:
            assert server.url == f"http://{named}:{server.server_port}"


def test_a_request_without_the_token_is_refused_before_its_body_is_read(address):
    head = b"POST /verdict HTTP/1.0\r\nAuthorization: Bearer wrong\r\nContent-Length: 60000000\r\n\r\n"
    assert b"403" in raw(address, head).split(b"\r\n")[0]
    assert b"403" in raw(address, b"GET /verdict HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    assert b"403" in raw(address, b"GET / HTTP/1.0\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n")
    assert remote.ask(address, "wrong", "code", JOB, 60).kind == "unavailable"
    assert "403" in remote.problem(address, "")


def test_bodies_are_bounded_and_must_be_requests(address):
    assert b"413" in post(address, b"", length=sandbox_server.LONGEST_BODY + 1)
    assert b"413" in post(address, b"", length=-1)
    assert b"413" in post(address, b"", length="9" * 40)
    for body in (b"x", b"[]", b"[" * 50_000, {}, {"nonce": "1", "kind": "shell", "arguments": ["id"]},
                 {"nonce": "1", "kind": "code", "arguments": []}, {"nonce": "1", "kind": "code", "arguments": None},
                 {"nonce": "1", "kind": "code", "arguments": ["", "{}", {"seconds": "x"}]}):  # fmt: skip
        assert b" 400 " in post(address, body).split(b"\r\n")[0], body


def test_a_caller_cannot_have_more_than_the_caps_nor_the_unsafe_variant():
    wanted = {**dataclasses.asdict(Limits()), "allow_unsafe": True, "memory_bytes": 1 << 50, "seconds": 1e6}
    limits = sandbox_server.bounded(wanted)
    assert not limits.allow_unsafe
    assert (limits.memory_bytes, limits.seconds) == (sandbox_server.CAPS.memory_bytes, sandbox_server.CAPS.seconds)


def test_it_does_not_start_without_a_sandbox_or_with_a_short_token(monkeypatch):
    if (why := sandbox.available()) is not None:
        pytest.skip(why)
    with pytest.raises(sandbox_server.RunnerError, match="at least 16"):
        sandbox_server.server("short")
    monkeypatch.setattr(sandbox, "available", lambda: "no namespaces here")
    with pytest.raises(sandbox_server.RunnerError, match="nothing to isolate with here: no namespaces"):
        sandbox_server.server(TOKEN)


def test_a_runner_that_is_not_there_makes_verdicts_unavailable(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert remote.ask(address, TOKEN, "code", JOB, 5).kind == "unavailable"
    monkeypatch.setenv(backend.BACKEND_VARIABLE, address)
    assert "cannot be asked" in backend.problem()
    assert grade.grade_code("```python\nprint(1)\n```", ROW).kind == "unavailable"


VERDICT = (
    b'{"nonce": NONCE, "verdict": {"kind": "correct", "reason": "", "seconds": 0.0, "value": 1.0, "answer": null}}'
)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"x", "unavailable"),
        (b"[]", "unavailable"),
        (b"{" * 2000, "unavailable"),
        (b"0" * (2 << 20), "unavailable"),
        (VERDICT.replace(b"NONCE", b'"0"'), "crashed"),
        (b'{"nonce": NONCE, "verdict": {"kind": "great"}}', "crashed"),
        (b'{"nonce": NONCE, "verdict": 1.0}', "crashed"),
        (VERDICT.replace(b"1.0", b"9.0"), "crashed"),
    ],
    ids=["text", "list", "deep", "long", "another nonce", "no verdict", "number", "value"],
)  # fmt: skip
def test_a_runner_that_answers_something_else_is_not_believed(reply, kind):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = reply.replace(b"NONCE", json.dumps(request["nonce"]).encode())
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        verdict = remote.ask(f"http://127.0.0.1:{server.server_address[1]}", TOKEN, "code", JOB, 60)
        server.shutdown()
    assert verdict.kind == kind


def test_a_slow_caller_holds_nobody_up(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /verdict HTTP/1.0\r\nAuthor")
        started = time.monotonic()
        assert remote.problem(address, TOKEN) is None
        assert time.monotonic() - started < 100


def test_a_caller_that_has_gone_costs_no_traceback(address, monkeypatch, capfd):
    gone, done = threading.Event(), threading.Event()
    monkeypatch.setattr(sandbox_server.sandbox, "available", lambda: gone.wait(60) and None)
    monkeypatch.setattr(sandbox_server.Runner, "shutdown_request", lambda *_: done.set())
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"GET /verdict HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
    gone.set()
    assert done.wait(60)
    assert capfd.readouterr().err == ""


def test_what_is_no_backend_is_one_sentence():
    for name in ("docker", "", "ftp://x", "127.0.0.1:80"):
        with pytest.raises(backend.BackendError, match=r"sandbox\.backend = .* is no backend"):
            backend.check(name)


def test_the_configuration_has_the_backend_and_the_limits(tmp_path):
    from equipoise.config import ConfigError, load

    path = tmp_path / "run.toml"
    path.write_text('[sandbox]\nbackend = "http://runner:8770"\nseconds = 2.0\nmemory_bytes = 268435456\n')
    config = load(path)
    assert config.sandbox.limits() == Limits(seconds=2.0, memory_bytes=256 << 20)
    assert load(None).sandbox.limits() == Limits()
    for line in ('backend = "docker"', "seconds = 0.0", "memory_bytes = 5"):
        path.write_text(f"[sandbox]\n{line}\n")
        with pytest.raises(ConfigError):
            load(path)
