"""What an objective would have done to a log, as sums over groups, which give every measure.

The coefficients are those of `Objective.assign` on each step's batch. `log_values` and
`objective_values` turn sums into the measures that `objective/bias.py` takes of a whole batch; the
sums of one batch give the same numbers. Sums, because they can be added up over the prompts of any
resample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.audit.log import Floats, Integers, Log
from equipoise.objective import Credit, response_ids
from equipoise.objective.cancellation import Nodes
from equipoise.objective.groups import Groups, positions

Sums = dict[str, NDArray[Any]]  # [groups] each

DECILES = 10
NODE_TOKENS = 1 << 21  # tokens whose shared prefixes are found at a time
# Of each group: T is the length, ± the sign of the advantage.
LOG_SUMS = (
    "groups", "responses", "T", "TT", "reward", "T+", "n+", "T-", "n-", "mixed", "gap", "cv", "both",
    "truncated", "from_balanced_token", "from_balanced_sequence", "balanced",
)  # fmt: skip
# w is a response's weight; w0 and live0 are those of the shortest tenth of the responses.
OBJECTIVE_SUMS = (
    "informative", "balance", "imbalance", "residual", "push", "zero_sum", "tax", "mass+", "mass-",
    "live", "w", "ww", "node_residual", "nodes", "node_push", "node_mass",
    *(f"w{tenth}" for tenth in range(DECILES)),
    *(f"live{tenth}" for tenth in range(DECILES)),
)  # fmt: skip


@dataclass(frozen=True)
class SharedNodes:
    """The tokens that two or more responses of a group share, each with all before it."""

    node: Integers  # [n] node of each such token
    token: Integers  # [n] its place in the batch's flat tokens
    row: Integers  # [n] its response
    group: Integers  # [nodes]
    common: NDArray[np.bool_]  # [nodes] shared by the whole group


@dataclass(frozen=True)
class StepRows:
    """One step's batch: its rows of the log, groups numbered from 0."""

    rows: slice
    group: Integers  # [B]
    prompt: Integers  # [groups]
    G: Floats  # [groups]
    nodes: SharedNodes | None


def steps(log: Log) -> Iterator[tuple[StepRows, torch.Tensor | None]]:
    """Each step, and its flat tokens."""
    start = np.cumsum(log.length) - log.length
    for rows in log.steps():
        group = log.group[rows] - log.group[rows.start]
        first_of_group = np.flatnonzero(np.diff(group, prepend=-1))
        prompt = log.prompt[rows][first_of_group]
        G = np.bincount(group).astype(np.float64)
        tokens = nodes = None
        if log.tokens is not None:
            length = log.length[rows]
            begin = int(start[rows.start])
            tokens = torch.from_numpy(log.tokens[begin : begin + int(length.sum())])
            nodes = shared_nodes(tokens, length, group, G)
        yield StepRows(rows, group, prompt, G, nodes), tokens


def shared_nodes(tokens: torch.Tensor, length: Integers, group: Integers, G: Floats) -> SharedNodes:
    """Found for a few whole groups at a time, to bound memory."""
    parts: list[SharedNodes] = []
    token_end = np.cumsum(length)  # of each row
    row_end = np.cumsum(G).astype(np.int64)  # of each group
    group_token_end = token_end[row_end - 1]
    g = 0
    while g < len(G):
        first_row = int(row_end[g] - G[g])
        first_token = int(token_end[first_row] - length[first_row])
        fitting = np.searchsorted(group_token_end, first_token + NODE_TOKENS, side="right")
        next_g = max(g + 1, int(fitting))  # a group larger than the bound goes alone
        rows = slice(first_row, int(row_end[next_g - 1]))
        its_tokens = tokens[first_token : int(group_token_end[next_g - 1])]
        part = _nodes_of(its_tokens, length[rows], group[rows], G)
        found = sum(len(earlier.group) for earlier in parts)
        node, token, row = part.node + found, part.token + first_token, part.row + first_row
        parts.append(replace(part, node=node, token=token, row=row))
        g = next_g
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return SharedNodes(*map(np.concatenate, columns))


