"""The fixed set of responses, against plain loops: what is shared, what moved, and a run that goes on with it."""

import math

import pytest
import torch

from equipoise import policy as models
from equipoise.evaluate.run import Evaluation, Graded, Judged
from equipoise.tasks import Prompt
from equipoise.train import RunFolder, Trainer, read_lines
from equipoise.train.probe import Probe
from tests.train import tiny

RESPONSES = {
    "1+2=": [("#3", "correct"), ("+2=3#3", "correct"), ("#3", "correct"), ("+1", "wrong")],
    "4+5=": [("#8", "wrong"), ("#7", "wrong"), ("~", "wrong"), ("#9", "correct")],
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return models.load(str(tiny.make_model(tmp_path_factory.mktemp("model"))), device="cpu")


def evaluation(cut=()):
    """As sampled; a response in `cut` has no end token."""
    graded = [
        [Graded(text, len(text) + (text not in cut), Judged(verdict)) for text, verdict in row]
        for row in RESPONSES.values()
    ]
    return Evaluation({}, [Prompt(text, text, "") for text in RESPONSES], graded, [])


def encoded(policy):
    return [models.encode(policy, text) for text in RESPONSES]


def alone(policy, prompt, tokens):
    """log π and entropy of each token, from a plain forward pass."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logp = policy.core(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
    return logp[range(len(tokens)), tokens], -(logp.exp() * logp).sum(-1)


def test_means_are_those_of_a_plain_loop(policy):
    ids = encoded(policy)
    probe = Probe.of(policy, evaluation(cut=("+1",)), ids, 1.0)
    found = probe.metrics(policy, 1.0)
    sums = {"right": [], "wrong": [], "wrong/short": [], "wrong/long": [], "shared": [], "entropy": []}
    for prompt, row in zip(ids, RESPONSES.values(), strict=True):
        texts = [models.encode(policy, text) + ([] if text == "+1" else [2]) for text, _ in row]
        mean = sum(map(len, texts)) / len(texts)
        for i, (tokens, (_, verdict)) in enumerate(zip(texts, row, strict=True)):
            logp, entropy = alone(policy, prompt, tokens)
            kind = "right" if verdict == "correct" else "wrong"
            sums[kind] += logp.tolist()
            sums["entropy"] += entropy.tolist()
            if kind == "wrong" and len(tokens) != mean:
                sums["wrong/short" if len(tokens) < mean else "wrong/long"] += logp.tolist()
            for t in range(len(tokens)):
                others = [other[:t] for j, other in enumerate(texts) if j != i and len(other) > t]
                if tokens[:t] in others:
                    sums["shared"].append(float(logp[t]))
    for name, values in sums.items():
        key = "probe/entropy" if name == "entropy" else f"probe/{name}/logprob"
        if values:
            assert found[key] == pytest.approx(sum(values) / len(values), abs=1e-5), name
    everything = sums["right"] + sums["wrong"]
    assert found["probe/logprob"] == pytest.approx(sum(everything) / len(everything), abs=1e-5)


def test_nothing_has_moved_at_the_start_and_odds_move_with_the_weights(policy):
    probe = Probe.of(policy, evaluation(), encoded(policy), 1.0)
    assert probe.metrics(policy, 1.0)["probe/answers/drift"] == pytest.approx(0, abs=1e-6)
    moved = models.frozen_copy(policy)
    with torch.no_grad():
        moved.core.get_output_embeddings().weight[2] += 1.0  # the end token: shorter answers gain
    now = probe.metrics(moved, 1.0)
    gain = []
    for text in ("#3", "+2=3#3"):
        tokens = [*models.encode(policy, text), 2]
        prompt = models.encode(policy, "1+2=")
        gain.append(float(alone(moved, prompt, tokens)[0].sum() - alone(policy, prompt, tokens)[0].sum()))
    assert now["probe/answers/drift"] == pytest.approx(abs(gain[0] - gain[1]), abs=1e-4)


def test_accuracy_is_told_by_the_success_at_the_start(policy):
    probe = Probe.of(policy, evaluation(), encoded(policy), 1.0)
    assert probe.by_start(evaluation()) == {"start/to-25": 0.25, "start/to-75": 0.75}


def test_many_tokens_are_scored_in_parts(policy, monkeypatch):
    probe = Probe.of(policy, evaluation(), encoded(policy), 1.0)
    whole = probe.metrics(policy, 1.0)
    monkeypatch.setattr("equipoise.train.probe.TOKENS_AT_ONCE", 5)
    parts = probe.metrics(policy, 1.0)
    assert parts.keys() == whole.keys()
    for name, value in whole.items():
        assert parts[name] == pytest.approx(value, abs=1e-5)


def test_a_run_tells_it_and_goes_on_with_the_same_set(tmp_path):
    model = tiny.make_model(tmp_path / "model")
    options = {"eval__probe": True, "train__checkpoint_every": 3, "reward__functions": ["task"]}
    options["train__max_uninformative"] = 99
    Trainer(tiny.settings(model, tmp_path / "whole", **options)).run()
    Trainer(tiny.settings(model, tmp_path / "parts", **options, train__steps=3)).run()
    Trainer(tiny.settings(model, tmp_path / "parts", **options), resume=True).run()
    whole, parts = (read_lines(RunFolder(tmp_path / name).eval) for name in ("whole", "parts"))
    assert whole == parts
    assert [line["step"] for line in whole] == [0, 3, 6]
    assert all(math.isfinite(line["probe/wrong/logprob"]) and "start/none" in line for line in whole)
