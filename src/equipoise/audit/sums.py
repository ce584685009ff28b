"""What an objective would have done to a log, as sums over its groups:
every measure is a function of such sums.

The coefficients are those of `Objective.assign` on each step's batch. `log_values` and
`objective_values` turn sums into the measures that `objective/bias.py` takes of a whole batch; the
sums of one batch give the same numbers. Sums, because they can be added up over the prompts of any
resample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.audit.log import Floats, Integers, Log
from equipoise.objective import Credit, response_ids
from equipoise.objective.cancellation import Nodes
from equipoise.objective.groups import Groups, positions

DECILES = 10
NODE_TOKENS = 1 << 21  # tokens whose shared prefixes are found at a time
LOG_SUMS = (
    "groups", "responses", "T", "TT", "reward", "T+", "n+", "T-", "n-", "mixed", "gap", "both", "truncated",
    "from_balanced_token", "from_balanced_sequence", "balanced",
)  # fmt: skip
OBJECTIVE_SUMS = (
    "informative", "balance", "imbalance", "residual", "push", "zero_sum", "tax", "mass+", "mass-", "live", "w", "ww",
    "node_residual", "nodes", "node_push", "node_mass",
    *(f"w{d}" for d in range(DECILES)), *(f"live{d}" for d in range(DECILES)),
)  # fmt: skip
_LOG = {name: i for i, name in enumerate(LOG_SUMS)}
_OBJECTIVE = {name: i for i, name in enumerate(OBJECTIVE_SUMS)}


@dataclass(frozen=True)
class SharedNodes:
    """The tokens of a batch that two responses of a group or more have in common,
    each with all before it.
    """

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


def steps(log: Log, shared: bool = True) -> Iterator[tuple[StepRows, torch.Tensor | None]]:
    """Each step, and its flat tokens; with `shared`, also where its responses begin alike."""
    start = np.cumsum(log.length) - log.length
    for rows in log.steps():
        group = log.group[rows] - log.group[rows.start]
        first = np.flatnonzero(np.diff(group, prepend=-1))
        G = np.bincount(group).astype(np.float64)
        tokens = nodes = None
        if log.tokens is not None:
            begin = int(start[rows.start])
            tokens = torch.from_numpy(log.tokens[begin : begin + int(log.length[rows].sum())])
            nodes = shared_nodes(tokens, log.length[rows], group, G) if shared else None
        yield StepRows(rows, group, log.prompt[rows][first], G, nodes), tokens


def shared_nodes(tokens: torch.Tensor, length: Integers, group: Integers, G: Floats) -> SharedNodes:
    """Found for a few whole groups at a time, to bound memory."""
    parts: list[tuple[Integers, ...]] = []
    ends = np.cumsum(length)
    last_row = np.cumsum(G).astype(np.int64)  # rows before the end of each group
    group_ends = ends[last_row - 1]
    g, found = 0, 0
    while g < len(G):
        r0 = int(last_row[g] - G[g])
        t0 = int(ends[r0] - length[r0])
        until = max(g + 1, int(np.searchsorted(group_ends, t0 + NODE_TOKENS, side="right")))
        r1, t1 = int(last_row[until - 1]), int(group_ends[until - 1])
        T = torch.from_numpy(length[r0:r1])
        response = response_ids(T, t1 - t0)
        ids = Groups.of(torch.from_numpy(group[r0:r1]))
        nodes = Nodes(tokens[t0:t1], T, response, positions(T, t1 - t0), ids)
        token = torch.nonzero(nodes.count >= 2)[:, 0].numpy()
        row = response.numpy()[token] + r0
        _, one, node = np.unique(nodes.node.numpy()[token], return_index=True, return_inverse=True)
        size = nodes.count.numpy()[token][one]
        parts.append(
            (
                node + found,
                token + t0,
                row,
                group[row[one]],
                (size == G[group[row[one]]]).astype(np.int64),
            )
        )
        found += len(one)
        g = until
    node, token, row, of_group, common = (np.concatenate(x) for x in zip(*parts, strict=True))
    return SharedNodes(node, token, row, of_group, common.astype(bool))


def decile_edges(log: Log) -> Floats:
    """The lengths that part the log's responses into tenths."""
    return np.asarray(
        np.quantile(log.length[log.length > 0], np.arange(1, DECILES) / DECILES), np.float64
    )