def _nodes_of(tokens: torch.Tensor, length: Integers, group: Integers, G: Floats) -> SharedNodes:
    """The shared nodes of these responses: tokens and rows are counted from the first of them."""
    T = torch.from_numpy(length)
    response = response_ids(T, len(tokens))
    groups = Groups.of(torch.from_numpy(group))
    nodes = Nodes(tokens, T, response, positions(T, len(tokens)), groups)
    token = torch.nonzero(nodes.count >= 2)[:, 0].numpy()
    row = response.numpy()[token]
    # `first`: one token of each node, which tells what all of them have in common
    ids = nodes.node.numpy()[token]
    _, first, node = np.unique(ids, return_index=True, return_inverse=True)
    node_group = group[row[first]]
    responses = nodes.count.numpy()[token][first]
    return SharedNodes(node, token, row, node_group, responses == G[node_group])


def decile_edges(log: Log) -> Floats:
    """The lengths that part the log's responses into tenths."""
    tenths = np.arange(1, DECILES) / DECILES
    trained_on = log.length > 0
    return np.asarray(np.quantile(log.length[trained_on], tenths), np.float64)


def objective_sums(step: StepRows, T: Floats, credit: Credit, edges: Floats) -> Floats:
    """[groups, OBJECTIVE_SUMS]"""
    A, w, c_token = _weights(credit)
    c = w * A
    sums = {**_mass_sums(step, T, A, c), **_weight_sums(step, T, A, w, edges)}
    if step.nodes is not None:
        n_groups = len(step.G)
        mine = c[step.nodes.row] if c_token is None else c_token[step.nodes.token]
        sums |= _node_sums(step.nodes, mine, n_groups)
        sums["node_mass"] = _over(step, np.abs(c) * T)
    return _table(OBJECTIVE_SUMS, sums, len(step.G))


def _mass_sums(step: StepRows, T: Floats, A: Floats, c: Floats) -> Sums:
    """How the coefficients c of a group's responses, and their masses c·T, add up."""
    push = _over(step, c)
    size = _over(step, np.abs(c))
    mass = _over(step, np.abs(c) * T)
    balance = _ratio(_over(step, c * T), mass)
    informative = size > 0
    return {
        "informative": informative.astype(np.float64),
        "balance": balance,
        "imbalance": np.abs(balance),
        "residual": _ratio(np.abs(push), size),
        "push": _ratio(push, size),
        "zero_sum": _ratio(np.abs(_over(step, A)), _over(step, np.abs(A))) * informative,
        "tax": _ratio(np.abs(push), mass),
        "mass+": _over(step, np.where(A > 0, c * T, 0.0)),
        "mass-": _over(step, np.where(A < 0, -c * T, 0.0)),
    }


def _weight_sums(step: StepRows, T: Floats, A: Floats, w: Floats, edges: Floats) -> Sums:
    """What the tokens with an advantage weigh, together and by tenth of length."""
    live = T * (A != 0)
    # 1 is the step's mean weight: steps differ in scale alone
    w = w * live.sum() / max((w * live).sum(), 1e-300)
    n_groups = len(step.G)
    cell = step.group * DECILES + np.searchsorted(edges, T, side="left")

    def by_tenth(x: Floats) -> Floats:
        """[DECILES, groups]"""
        sums = np.bincount(cell, x, n_groups * DECILES).astype(np.float64)
        return sums.reshape(n_groups, DECILES).T

    return {
        "live": _over(step, live),
        "w": _over(step, w * live),
        "ww": _over(step, w * w * live),
        **{f"w{tenth}": column for tenth, column in enumerate(by_tenth(w * live))},
        **{f"live{tenth}": column for tenth, column in enumerate(by_tenth(live))},
    }


def _weights(credit: Credit) -> tuple[Floats, Floats, Floats | None]:
    """A [B], the mean weight of a response's tokens and, where they differ, each coefficient."""
    A, w = credit.advantage.numpy(), credit.weight.numpy()
    if not credit.per_token:
        return A, w, None
    T = credit.lengths.numpy()
    per_row = np.bincount(np.repeat(np.arange(len(T)), T), w, len(T)) / np.maximum(T, 1)
    return A, per_row, credit.coefficient.numpy()


