"""`equipoise push`: the folder it would upload, and its calls, against a stand-in for huggingface_hub's API."""

import json
import os
import types

import huggingface_hub
import pytest
import yaml

from equipoise import policy as models
from equipoise.cli import main
from equipoise.config import Config, load
from equipoise.integrations.hub import PushError, push
from equipoise.integrations.model_card import judged_by
from equipoise.train import Trainer
from tests.train.tiny import make_model, settings


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps with a checkpoint each; the best is the second."""
    folder = tmp_path_factory.mktemp("published")
    options = {
        "train__steps": 2, "train__checkpoint_every": 1, "train__keep_best": "acc@2", "train__average": 2,
        "eval__every": 1, "log__rollouts_every": 1, "log__entity": "our-team", "log__terminal": False,
        "sandbox__backend": "bubblewrap", "model__lora_rank": 2, "model__lora_alpha": 12.0,
        "model__lora_targets": ["q_proj"], "model__lora_dropout": 0.1,
    }  # fmt: skip
    Trainer(settings(make_model(folder / "base-model"), folder / "run", **options)).run()
    records = [json.loads(line) for line in (folder / "run" / "eval.jsonl").read_text().splitlines()]
    for record, value in zip(records, (0.1, 0.25, 0.5), strict=True):
        record["acc@2"], record["interval"]["acc@2"] = value, [value - 0.1, value + 0.1]
    (folder / "run" / "eval.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / "run"


class Api:
    """HfApi's two methods, with its own signatures, so that a call the real one would refuse fails here."""

    calls: list = []  # noqa: RUF012

    def _called(self, name, arguments, options):
        import inspect

        inspect.signature(getattr(huggingface_hub.HfApi, name)).bind(self, *arguments, **options)
        self.calls.append((name, arguments, options))

    def create_repo(self, *arguments, **options):
        self._called("create_repo", arguments, options)

    def upload_folder(self, *arguments, **options):
        files = sorted(p.name for p in os.scandir(options["folder_path"]))
        self._called("upload_folder", arguments, options | {})
        self.calls.append(("files", files, {}))


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(Api, "calls", [])
    return Api


def front(card):
    return yaml.safe_load(card.split("---")[1])


def test_the_folder_is_a_model_with_its_card(run, api):
    said = push(str(run), "me/model", dry_run=True)
    assert api.calls == []
    assert "nothing was uploaded" in said
    out = run / "hub"
    assert models.load(out).eos == (2,)
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "config.toml", "config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not {"trainer.pt", "SHA256SUMS", "adapter"} & names


def test_the_card_carries_data_objective_biases_and_evaluations(run, api):
    push(str(run), "me/model", weights="last", dry_run=True)
    card = (run / "hub" / "README.md").read_text()
    assert front(card)["library_name"] == "transformers"
    assert "grpo" in front(card)["tags"]
    sections = {part.splitlines()[0]: part for part in card.split("\n## ")[1:]}
    assert list(sections) == ["Data", "Objective", "Biases", "Evaluations", "The run"]
    assert "`arithmetic`" in sections["Data"]
    assert "judged by tests.train.reward_functions:ones" in sections["Data"]
    assert "Different prompts in the run: 8." in sections["Data"]
    assert "(LoRA adapters of rank 2 and alpha 12 on q_proj, dropout 0.1, merged)" in card
    assert "| measure | mean of step 2 |" in sections["Biases"]
    assert "| aggregation | " in sections["Objective"]
    assert "| steps | 2 of 2 |" in sections["Objective"]
    assert "`bias/mass_balance`" in sections["Biases"]
    assert "- sign-length coupling: " in sections["Biases"]
    assert "| acc@2 | 0.100 [0.000, 0.200] | 0.500 [0.400, 0.600] |" in sections["Evaluations"]


def test_nothing_of_the_machine_is_published(run, api):
    push(str(run), "me/model", dry_run=True)
    for path in (run / "hub").rglob("*"):
        assert str(run.parent).encode() not in path.read_bytes(), path
        assert b"our-team" not in path.read_bytes(), path
    published = load(run / "hub" / "config.toml")
    assert published.model.name == "base-model"
    assert published.optim.lr == load(run / "config.toml").optim.lr


@pytest.mark.parametrize(("weights", "said"), [("best", "step 2, the best by acc@2"), ("1", "step 1"), ("", "step 2")])
def test_the_weights_that_are_meant_are_uploaded(run, api, weights, said):
    told = push(str(run), "me/model", weights=weights, private=True)
    assert told.startswith("https://huggingface.co/me/model has " + said)
    (first, names, options), (second, _, upload), (_, files, _) = api.calls
    assert (first, names, options["private"], options["exist_ok"]) == ("create_repo", ("me/model",), True, True)
    assert (second, upload["repo_id"], upload["folder_path"]) == ("upload_folder", "me/model", str(run / "hub"))
    assert "README.md" in files
    assert "trainer.pt" not in files


def test_the_mean_is_called_one(run, api):
    push(str(run), "me/model", weights="averaged", dry_run=True)
    card = (run / "hub" / "README.md").read_text()
    assert "the weights of the mean of the last checkpoints" in card
    assert "the mean itself was not evaluated" in card


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"to": "model"}, r"--to model: must be the hub's name of a model, OWNER/NAME"),
        ({"weights": "9"}, r"--weights 9: must be last, best, averaged or a step that was kept, 1, 2"),
        ({"run": "nowhere"}, r"nowhere: holds no run"),
    ],
)
def test_what_cannot_be_published_is_one_sentence(run, api, options, said):
    asked = {"run": str(run), "to": "me/model", **options}
    with pytest.raises(PushError, match=said):
        push(asked.pop("run"), asked.pop("to"), **asked)
    assert api.calls == []


def test_a_hub_that_refuses_is_one_sentence_and_the_folder_stays(run, api, monkeypatch, capsys):
    def refused(self, *arguments, **options):
        raise huggingface_hub.errors.HfHubHTTPError("401 Unauthorized\nmore", response=types.SimpleNamespace(
            headers={}, request=None, status_code=401))  # fmt: skip

    monkeypatch.setattr(Api, "create_repo", refused)
    with pytest.raises(SystemExit) as ended:
        main(["push", str(run), "--to", "me/model"])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("equipoise: me/model: the hub refused, or cannot be reached: 401 Unauthorized; ")
    assert (run / "hub" / "README.md").exists()


@pytest.mark.parametrize(
    ("reward", "verifier", "said"),
    [
        (("task", "tags"), "", "verified by the verifier of each row, else math"),
        (("task",), "math", "verified by math"),
        (("/home/me/mine.py:right", "boxed"), "", "judged by mine.py:right"),
    ],
)
def test_the_card_names_who_judged(reward, verifier, said):
    config = Config(
        task={"name": "rows.jsonl", "verifier": verifier}, reward={"functions": reward, "weights": [1.0] * len(reward)}
    )
    assert judged_by(config) == said


@pytest.mark.parametrize("task", ["arithmetic", "gym:chain_sum"])
def test_the_card_says_where_the_task_itself_judged(task):
    assert judged_by(Config(task={"name": task}, reward={"functions": ["task"]})) == "verified by the task itself"
