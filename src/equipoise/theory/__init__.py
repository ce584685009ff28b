"""Closed forms of the papers: the group baseline's bias, and balances of aggregation rules.

numpy and scipy only. Everything takes floats or arrays and broadcasts. docs/theory.md says what
each function is for and where the papers must be read with care.
"""

from equipoise.theory.balance import (
    exchangeability_residual,
    exchangeability_sum,
    mass_imbalance,
    reweighted_sum,
    sequence_token_weight,
)
from equipoise.theory.baseline import (
    average_underestimation,
    baseline_bias,
    conditional_baseline,
    conditioned_underestimation,
    debias_constant,
    debias_factor,
    gradient_gain,
    informative_probability,
    overestimation_probability,
    underestimation_probability,
)
from equipoise.theory.continuous import (
    RewardLaw,
    beta_rewards,
    rewards_from_cdf,
    spread_baseline_bias,
    spread_probability,
    truncated_normal_rewards,
)
from equipoise.theory.reweighted import reweighted_baseline_bias, reweighted_bias, reweighted_gain
from equipoise.theory.reweighting import (
    Interval,
    confidence_radius,
    correction_interval,
    lambda_interval,
)
from equipoise.theory.tables import render

__all__ = [
    "Interval",
    "RewardLaw",
    "average_underestimation",
    "baseline_bias",
    "beta_rewards",
    "conditional_baseline",
    "conditioned_underestimation",
    "confidence_radius",
    "correction_interval",
    "debias_constant",
    "debias_factor",
    "exchangeability_residual",
    "exchangeability_sum",
    "gradient_gain",
    "informative_probability",
    "lambda_interval",
    "mass_imbalance",
    "overestimation_probability",
    "render",
    "rewards_from_cdf",
    "reweighted_baseline_bias",
    "reweighted_bias",
    "reweighted_gain",
    "reweighted_sum",
    "sequence_token_weight",
    "spread_baseline_bias",
    "spread_probability",
    "truncated_normal_rewards",
    "underestimation_probability",
]