def _node_sums(nodes: SharedNodes, c: Floats, n_groups: int) -> Sums:
    """c [n]: the coefficient of each shared token."""
    n_nodes = len(nodes.group)
    push = np.asarray(np.abs(np.bincount(nodes.node, c, n_nodes)), np.float64)
    mass = np.asarray(np.bincount(nodes.node, np.abs(c), n_nodes), np.float64)
    return {
        "node_residual": np.bincount(nodes.group, _ratio(push, mass), n_groups),
        "nodes": np.bincount(nodes.group, mass > 0, n_groups),
        "node_push": np.bincount(nodes.group, push * nodes.common, n_groups),
    }


def objective_values(S: Floats) -> dict[str, Floats]:
    """[..., OBJECTIVE_SUMS] -> measures [...], NaN where there is nothing to measure.

    Names and meanings are those of `objective.bias.measures`; besides,
    positive_share   share of the gradient mass Σ|c|T on responses with A > 0
    coupling         mass on A > 0 over mass on A < 0: how many times as hard the positives pull
    net_push         Σc / Σ|c|, mean over groups: exchangeability with its sign, > 0 where common tokens are reinforced
    """

    def s(name: str) -> Floats:
        return S[..., OBJECTIVE_SUMS.index(name)]

    n = s("informative")
    mean_w = divide(s("w"), s("live"))
    variance = np.maximum(divide(s("ww"), s("live")) - mean_w**2, 0.0)
    return {
        "positive_share": divide(s("mass+"), s("mass+") + s("mass-")),
        "coupling": divide(s("mass+"), s("mass-")),
        "mass_balance": divide(s("balance"), n),
        "mass_imbalance": divide(s("imbalance"), n),
        "equal_weighting": divide(np.sqrt(variance), mean_w),
        "exchangeability": divide(s("residual"), n),
        "net_push": divide(s("push"), n),
        "zero_sum": divide(s("zero_sum"), n),
        "learning_tax": divide(s("tax"), n),
        "node_exchangeability": divide(s("node_residual"), s("nodes")),
        "node_learning_tax": divide(s("node_push"), s("node_mass")),
    }


def token_weights(S: Floats) -> dict[str, Floats]:
    """[..., OBJECTIVE_SUMS] -> the weight of a token in each tenth of lengths, 1 being the mean."""
    out = {}
    for tenth in range(DECILES):
        weight = S[..., OBJECTIVE_SUMS.index(f"w{tenth}")]
        live = S[..., OBJECTIVE_SUMS.index(f"live{tenth}")]
        out[f"live{tenth}"] = divide(weight, live)
    return out


def support(sums: Floats, names: tuple[str, ...]) -> dict[str, int]:
    """[P, names] -> how many prompts have something in each sum."""
    return dict(zip(names, (sums > 0).sum(0).tolist(), strict=True))


def objective_support(sums: Floats) -> dict[str, int]:
    """[P, OBJECTIVE_SUMS] -> how many prompts have something to say of each measure."""
    some = support(sums, OBJECTIVE_SUMS)
    own = {"node_exchangeability": some["nodes"], "node_learning_tax": some["node_mass"]}
    return defaultdict(lambda: some["informative"], some | own)


