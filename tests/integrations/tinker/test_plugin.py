"""The Tinker adapter through tinker's real client, on a server of its protocol in this process.

tinker is in no extra of ours; without it these tests skip.
"""

import pytest
import torch

pytest.importorskip("tinker", reason="the Tinker client is not installed: pip install tinker")

from benchmarks.engine_batch import drawn, objective_of, ours
from benchmarks.engines import OBJECTIVES
from benchmarks.tinker_server import Server
from equipoise import Objective
from equipoise.integrations.tinker import plugin


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_ours(name):
    batch = drawn(1)
    server = Server(batch)
    plugin.forward_backward(server.client, objective_of(name), **server.arguments()).result()
    want = ours(name, batch)
    assert float((server.gradient() - want).abs().max() / want.abs().max()) < 1e-5
    host, _ = plugin.loss_of(objective_of(name))
    # Tinker's own loss takes one pass; a custom one a forward pass before it.
    assert set(server.losses) == ({"cross_entropy"} if host == "custom" else {host})


def test_prompts_have_no_part_in_it():
    from tinker import types

    made = plugin.data([[5, 6, 7]], [[8, 9]], [[-0.5, -0.25]], torch.tensor([2.0]))
    assert [type(d) for d in made] == [types.Datum]
    inputs = {k: v.to_torch().tolist() for k, v in made[0].loss_fn_inputs.items()}
    assert inputs == {
        "target_tokens": [6, 7, 8, 9], "logprobs": [0, 0, -0.5, -0.25], "advantages": [0, 0, 2, 2],
    }  # fmt: skip
    assert made[0].model_input.to_ints() == [5, 6, 7, 8]
    with pytest.raises(ValueError, match="empty prompt"):
        plugin.data([[]], [[8]], [[-0.5]], torch.tensor([2.0]))


def test_what_the_server_does_itself_is_refused():
    server = Server(drawn(1))
    with pytest.raises(ValueError, match="kl is Tinker's own"):
        plugin.forward_backward(server.client, Objective.preset("grpo", kl=0.1), **server.arguments())
