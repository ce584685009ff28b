import numpy as np
import torch

from equipoise.rollout.blocks import WINDOW, Size
from equipoise.rollout.step_buffers import Desk
from tests.policy import tiny_models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make() -> Desk:
    policy = tiny_models.policy("grouped")
    policy.model.to(DEVICE)
    return Desk(policy, Size(rows=4, most=3, prompts=2, most_prompt=2, n=2))


def test_what_the_host_fills_in_is_what_a_step_sees():
    desk, chance = make(), np.random.default_rng(0)
    tables = {name: getattr(desk.tables, name) for name in desk.rows._fields}
    for table in tables.values():
        table[:] = chance.integers(1, 99, table.shape)
    desk.tables.keys[:], desk.tables.tokens[:] = range(4), range(10, 14)
    desk.at.fill_(5)
    desk.upload()
    for name, table in tables.items():
        assert np.array_equal(getattr(desk.rows, name).cpu().numpy(), table), name
    assert (desk.keys.tolist(), desk.tokens.tolist()) == ([0, 1, 2, 3], [10, 11, 12, 13])
    assert desk.at.item() == 0


def test_what_was_drawn_comes_back_for_the_rows_and_steps_asked():
    desk = make()
    desk.drawn.copy_(torch.arange(desk.drawn.numel()).view(WINDOW, 4))
    desk.logprobs.copy_(-torch.arange(desk.logprobs.numel()).view(WINDOW, 4))
    desk.download()
    tokens, logprobs = desk.results(2, 3)
    assert tokens.tolist() == [[0, 1, 2], [4, 5, 6]]
    assert np.array_equal(logprobs, -tokens)


def test_graphs_stay_as_long_as_nothing_they_know_has_moved():
    desk = make()
    desk.anchor((1, 2))
    desk.graphs["a"] = "graph"
    desk.anchor((1, 2))
    assert desk.graphs
    desk.anchor((1, 3))
    assert not desk.graphs
