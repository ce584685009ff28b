"""What becomes of the section [objective] in verl: choices of our plug-in under algorithm.equipoise, and
the KL, the entropy bonus and the correction for another sampler, which verl computes itself.
"""

from __future__ import annotations

from typing import Any

from equipoise.config import Config
from equipoise.integrations.launch import Setting, mapped, nearly, refused, unmappable
from equipoise.integrations.verl.script import ACTOR
from equipoise.objective import Objective

KL_TYPES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


def objective_settings(config: Config, longest: int) -> dict[str, Setting]:
    """The choices under algorithm.equipoise; what the plug-in refuses is named,
    and the launch goes without it. longest: tokens of a response.
    """
    o, objective = config.objective, config.build_objective()
    ours = {
        name: {f"+algorithm.equipoise.{name}": choice} for name, choice in kept(objective).items()
    }
    plug_in = {
        "algorithm.adv_estimator": "equipoise",
        f"{ACTOR}.policy_loss.loss_mode": "equipoise",
        f"{ACTOR}.policy_loss._target_": "equipoise.integrations.verl.plugin.PolicyLoss",
        f"+{ACTOR}.policy_loss.equipoise": "${algorithm.equipoise}",
        "trainer.checkpoint_callback_class": "equipoise.integrations.verl.plugin.Callback",
    }
    extra = bool(objective.kl or objective.entropy_bonus)
    mode = {
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{ACTOR}.loss_scale_factor": longest,
    }
    plain = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum"}
    return {
        "objective.preset": mapped(
            plug_in, "through the plug-in; the choices of the preset are written out"
        ),
        "objective.advantage": mapped(ours["advantage"]),
        "objective.difficulty": mapped(ours["difficulty"])
        if "difficulty" in ours
        else unmappable(
            "hadw_history has to know a prompt again, which verl names anew at every step: none was put"
        ),
        "objective.cancellation": mapped(ours["cancellation"])
        if "cancellation" in ours
        else unmappable(
            f"{objective.cancellation} needs token ids or whole groups where verl has none: none was put"
        ),
        "objective.aggregation": mapped(
            {**ours["aggregation"], **(mode if extra else plain)},
            "the estimator has weighed the tokens, verl only sums",
        ),
        "objective.surrogate": mapped(ours["surrogate"]),
        "objective.averaged_groups": mapped(ours["averaged_groups"]),
        "objective.combine": refused(
            o.combine == "advantages",
            "verl gives an estimator one reward per response: the rewards are summed",
            "compute_score sums",
        ),
        **_regularizers(objective, longest),
        "objective.mismatch": _mismatch(objective),
        "objective.off_policy_mask": refused(
            o.off_policy_mask, "the plug-in masks no responses in verl's loss: none was put", "off"
        ),
        "objective.top_entropy_quantile": refused(
            o.top_entropy_quantile < 1,
            "verl gives an estimator no entropies: every token was kept",
            "off",
        ),
    }


def kept(objective: Objective) -> dict[str, Any]:
    """The choices of an objective that verl's plug-in takes."""
    choices = objective.choices()
    names = ["advantage", "aggregation", "surrogate", "averaged_groups"]
    if objective.difficulty_choice.name != "hadw_history":
        names.append("difficulty")
    if objective.cancellation != "prefix" and not objective.needs_whole_groups:
        names.append("cancellation")
    return {name: choices[name] for name in names}


def _regularizers(objective: Objective, L: int) -> dict[str, Setting]:
    """verl averages both as Σ_tokens/(responses·L), as we do under a constant length."""
    rule = objective.aggregation
    exact = rule.name == "constant" and objective.averaged_groups == "all"
    kl = objective.kl * (L / rule.options["length"] if exact else 1.0)
    kind = KL_TYPES.get(objective.kl_estimator)
    on = {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": kl}
    scale = (
        f"verl divides it by responses × {L}, the longest response, and not as the aggregation says"
    )
    entropy = {f"{ACTOR}.entropy_coeff": objective.entropy_bonus}
    if not objective.kl:
        weight = estimator = mapped(why="no KL, as verl")
    elif kind is None:
        weight = estimator = unmappable(
            f"verl has no {objective.kl_estimator}: the launch has no KL"
        )
    else:
        weight = mapped(on, f"for a sum divided by {L}") if exact else nearly(on, scale)
        cut = "verl cuts it at 10" if objective.kl_estimator == "k3" else ""
        estimator = (nearly if cut else mapped)({f"{ACTOR}.kl_loss_type": kind}, cut)
    return {
        "objective.kl": weight,
        "objective.kl_estimator": estimator,
        "objective.entropy_bonus": nearly(
            entropy, scale.replace("as the aggregation says", "by the tokens")
        )
        if objective.entropy_bonus
        else mapped(why="none, as verl"),
    }


def _mismatch(objective: Objective) -> Setting:
    section, name = "algorithm.rollout_correction", objective.mismatch.name
    if name == "none":
        return mapped({f"{section}.rollout_is": None})
    if name == "icepop":
        alpha, beta = objective.mismatch.options["alpha"], objective.mismatch.options["beta"]
        bounds = f"{alpha}_{beta}"  # between two bounds, verl masks
        return mapped({f"{section}.rollout_is": "token", f"{section}.rollout_is_threshold": bounds})
    cap = objective.mismatch.options["cap"]
    # Between two bounds, verl masks; log-ratios are kept above −20,
    # so no response falls below this lower one.
    level, bound = ("token", cap) if name == "tis" else ("sequence", f"1e-9_{cap}")
    return mapped({f"{section}.rollout_is": level, f"{section}.rollout_is_threshold": bound})
