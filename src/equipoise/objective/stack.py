"""The choices of an objective, and which go together: stacks that make no sense are refused,
and those that undo a choice they name say so.

Not here: what the choices compute.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

from equipoise.objective.advantage import ADVANTAGES, NOT_ZERO_SUM, grpo_scale
from equipoise.objective.aggregation import AGGREGATIONS
from equipoise.objective.cancellation import CANCELLATIONS, WEIGHT_TRANSFORMS
from equipoise.objective.choice import Spec, choose, did_you_mean, nearest, number
from equipoise.objective.difficulty import DIFFICULTIES, Debias, Difficulty
from equipoise.objective.regularizer import KL_ESTIMATORS, MISMATCH
from equipoise.objective.surrogate import SEQUENCE_LEVEL, SURROGATES

# cut, or gated, by the sign of A
SIGN_DEPENDENT = ("ppo_clip", "dual_clip", "aspo", "dppo", "sapo")
EXCHANGEABLE = ("token", "constant")
P = ParamSpec("P")


def _known_choices(
    init: Callable[Concatenate[Stack, P], None],
) -> Callable[Concatenate[Stack, P], None]:
    """A choice that there is not is refused with the nearest one, before Python does."""
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: Stack, /, *positional: P.args, **choices: P.kwargs) -> None:
        for slot in choices:
            if slot not in known:
                hint = did_you_mean(slot, known)
                raise ValueError(f"objective.{slot} is not known;{hint} ({', '.join(known)})")
        init(self, *positional, **choices)

    return checked


class Stack:
    """The choices, each looked up by its name; `Objective` says what they are."""

    @_known_choices
    def __init__(
        self,
        advantage: Spec = "grpo",
        difficulty: Spec = "none",
        cancellation: str = "none",
        aggregation: Spec = "sequence",
        surrogate: Spec = "ppo_clip",
        *,
        averaged_groups: str = "all",
        reward_weights: Sequence[float] = (1.0,),
        combine: str = "rewards",
        kl: float = 0.0,
        kl_estimator: str = "k3",
        entropy_bonus: float = 0.0,
        mismatch: Spec = "none",
        length_penalty: float = 0.0,
        off_policy_mask: float | None = None,
    ) -> None:
        self.advantage = choose("advantage", ADVANTAGES, advantage)
        self.difficulty_choice = choose("difficulty", DIFFICULTIES, difficulty)
        self.aggregation = choose("aggregation", AGGREGATIONS, aggregation)
        self.surrogate = choose("surrogate", SURROGATES, surrogate)
        self.mismatch = choose("mismatch", MISMATCH, mismatch)
        for slot, name, known in (
            ("cancellation", cancellation, CANCELLATIONS),
            ("averaged_groups", averaged_groups, ("all", "informative")),
            ("combine", combine, ("rewards", "advantages", "gdpo")),
            ("kl_estimator", kl_estimator, tuple(KL_ESTIMATORS)),
        ):
            if name not in known:
                raise ValueError(nearest(slot, name, list(known)))
        self.cancellation = cancellation
        self.averaged_groups = averaged_groups
        self.reward_weights = _weights(reward_weights)
        self.combine = combine
        self.kl = number("kl", kl)
        self.kl_estimator = kl_estimator
        self.entropy_bonus = number("entropy_bonus", entropy_bonus)
        self.difficulty: Difficulty | None = None
        if self.difficulty_choice.function is not None:
            self.difficulty = self.difficulty_choice()
        if isinstance(self.difficulty, Debias) and self.advantage.name == "grpo":
            self.difficulty.scale = functools.partial(grpo_scale, **self.advantage.options)
        self.length_penalty = number("length_penalty", length_penalty)
        self.off_policy_mask = (
            None if off_policy_mask is None else number("off_policy_mask", off_policy_mask)
        )
        _refuse_nonsense(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What this stack does that the names of its choices do not say;
        also under `str(objective)`.
        """
        return _notes(self)

    @property
    def needs_whole_responses(self) -> bool:
        """True where a response's tokens must come to `loss` together."""
        by_response = self.mismatch.name == "mis" or self.off_policy_mask is not None
        return self.surrogate.name in SEQUENCE_LEVEL or by_response

    @property
    def needs_sampler(self) -> bool:
        """True where `loss` compares with the sampler's own log-probabilities."""
        return self.mismatch.function is not None or self.off_policy_mask is not None

    @property
    def needs_whole_groups(self) -> bool:
        """True where a group's responses must come to `loss` together:
        the transform depends on their ratios.
        """
        return self.surrogate.name in SEQUENCE_LEVEL and self.cancellation in WEIGHT_TRANSFORMS

    @property
    def weighs_whole_responses(self) -> bool:
        """True where the sampler's weights of a response's tokens become one:
        gmpo has one advantage a response. Under a cancellation it is linear in each token.
        """
        by_token = self.mismatch.name in ("tis", "icepop")
        return self.surrogate.name == "gmpo" and by_token and not self.needs_whole_groups

    def choices(self) -> dict[str, Any]:
        """Keyword arguments that build this objective again (without its state)."""
        return {
            "advantage": self.advantage.spec(),
            "difficulty": self.difficulty_choice.spec(),
            "cancellation": self.cancellation,
            "aggregation": self.aggregation.spec(),
            "surrogate": self.surrogate.spec(),
            "averaged_groups": self.averaged_groups,
            "reward_weights": self.reward_weights,
            "combine": self.combine,
            "kl": self.kl,
            "kl_estimator": self.kl_estimator,
            "entropy_bonus": self.entropy_bonus,
            "mismatch": self.mismatch.spec(),
            "length_penalty": self.length_penalty,
            "off_policy_mask": self.off_policy_mask,
        }


