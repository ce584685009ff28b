"""Published objectives as choices, with their papers' defaults;
what is not written is `Objective`'s own default.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Preset(NamedTuple):
    choices: dict[str, Any]
    source: str


def _clip(low: float, high: float) -> dict[str, Any]:
    return {"name": "ppo_clip", "low": low, "high": high}


PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        {"advantage": "grpo", "aggregation": "sequence", "surrogate": _clip(0.2, 0.2)},
        "DeepSeekMath, arXiv 2402.03300 (its KL is kl=0.04)",
    ),
    "dapo": Preset(
        {"advantage": "grpo", "aggregation": "token", "surrogate": _clip(0.2, 0.28)},
        "DAPO, arXiv 2503.14476 (its loss: rollout.dynamic_sampling and reward.overlong_buffer are off unless set)",
    ),
    "dr_grpo": Preset(
        {
            "advantage": "dr_grpo",
            "aggregation": {"name": "constant", "length": 3000.0},
            "surrogate": _clip(0.2, 0.2),
        },
        "Dr.GRPO, arXiv 2503.20783 (length = your maximum response length)",
    ),
    "gspo": Preset(
        {"advantage": "grpo", "aggregation": "sequence", "surrogate": "gspo"},
        "GSPO, arXiv 2507.18071",
    ),
    "gmpo": Preset(
        {"advantage": "grpo", "aggregation": "sequence", "surrogate": "gmpo"},
        "GMPO, arXiv 2507.20673",
    ),
    "cispo": Preset(
        {"advantage": "grpo", "aggregation": "token", "surrogate": "cispo"},
        "MiniMax-M1, arXiv 2506.13585",
    ),
    "sapo": Preset(
        {"advantage": "grpo", "aggregation": "sequence", "surrogate": "sapo"},
        "SAPO, arXiv 2511.20347",
    ),
    "luspo": Preset(
        {
            "advantage": "grpo",
            "aggregation": {"name": "constant", "length": 1.0},
            "surrogate": {"name": "gspo", "low": 2e-3, "high": 2.5e-3},
        },
        "LUSPO: GSPO with each response weighed by its length",
    ),
    "vespo": Preset(
        {"advantage": "grpo", "aggregation": "token", "surrogate": "vespo"},
        "VESPO (aggregated over tokens, as in TRL)",
    ),
    "aspo": Preset(
        {
            "advantage": "grpo",
            "aggregation": "token",
            "surrogate": {"name": "aspo", "low": 0.2, "high": 0.28},
        },
        "ASPO, arXiv 2510.06062 (DAPO's clip range)",
    ),
    "dppo": Preset(
        {
            "advantage": "dr_grpo",
            "aggregation": {"name": "constant", "length": 1.0},
            "surrogate": {"name": "dppo", "cap": 5.0},
        },
        "DPPO, arXiv 2602.04879 (App. E: δ 0.2 in TV, 0.05 in KL, C = 5; leave rollout.exact off)",
    ),
    "reinforce_pp": Preset(
        {"advantage": "reinforce_pp", "aggregation": "token", "surrogate": _clip(0.2, 0.2)},
        "REINFORCE++-baseline, arXiv 2501.03262 (whitened over the batch's tokens, as in verl and OpenRLHF)",
    ),
    "distillation": Preset(
        {"advantage": "none", "aggregation": "token", "surrogate": {"name": "cispo", "cap": 5.0}},
        "on-policy distillation, arXiv 2306.13649: set train.teacher, or give assign its token_advantage",
    ),
    "rloo": Preset(
        {
            "advantage": "rloo",
            "aggregation": {"name": "constant", "length": 1.0},
            "surrogate": "reinforce",
        },
        "RLOO, arXiv 2402.14740",
    ),
    "maxrl": Preset(
        {
            "advantage": "maxrl",
            "aggregation": {"name": "constant", "length": 1.0},
            "surrogate": "reinforce",
        },
        "MaxRL: first-order maximum likelihood",
    ),
    "reinforce": Preset(
        {
            "advantage": "reward",
            "aggregation": {"name": "constant", "length": 1.0},
            "surrogate": "reinforce",
        },
        "Williams 1992",
    ),
    "dfpo": Preset(
        {
            "advantage": "dr_grpo",
            "aggregation": {"name": "constant", "length": 1.0},
            "cancellation": "min_replace",
            "surrogate": "dfpo",
        },
        "TGC, arXiv 2604.13088 v1 (Min-Replace, its Eq. 17; cancellation = orthogonal is Eq. 18; the region is ours)",
    ),
    "grpo_fix": Preset(
        {
            "advantage": "grpo",
            "aggregation": {"name": "token", "over": "group"},
            "surrogate": {"name": "symmetric_clip", "low": 0.2, "high": 0.2},
        },
        "TGC, arXiv 2604.13088 v1: GRPO with exchangeable weights and clipping that treats both signs alike",
    ),
}
