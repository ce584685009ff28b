import numpy as np
import torch

from equipoise.rollout.blocks import WINDOW, Size
from equipoise.rollout.step_buffers import StepBuffers
from tests.policy import tiny_models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make() -> StepBuffers:
    policy = tiny_models.policy("grouped")
    policy.model.to(DEVICE)
    return StepBuffers(policy, Size(rows=4, most=3, prompts=2, most_prompt=2, n=2))


def test_what_the_host_fills_in_is_what_a_step_sees():
    buffers, chance = make(), np.random.default_rng(0)
    tables = {name: getattr(buffers.tables, name) for name in buffers.rows._fields}
    for table in tables.values():
        table[:] = chance.integers(1, 99, table.shape)
    buffers.tables.keys[:], buffers.tables.recent[:, 0] = range(4), range(10, 14)
    buffers.record.at.fill_(5)
    buffers.record.advanced.fill_(5)
    buffers.upload()
    for name, table in tables.items():
        assert np.array_equal(getattr(buffers.rows, name).cpu().numpy(), table), name
    assert (buffers.keys.tolist(), buffers.record.recent.tolist()) == ([0, 1, 2, 3], [[10], [11], [12], [13]])
    assert buffers.record.at.item() == 0
    assert not buffers.record.advanced.any()


def test_what_was_drawn_comes_back_for_the_rows_and_steps_asked():
    buffers = make()
    record = buffers.record
    record.tokens.copy_(torch.arange(record.tokens.numel()).view(WINDOW, 4))
    record.logprobs.copy_(-torch.arange(record.logprobs.numel()).view(WINDOW, 4))
    record.passes[0], record.passes[1], record.recent[:] = 1, 7, 9
    buffers.download()
    window = buffers.results(2, 3)
    assert window.tokens.tolist() == [[0, 1, 2], [4, 5, 6]]
    assert np.array_equal(window.logprobs, -window.tokens)
    assert (window.given.tolist(), window.tried.tolist()) == (2 * [[1, 1, 1]], 2 * [[7, 7, 7]])
    assert window.recent.tolist() == [[9], [9], [9]]


def test_drafts_make_a_window_wider_and_keep_more_of_a_rows_end():
    policy = tiny_models.policy("grouped")
    policy.model.to(DEVICE)
    buffers = StepBuffers(policy, Size(rows=4, most=3, prompts=2, most_prompt=2, n=2, drafts=3))
    buffers.tables.recent[:] = np.arange(16).reshape(4, 4)
    buffers.upload()
    buffers.download()
    window = buffers.results(2, 3)
    assert window.tokens.shape == (8, 3)
    assert window.recent.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_graphs_stay_as_long_as_nothing_they_know_has_moved():
    buffers = make()
    buffers.anchor((1, 2))
    buffers.graphs["a"] = "graph"
    buffers.anchor((1, 2))
    assert buffers.graphs
    buffers.anchor((1, 3))
    assert not buffers.graphs
