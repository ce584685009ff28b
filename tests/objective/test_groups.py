"""Sums over groups: against a plain loop, and the same with the room that CUDA leaves for groups as on the CPU."""

import dataclasses

import pytest
import torch

import equipoise as eq
from equipoise.objective.groups import Batch, Groups

from .cases import draw
from .test_cuda import STACKS


def roomy(groups: Groups) -> Groups:
    """As on CUDA, where nobody asks how many groups there are."""
    return dataclasses.replace(groups, places=len(groups.index))


@pytest.mark.parametrize("room", [lambda g: g, roomy])
@pytest.mark.parametrize("ids", [[3, 1, 3, 3, 1, 7], [0], [2, 2, 2], [0.5, -1.0, 0.5]])
def test_every_sum_is_that_of_a_loop(ids, room):
    groups = room(Groups.of(torch.tensor(ids)))
    x = torch.arange(1.0, len(ids) + 1, dtype=torch.float64)
    mine = [[float(v) for v, other in zip(x, ids, strict=True) if other == own] for own in ids]
    assert groups.sum(x).tolist() == [sum(values) for values in mine]
    assert groups.mean(x).tolist() == [sum(values) / len(values) for values in mine]
    assert groups.max(x).tolist() == [max(values) for values in mine]
    assert groups.min(x).tolist() == [min(values) for values in mine]
    assert groups.size.tolist() == [len(values) for values in mine]
    assert int(groups.number) == int(groups.first.sum()) == len(set(ids))
    assert groups.totals(torch.stack([x, 2 * x])).sum(-1).tolist() == [float(x.sum()), 2 * float(x.sum())]


@pytest.mark.parametrize("room", [lambda g: g, roomy])
def test_a_split_parts_every_group_by_its_mask(room):
    ids, side = [0, 1, 0, 1, 0], [True, False, False, False, True]
    x = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    split = room(Groups.of(torch.tensor(ids))).split(torch.tensor(side))
    pairs = list(zip(ids, side, strict=True))
    wanted = [sum(float(v) for v, other in zip(x, pairs, strict=True) if other == own) for own in pairs]
    assert split.sum(x).tolist() == wanted


def test_the_number_of_groups_is_all_the_room_there_is_on_the_cpu():
    groups = Groups.of(torch.tensor([5, 9, 5, 5]))
    assert groups.places == 2
    assert groups.counts.tolist() == [3, 1]
    assert roomy(groups).counts.tolist() == [3, 1, 1, 1]  # 1 where there is no group: nothing divides by 0
    assert Batch(torch.ones(4), torch.ones(4), roomy(groups), 0.0).group_lengths.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(("preset", "knobs"), STACKS)
def test_credit_and_metrics_do_not_depend_on_the_room(preset, knobs, monkeypatch):
    case = draw(7, torch.float64)
    tokens = case.token if knobs.get("cancellation") == "prefix" else None
    rates = torch.where(torch.arange(len(case.rewards)) % 5 == 0, torch.nan, (case.rewards > 0.5).double())

    def assign(**more):
        objective = eq.Objective.preset(preset, **knobs)
        return objective.assign(case.rewards, case.group, case.lengths, tokens=tokens, **more)

    of = Groups.of
    for more in ({}, {"accuracy": rates}):
        monkeypatch.setattr(Groups, "of", of)
        small = assign(**more)
        monkeypatch.setattr(Groups, "of", lambda ids: roomy(of(ids)))
        large = assign(**more)
        assert large.groups.places > small.groups.places
        assert torch.equal(small.weight, large.weight)
        assert torch.equal(small.advantage, large.advantage)
        assert small.metrics.keys() == large.metrics.keys()
        for name, value in small.metrics.items():
            assert float(large.metrics[name]) == pytest.approx(float(value), abs=1e-14), name