def _refuse_nonsense(o: Stack) -> None:
    """A ValueError with the reason."""
    A, cancel, rule = o.advantage.name, o.cancellation, o.aggregation.name
    if o.difficulty is not None and A in ("reward", "none"):
        raise ValueError(
            f"difficulty reweights advantages against the group's mean; advantage = {A} has no baseline"
        )
    if o.difficulty_choice.name == "debias" and A in ("opo", "pass_at_k", "reinforce_pp"):
        raise ValueError(
            f"debias corrects the baseline of r − p̂; advantage = {A} is not proportional to it"
        )
    if cancel == "min_replace" and not _sums_to_0(o):
        raise ValueError(
            f"min_replace cancels only when ΣA = 0 in a group, which advantage = {A} does not give"
        )
    if (
        cancel == "min_replace"
        and o.difficulty is not None
        and not getattr(o.difficulty, "recentre", False)
    ):
        raise ValueError(
            f"min_replace cancels only when ΣA = 0 in a group, which difficulty = {o.difficulty_choice.name} "
            'breaks; use {"name": "hadw", "recentre": true}, or cancellation = orthogonal'
        )
    if o.needs_whole_groups and (o.mismatch.name == "mis" or o.off_policy_mask is not None):
        other = "mismatch = mis weighs" if o.mismatch.name == "mis" else "off_policy_mask drops"
        raise ValueError(
            f"{other} responses anew after {cancel} has balanced them; use mismatch = tis"
        )
    if o.weighs_whole_responses and o.mismatch.name == "icepop":
        raise ValueError(
            "mismatch = icepop leaves tokens out, and surrogate = gmpo is a geometric mean over all tokens of a "
            "response; use mismatch = tis or mis"
        )
    if cancel == "prefix" and rule in EXCHANGEABLE:
        raise ValueError(
            f"aggregation = {rule} is exchangeable on every token already; prefix would change nothing"
        )
    if o.length_penalty and (A in ("pass_at_k", "none") or o.combine != "rewards"):
        raise ValueError(
            f"length_penalty shapes one reward; advantage = {A}, combine = {o.combine} has no use for it"
        )
    _refuse_numbers(o)


def refuse_per_token(o: Stack, *, weight: bool, advantage: bool) -> None:
    """What does not go with weights, or advantages, of each token: a ValueError with the reason."""
    if (weight or advantage) and o.cancellation not in ("none", "prefix"):
        raise ValueError(
            f"cancellation = {o.cancellation} balances responses, which weights of each token would undo; "
            "use none or prefix"
        )
    if (weight or advantage) and o.surrogate.name == "gmpo":
        raise ValueError(
            "surrogate = gmpo is a geometric mean with one advantage a response, not one a token"
        )
    if advantage and (o.aggregation.name == "balanced" or o.averaged_groups != "all"):
        raise ValueError(
            "token_advantage gives every token a sign of its own: aggregation = balanced, which needs the "
            "response's, and averaged_groups = informative have no meaning then"
        )


def _weights(given: Sequence[float]) -> list[float]:
    try:
        return [number("reward_weights", weight) for weight in given]
    except (TypeError, ValueError):
        raise ValueError(
            f"objective.reward_weights = {given!r} must be numbers, one per reward"
        ) from None


