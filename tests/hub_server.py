"""A hub on this machine, for tests of what asks the hub."""

import http.server
import threading

import pytest


class Hub(http.server.BaseHTTPRequestHandler):
    """Knows owner/model, keeps owner/gated to itself, and is ill where it is asked for owner/ill."""

    def do_GET(self):
        name = self.path.removeprefix("/api/models/").removeprefix("/api/datasets/")
        if name != self.path:  # the client has questions of its own besides
            self.server.asked.append(name)
        if name == "owner/model":
            status, code, body = 200, None, b'{"id": "owner/model"}'
        elif name == "owner/gated":
            status, code, body = 403, "GatedRepo", b"{}"
        elif name == "owner/ill":
            status, code, body = 500, None, b"{}"
        else:
            status, code, body = 404, "RepoNotFound", b"{}"
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def hub_asked(monkeypatch):
    """What a hub on this machine was asked for."""
    from huggingface_hub import constants

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server.asked
        server.shutdown()


@pytest.fixture
def hub_nowhere(hub_asked, monkeypatch):
    """A hub that nobody listens for."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