def objective_sums(step: StepRows, T: Floats, credit: Credit, edges: Floats) -> Floats:
    """[groups, OBJECTIVE_SUMS]"""
    A, w, c_token = _weights(credit)
    c, group, P = w * A, step.group, len(step.G)

    def over(x: Floats) -> Floats:
        return np.asarray(np.bincount(group, x, P), np.float64)

    out = np.zeros((P, len(OBJECTIVE_SUMS)))

    def put(name: str, x: Floats) -> None:
        out[:, _OBJECTIVE[name]] = x

    push, size, pull = over(c), over(np.abs(c)), over(np.abs(c) * T)
    balance = _ratio(over(c * T), pull)
    put("informative", (size > 0).astype(np.float64))
    put("balance", balance)
    put("imbalance", np.abs(balance))
    put("residual", _ratio(np.abs(push), size))
    put("push", _ratio(push, size))
    put("zero_sum", _ratio(np.abs(over(A)), over(np.abs(A))) * (size > 0))
    put("tax", _ratio(np.abs(push), pull))
    put("mass+", over(np.where(A > 0, c * T, 0.0)))
    put("mass-", over(np.where(A < 0, -c * T, 0.0)))
    live = T * (A != 0)
    # 1 is the step's mean weight: steps differ in scale alone
    w = w * live.sum() / max((w * live).sum(), 1e-300)
    put("live", over(live))
    put("w", over(w * live))
    put("ww", over(w * w * live))
    tenth = np.searchsorted(edges, T, side="left")
    cells = np.bincount(group * DECILES + tenth, w * live, P * DECILES).reshape(P, DECILES)
    out[:, _OBJECTIVE["w0"] : _OBJECTIVE["w0"] + DECILES] = cells
    cells = np.bincount(group * DECILES + tenth, live, P * DECILES).reshape(P, DECILES)
    out[:, _OBJECTIVE["live0"] : _OBJECTIVE["live0"] + DECILES] = cells
    if step.nodes is not None:
        _node_sums(out, step.nodes, c if c_token is None else c_token, c_token is not None)
        put("node_mass", pull)
    return out


def _weights(credit: Credit) -> tuple[Floats, Floats, Floats | None]:
    """A [B], the weight of a response's tokens (their mean, where they differ) and, there,
    each token's coefficient.
    """
    A, w = credit.advantage.numpy(), credit.weight.numpy()
    if not credit.per_token:
        return A, w, None
    T = credit.lengths.numpy()
    per_row = np.bincount(np.repeat(np.arange(len(T)), T), w, len(T)) / np.maximum(T, 1)
    return A, per_row, credit.coefficient.numpy()


def _node_sums(out: Floats, nodes: SharedNodes, c: Floats, per_token: bool) -> None:
    mine = c[nodes.token if per_token else nodes.row]
    n, P = len(nodes.group), len(out)
    push = np.asarray(np.abs(np.bincount(nodes.node, mine, n)), np.float64)
    mass = np.asarray(np.bincount(nodes.node, np.abs(mine), n), np.float64)
    real = mass > 0
    out[:, _OBJECTIVE["node_residual"]] = np.bincount(nodes.group, _ratio(push, mass), P)
    out[:, _OBJECTIVE["nodes"]] = np.bincount(nodes.group, real, P)
    out[:, _OBJECTIVE["node_push"]] = np.bincount(nodes.group, push * nodes.common, P)


def objective_values(S: Floats) -> dict[str, Floats]:
    """[..., OBJECTIVE_SUMS] -> measures [...], NaN where there is nothing to measure.

    Names and meanings are those of `objective.bias.measures`; besides,
    positive_share   share of the gradient mass Σ|c|T on responses with A > 0
    coupling         mass on A > 0 over mass on A < 0: how many times as hard the positives pull
    net_push         Σc / Σ|c|, mean over groups: exchangeability with its sign, > 0 where common tokens are reinforced
    """

    def s(name: str) -> Floats:
        return S[..., _OBJECTIVE[name]]

    n = s("informative")
    mean_w = _divide(s("w"), s("live"))
    variance = np.maximum(_divide(s("ww"), s("live")) - mean_w**2, 0.0)
    return {
        "positive_share": _divide(s("mass+"), s("mass+") + s("mass-")),
        "coupling": _divide(s("mass+"), s("mass-")),
        "mass_balance": _divide(s("balance"), n),
        "mass_imbalance": _divide(s("imbalance"), n),
        "equal_weighting": _divide(np.sqrt(variance), mean_w),
        "exchangeability": _divide(s("residual"), n),
        "net_push": _divide(s("push"), n),
        "zero_sum": _divide(s("zero_sum"), n),
        "learning_tax": _divide(s("tax"), n),
        "node_exchangeability": _divide(s("node_residual"), s("nodes")),
        "node_learning_tax": _divide(s("node_push"), s("node_mass")),
    }


def token_weights(S: Floats) -> dict[str, Floats]:
    """[..., OBJECTIVE_SUMS] -> what a token in each tenth of lengths weighs, 1 being the mean token
    of its step.
    """
    return {
        f"live{d}": _divide(S[..., _OBJECTIVE[f"w{d}"]], S[..., _OBJECTIVE[f"live{d}"]])
        for d in range(DECILES)
    }