def _refuse_numbers(o: Stack) -> None:
    if not (0 <= o.kl < math.inf and 0 <= o.entropy_bonus < math.inf):
        raise ValueError(
            f"kl = {o.kl} and entropy_bonus = {o.entropy_bonus} must not be negative, and finite"
        )
    if not o.reward_weights or not all(map(math.isfinite, o.reward_weights)):
        raise ValueError(
            f"reward_weights = {o.reward_weights} must be finite numbers, one per reward"
        )
    if not 0 <= o.length_penalty < 1:
        raise ValueError(
            f"length_penalty = {o.length_penalty} must be at least 0 and below 1: right must beat wrong"
        )
    if o.off_policy_mask is not None and not 0 <= o.off_policy_mask < math.inf:
        raise ValueError(f"off_policy_mask = {o.off_policy_mask} must be a KL per token, 0 or more")


def _sums_to_0(o: Stack) -> bool:
    """Whether the advantages of a group do, before difficulty."""
    return o.advantage.name not in NOT_ZERO_SUM or o.advantage.options.get("whiten") == "responses"


def _notes(o: Stack) -> tuple[str, ...]:
    """What the stack does that its names do not say (formulas.md §4)."""
    cancel, rule, found = o.cancellation, o.aggregation.name, []
    in_assign = not o.needs_whole_groups
    recentred = getattr(o.difficulty, "recentre", False)
    zero_sum = recentred or (o.difficulty is None and _sums_to_0(o))
    if cancel == "min_replace" and rule not in EXCHANGEABLE and in_assign:
        found.append(
            f"min_replace gives all responses of a group one weight, so aggregation = {rule} sets no more than the "
            "scale of each group: this is the token rule times a factor per group"
        )
    if cancel in ("orthogonal", "recentre") and rule == "balanced" and in_assign and zero_sum:
        found.append(
            f"with binary rewards, balanced under {cancel} is the token rule times a factor per group"
        )
    if (
        cancel in ("min_replace", "orthogonal", "recentre")
        and rule in EXCHANGEABLE
        and o.difficulty is None
        and zero_sum
        and o.advantage.name != "none"
        and in_assign
    ):
        found.append(
            f"aggregation = {rule} is exchangeable already: {cancel} changes nothing but for empty responses"
        )
    if cancel != "none":
        found += _undone(o)
    # Under min_replace vespo keeps its own: the least φ(W) of the group, near 0 far from W = 1.
    keeps_region = o.surrogate.name == "dfpo" or (o.surrogate.name, cancel) == (
        "vespo",
        "min_replace",
    )
    if o.needs_whole_groups and not keeps_region:
        found.append(
            f"{cancel} takes {o.surrogate.name} in the linear form sg(w̃)·A·log π, without its trust region: nothing "
            "bounds it off-policy; surrogate = dfpo has a region"
        )
    strength = o.aggregation.options.get("strength", 1.0)
    if strength != 1:
        found.append(
            f"balanced at strength {strength:g} is not BA's: right and wrong responses pull as "
            f"(T̄+/T̄−)^{1 - strength:g} : 1"
        )
    imbalance = o.aggregation.options.get("imbalance", 0.0)
    if imbalance:
        found.append(
            f"balanced with imbalance = {imbalance:g} is not BA's: Σ c T is that share of Σ|c|T in every group"
        )
    if rule == "balanced" and not zero_sum:
        cause = (
            f"difficulty = {o.difficulty_choice.name} weighs the two signs of a group differently"
        )
        if o.difficulty is None:
            cause = f"advantage = {o.advantage.name} does not sum to 0 in a group"
        found.append(
            f"{cause}, so balanced no longer makes them pull equally: bias/mass_imbalance says by how much"
        )
    return tuple(found)


def _undone(o: Stack) -> list[str]:
    """What keeps the coefficients of a shared token from cancelling in `loss`."""
    cancel, surrogate, found = o.cancellation, o.surrogate.name, []
    if surrogate in SIGN_DEPENDENT:
        found.append(
            f"{surrogate} treats the two signs differently, which undoes {cancel} off-policy; "
            "symmetric_clip treats them alike"
        )
    elif surrogate in SEQUENCE_LEVEL and not o.needs_whole_groups:
        found.append(
            f"{surrogate} weighs every response by its own ratio, which undoes {cancel} off-policy; "
            "symmetric_clip gives a shared token the same ratio in all of them"
        )
    if o.mismatch.name == "mis":
        found.append(
            f"mismatch = mis weighs every response by its own ratio, which undoes {cancel}; use tis"
        )
    if o.off_policy_mask is not None:
        found.append(
            f"off_policy_mask leaves out responses of one sign, which undoes {cancel} off-policy"
        )
    return found
