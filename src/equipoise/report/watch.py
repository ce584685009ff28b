"""The report page of a run that goes on, served on this machine alone, refreshed with the files.

It listens on 127.0.0.1 and answers only requests that name this machine as their host, so that no
other machine, and no web page behind a name that points here, can read it. Other users of the same
machine can. It only reads: restarted, truncated and half-written files are what the next reading
makes of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from equipoise.report import runs as run_folders
from equipoise.report.page import data, embed, render
from equipoise.report.runs import ReportError

HOST = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class Live:
    """What the watched files say now, read again only when one of them has changed."""

    def __init__(self, watched: Sequence[str | Path]) -> None:
        self.watched = watched
        self._lock = threading.Lock()
        self._seen: tuple[object, ...] | None = None
        self._content = self.title = ""
        self.read()

    def read(self) -> tuple[str, str]:
        """The page's data as JSON, and its tag; a run that is gone shows what it last was."""
        with self._lock:
            try:
                paths = run_folders.find(self.watched)
                seen = run_folders.signature(paths)
                if seen != self._seen:
                    content = data(paths)
                    self._content, self.title, self._seen = embed(content), content["title"], seen
            except (ReportError, OSError):
                if not self._content:
                    raise
            return self._content, f'"{hashlib.sha256(self._content.encode()).hexdigest()[:32]}"'


def server(run: str | Path | Sequence[str | Path], port: int = 0) -> ThreadingHTTPServer:
    """The server of `watch`, bound but not yet serving; port 0 takes a free one."""
    live = Live([run] if isinstance(run, str | Path) else run)

    class PageHandler(BaseHTTPRequestHandler):
        server_version, sys_version = "equipoise", ""

        def do_GET(self) -> None:
            here = serving.server_port
            if self.headers.get("Host") not in (f"{HOST}:{here}", f"localhost:{here}"):
                self._answer(403, "text/plain", "This page is for the machine it runs on.")
            elif self.path == "/":
                content, _ = live.read()
                self._answer(200, "text/html", render(content, live.title, live=True))
            elif self.path == "/data.json":
                content, tag = live.read()
                if self.headers.get("If-None-Match") == tag:
                    self._answer(304, "application/json", "", {"ETag": tag})
                else:
                    self._answer(200, "application/json", content, {"ETag": tag})
            else:
                self._answer(404, "text/plain", "There is only / here.")

        def _answer(
            self, status: int, kind: str, text: str, more: dict[str, str] | None = None
        ) -> None:
            body = text.encode()
            headers = {
                "Content-Type": f"{kind}; charset=utf-8",
                "Content-Length": str(len(body)),
                **HEADERS,
            }
            with contextlib.suppress(ConnectionError):  # the browser went away
                self.send_response(status)
                for name, value in {**headers, **(more or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A line per refresh would drown the terminal."""

    try:
        serving = ThreadingHTTPServer((HOST, port), PageHandler)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise ReportError(
            f"port {port}: cannot be listened on: {why}; --port 0 takes a free one"
        ) from error
    return serving


def watch(run: str | Path | Sequence[str | Path], port: int = 8765) -> None:
    """Serve the report of a run (or of a folder of runs) until Ctrl-C."""
    with server(run, port) as serving:
        print(f"http://{HOST}:{serving.server_address[1]}/  (Ctrl-C stops)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            serving.serve_forever()
