"""The plug-in with `vllm_mode="server"`: TRL's own client against a server that speaks vLLM's endpoints."""

import pytest
import torch

pytest.importorskip("trl")

from trl.generation.vllm_client import VLLMClient

from equipoise.objective import Objective, named
from tests.integrations.trl import case
from tests.integrations.trl.test_plugin import EXACT, prompts, split
from tests.integrations.trl.vllm_server import served


def server_options(address: str) -> dict:
    return {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": address, "rollout_func": None}


def known(prompt: int, k: int) -> tuple[list[int], list[float]]:
    tokens = case.completions()[prompt * case.GROUP + k]
    return tokens, case.SAMPLED[: len(tokens)]


def row_reward(completion_ids, **columns):
    """The known reward of each row; TRL passes no row number without a rollout_func."""
    place = {tuple(tokens): i for i, tokens in enumerate(case.completions())}
    return [case.rewards()[place[tuple(ids)]] for ids in completion_ids]


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_the_gradient_corrects_by_the_servers_log_probabilities(model, out, monkeypatch, mode):
    cap = {"token_truncate": 1.5, "sequence_mask": 1e6}[mode]
    correction = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": cap}
    with served(monkeypatch, model, known) as (_, address):
        options = {**server_options(address), **correction, **split(3, 4), "reward_funcs": row_reward}
        watched = case.run(model, out, "dapo+balanced", **options)
    mismatch = {"name": {"token_truncate": "tis", "sequence_mask": "mis"}[mode], "cap": cap}
    wanted = Objective(**named("dapo+balanced").choices() | {"mismatch": mismatch})
    assert watched.trainer.objective.mismatch.spec() == mismatch
    assert case.distance(watched.found[0], case.wanted(model, wanted)) < EXACT


def ends_early(completion_ids, **columns):
    return [float(len(ids) < 8) for ids in completion_ids]


def test_the_server_samples_from_the_weights_of_the_last_step(model, out, monkeypatch):
    """Its log-probabilities of what it drew are the trainer's own, at every step, although the weights move."""
    monkeypatch.setattr(case.Known, "drifts", False)
    options = {"max_steps": 3, "learning_rate": 1e-2, "train_dataset": prompts(4), "reward_funcs": ends_early}
    with served(monkeypatch, model) as (engine, address):
        start = {name: value.detach().clone() for name, value in engine.model.named_parameters()}
        watched = case.run(model, out, "dapo+balanced+hadw", **server_options(address), **options, **split(3, 4))
    differences = [log["sampling/sampling_logp_difference/max"] for log in watched.logs if "reward" in log]
    assert len(differences) == 3
    assert max(differences) < 1e-4
    assert engine.calls.count("/update_weights") == 3
    served_weights = dict(engine.model.named_parameters())
    assert any(not torch.equal(start[name], served_weights[name]) for name in start)
    for name, value in watched.weights[-1].items():  # before the last step, which the server has not seen
        if name in served_weights:
            assert torch.equal(served_weights[name], value), name


def test_trl_hands_weights_over_on_cuda_alone(model, monkeypatch):
    """Where server mode stops without a GPU, in TRL's own words."""
    refuses = VLLMClient.init_communicator
    with served(monkeypatch, model) as (_, address):
        client = VLLMClient(base_url=address)
        with pytest.raises(NotImplementedError, match="needs a CUDA device"):
            refuses(client, torch.device("cpu"))
