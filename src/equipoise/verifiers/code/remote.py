"""The other side of a runner: ask `equipoise sandbox serve` for a verdict over HTTP.

A request is JSON with a nonce, the kind of work and its arguments; the reply repeats the nonce and
has a verdict in the form that workers use. A runner that cannot be reached, refuses the token or
has no sandbox makes the verdict `unavailable`; a reply of any other form makes it `crashed`. The
token travels as it is: use https, or a network that only the two containers share.
"""

from __future__ import annotations

import http.client
import json
import secrets
from typing import Any
from urllib.parse import urlsplit

from equipoise.verifiers.verdict import Verdict, decode
from equipoise.verifiers.workers.worker import LONGEST_REPLY

CONNECT_SECONDS = 10.0
KINDS = ("code", "gym")


class Unreachable(Exception):
    """There is no runner, or it does not take this request; the message says why."""


def ask(url: str, token: str, kind: str, arguments: list[Any], seconds: float) -> Verdict:
    """In a worker: the verdict of the runner at `url`."""
    nonce = secrets.token_hex(16)
    try:
        reply = _exchange(
            url, token, "POST", {"nonce": nonce, "kind": kind, "arguments": arguments}, seconds
        )
    except Unreachable as error:
        return Verdict("unavailable", str(error))
    if reply.get("nonce") != nonce or not isinstance(reply.get("verdict"), dict):
        return Verdict("crashed", f"{url}: the reply is not the one to this request")
    try:
        verdict = decode(json.dumps(reply["verdict"]).encode())
    except ValueError as error:
        return Verdict("crashed", f"{url}: the reply is no verdict: {error}")
    if isinstance(verdict, Verdict):
        return verdict
    return Verdict("crashed", f"{url}: the reply is a number")


def problem(url: str, token: str) -> str | None:
    """None where the runner answers, takes the token and has a sandbox; else why not."""
    try:
        reply = _exchange(url, token, "GET", None, CONNECT_SECONDS)
    except Unreachable as error:
        return str(error)
    if reply.get("isolates") is True:
        return None
    return f"{url}: the runner has no sandbox: {reply.get('why')}"


def _exchange(url: str, token: str, method: str, body: Any, seconds: float) -> dict[str, Any]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)
        connection.connect()
        connection.sock.settimeout(seconds)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, "/verdict", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read(LONGEST_REPLY + 1)
        connection.close()
        if answer.status != 200:
            said = content[:200].decode("utf-8", "replace").strip()
            raise Unreachable(f"{url}: the runner answers {answer.status}: {said}")
        reply = json.loads(content) if len(content) <= LONGEST_REPLY else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise Unreachable(
            f"{url}: the runner cannot be asked: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(reply, dict):
        raise Unreachable(f"{url}: the reply is no object of at most {LONGEST_REPLY} bytes")
    return reply