def log_sums(step: StepRows, log: Log, rules: dict[str, Credit]) -> Floats:
    """[groups, LOG_SUMS]; `rules`: the credit under token (group), sequence and balanced."""
    rows = step.rows
    T = log.length[rows].astype(np.float64)
    r = log.reward[rows]
    A = rules["balanced"].advantage.numpy()
    lowest = np.full(len(step.G), np.inf)
    highest = np.full(len(step.G), -np.inf)
    np.minimum.at(lowest, step.group, r)
    np.maximum.at(highest, step.group, r)
    sums: Sums = {
        "groups": np.ones(len(step.G)),
        "responses": _over(step, np.ones(len(r))),
        "T": _over(step, T),
        "TT": _over(step, T**2),
        "reward": _over(step, r),
        "T+": _over(step, T * (A > 0)),
        "n+": _over(step, (A > 0).astype(np.float64)),
        "T-": _over(step, T * (A < 0)),
        "n-": _over(step, (A < 0).astype(np.float64)),
        "mixed": highest > lowest,
    }
    both = (sums["n+"] > 0) & (sums["n-"] > 0) & (sums["T"] > 0)
    wrong_length = _ratio(sums["T-"], sums["n-"])
    right_length = _ratio(sums["T+"], sums["n+"])
    mean = sums["T"] / step.G
    sums["gap"] = _ratio(wrong_length - right_length, mean) * both
    square = _over(step, (T - mean[step.group]) ** 2)
    sums["cv"] = _ratio(np.sqrt(square / step.G), mean) * both
    sums["both"] = both
    if log.truncated is not None:
        sums["truncated"] = _over(step, log.truncated[rows].astype(np.float64))
    c = {name: credit.coefficient.numpy() for name, credit in rules.items()}
    sums["balanced"] = _over(step, T * c["balanced"] ** 2)
    for rule in ("token", "sequence"):
        sums[f"from_balanced_{rule}"] = _over(step, T * (c[rule] - c["balanced"]) ** 2)
    return _table(LOG_SUMS, sums, len(step.G))


def log_values(S: Floats) -> dict[str, Floats]:
    """[..., LOG_SUMS] -> what the log is like whatever the rule; ± is the sign of the advantage.

    length_cv, length_gap as in `objective.bias.measures`; besides,
    within_gap      (T̄− − T̄+)/T̄ of a group, mean over groups with both signs
    within_cv       std/mean of a group's lengths, mean over the same groups
    degenerate      share of groups whose rewards are all equal        truncated  share of responses cut at the limit
    token_distance, sequence_distance   how far the rule's coefficients are from those of balanced,
                    sqrt(Σ T(c − c_balanced)² / Σ T c_balanced²):
                    about half the gap for token, the CV for sequence
    """

    def s(name: str) -> Floats:
        return S[..., LOG_SUMS.index(name)]

    mean = divide(s("T"), s("responses"))
    variance = np.maximum(divide(s("TT"), s("responses")) - mean**2, 0.0)
    gap = divide(s("T-"), s("n-")) - divide(s("T+"), s("n+"))
    token = np.sqrt(divide(s("from_balanced_token"), s("balanced")))
    sequence = np.sqrt(divide(s("from_balanced_sequence"), s("balanced")))
    return {
        "reward_mean": divide(s("reward"), s("responses")),
        "length_mean": mean,
        "length_cv": divide(np.sqrt(variance), mean),
        "length_gap": divide(gap, mean),
        "within_gap": divide(s("gap"), s("both")),
        "within_cv": divide(s("cv"), s("both")),
        "degenerate": 1 - divide(s("mixed"), s("groups")),
        "truncated": divide(s("truncated"), s("responses")),
        "token_distance": token,
        "sequence_distance": sequence,
        "token_minus_sequence": token - sequence,
    }


def log_support(sums: Floats) -> dict[str, int]:
    """[P, LOG_SUMS] -> how many prompts have something to say of each measure."""
    some = support(sums, LOG_SUMS)
    signed = (
        "length_gap",
        "within_gap",
        "within_cv",
        "token_distance",
        "sequence_distance",
        "token_minus_sequence",
    )
    return defaultdict(lambda: some["groups"], dict.fromkeys(signed, some["both"]))


def _over(step: StepRows, x: Floats) -> Floats:
    """[B] of a step's responses -> [groups] their sums."""
    return np.asarray(np.bincount(step.group, x, len(step.G)), np.float64)


def _table(names: tuple[str, ...], sums: Sums, n_groups: int) -> Floats:
    """[groups, names]; 0 in what was not summed."""
    out = np.zeros((n_groups, len(names)))
    for name, column in sums.items():
        out[:, names.index(name)] = column
    return out


def _ratio(part: Floats, whole: Floats) -> Floats:
    """part/whole, 0 where there is no whole."""
    return divide(part, whole, nothing=0.0)


def divide(part: Floats, whole: Floats, nothing: float = np.nan) -> Floats:
    """part/whole, `nothing` where there is no whole."""
    out = np.full(np.broadcast(part, whole).shape, nothing)
    np.divide(part, whole, out=out, where=np.asarray(whole) > 0)
    return out