def support(sums: Floats, names: tuple[str, ...]) -> dict[str, int]:
    """[P, names] -> how many prompts have something in each sum."""
    return dict(zip(names, (sums > 0).sum(0).tolist(), strict=True))


def objective_support(sums: Floats) -> dict[str, int]:
    """[P, OBJECTIVE_SUMS] -> how many prompts have something to say of each measure."""
    some = support(sums, OBJECTIVE_SUMS)
    own = {"node_exchangeability": some["nodes"], "node_learning_tax": some["node_mass"]}
    return defaultdict(lambda: some["informative"], some | own)


def log_sums(step: StepRows, log: Log, rules: dict[str, Credit]) -> Floats:
    """[groups, LOG_SUMS]; `rules`: the credit of the objective under token (group),
    sequence and balanced.
    """
    rows, group, P = step.rows, step.group, len(step.G)
    T, r = log.length[rows].astype(np.float64), log.reward[rows]
    A = rules["balanced"].advantage.numpy()
    out = np.zeros((P, len(LOG_SUMS)))

    def put(name: str, x: Floats) -> Floats:
        out[:, _LOG[name]] = np.bincount(group, x, P) if len(x) == len(group) else x
        return out[:, _LOG[name]]

    put("groups", np.ones(P))
    put("responses", np.ones(len(r)))
    total = put("T", T)
    put("TT", T**2)
    put("reward", r)
    plus, n_plus = put("T+", T * (A > 0)), put("n+", (A > 0).astype(np.float64))
    minus, n_minus = put("T-", T * (A < 0)), put("n-", (A < 0).astype(np.float64))
    both = (n_plus > 0) & (n_minus > 0) & (total > 0)
    gap = _ratio(_ratio(minus, n_minus) - _ratio(plus, n_plus), total / step.G)
    out[:, _LOG["gap"]], out[:, _LOG["both"]] = gap * both, both
    low, high = np.full(P, np.inf), np.full(P, -np.inf)
    np.minimum.at(low, group, r)
    np.maximum.at(high, group, r)
    out[:, _LOG["mixed"]] = high > low
    if log.truncated is not None:
        put("truncated", log.truncated[rows].astype(np.float64))
    c = {name: credit.coefficient.numpy() for name, credit in rules.items()}
    put("balanced", T * c["balanced"] ** 2)
    put("from_balanced_token", T * (c["token"] - c["balanced"]) ** 2)
    put("from_balanced_sequence", T * (c["sequence"] - c["balanced"]) ** 2)
    return out


def log_values(S: Floats) -> dict[str, Floats]:
    """[..., LOG_SUMS] -> what the log is like whatever the rule; ± is the sign of the advantage.

    length_cv, length_gap as in `objective.bias.measures`; besides,
    within_gap      (T̄− − T̄+)/T̄ of a group, mean over groups with both signs: what couples sign and length
    degenerate      share of groups whose rewards are all equal        truncated  share of responses cut at the limit
    token_distance, sequence_distance   how far the rule's coefficients are from those of balanced,
                    sqrt(Σ T(c − c_balanced)² / Σ T c_balanced²):
                    about half the gap for token, the CV for sequence
    """

    def s(name: str) -> Floats:
        return S[..., _LOG[name]]

    mean = _divide(s("T"), s("responses"))
    variance = np.maximum(_divide(s("TT"), s("responses")) - mean**2, 0.0)
    gap = _divide(s("T-"), s("n-")) - _divide(s("T+"), s("n+"))
    token, sequence = (
        np.sqrt(_divide(s(f"from_balanced_{k}"), s("balanced"))) for k in ("token", "sequence")
    )
    return {
        "reward_mean": _divide(s("reward"), s("responses")),
        "length_mean": mean,
        "length_cv": _divide(np.sqrt(variance), mean),
        "length_gap": _divide(gap, mean),
        "within_gap": _divide(s("gap"), s("both")),
        "degenerate": 1 - _divide(s("mixed"), s("groups")),
        "truncated": _divide(s("truncated"), s("responses")),
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
        "token_distance",
        "sequence_distance",
        "token_minus_sequence",
    )
    return defaultdict(lambda: some["groups"], dict.fromkeys(signed, some["both"]))


def _ratio(part: Floats, whole: Floats) -> Floats:
    """part/whole, 0 where there is no whole."""
    out = np.zeros(np.broadcast(part, whole).shape)
    np.divide(part, whole, out=out, where=whole > 0)
    return out


def _divide(part: Floats, whole: Floats) -> Floats:
    """part/whole, NaN where there is no whole."""
    out = np.full(np.broadcast(part, whole).shape, np.nan)
    np.divide(part, whole, out=out, where=whole > 0)
    return out
