"""A run's whole configuration, and the rules that options of several sections must keep together."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from equipoise.config import sections
from equipoise.config.errors import ConfigError, sentence
from equipoise.objective import Objective
from equipoise.objective.stack import refuse_per_token
from equipoise.toml import toml

SLOTS = ("advantage", "difficulty", "cancellation", "aggregation", "surrogate")
# Verdicts that say a response has no right answer, or none that could be found.
NOT_RIGHT = ("wrong", "unparsed", "timeout", "limit", "crashed")
COMPARE_NOTHING = ("reward", "none")  # advantages that a single response has


class Config(BaseModel):
    """A run's configuration, a field for each section of the TOML file."""

    model_config = ConfigDict(extra="forbid", revalidate_instances="always")

    model: sections.ModelConfig = Field(default_factory=sections.ModelConfig)
    task: sections.TaskConfig = Field(default_factory=sections.TaskConfig)
    rollout: sections.RolloutConfig = Field(default_factory=sections.RolloutConfig)
    reward: sections.RewardConfig = Field(default_factory=sections.RewardConfig)
    sandbox: sections.SandboxConfig = Field(default_factory=sections.SandboxConfig)
    objective: sections.ObjectiveConfig = Field(default_factory=sections.ObjectiveConfig)
    optim: sections.OptimConfig = Field(default_factory=sections.OptimConfig)
    train: sections.TrainConfig = Field(default_factory=sections.TrainConfig)
    eval: sections.EvalConfig = Field(default_factory=sections.EvalConfig)
    log: sections.LogConfig = Field(default_factory=sections.LogConfig)

    def check(self) -> None:
        """Refuse what cannot be run, before anything is loaded."""
        validated(self)

    def flat(self) -> dict[str, Any]:
        """Every option's value as "section.option"."""
        return {f"{section}.{key}": value for section, options in self for key, value in options}

    def build_objective(self) -> Objective:
        """The preset with the choices this section sets."""
        section = self.objective
        choices: dict[str, Any] = {
            slot: choice for slot in SLOTS if (choice := getattr(section, slot)) is not None
        }
        return Objective.preset(
            section.preset,
            **choices,
            mismatch=self._mismatch(),
            averaged_groups=section.averaged_groups,
            combine=section.combine,
            kl=section.kl,
            kl_estimator=section.kl_estimator,
            entropy_bonus=section.entropy_bonus,
            off_policy_mask=section.off_policy_mask or None,
            length_penalty=self.reward.length_penalty,
            reward_weights=self.reward.weights,
        )

    def _mismatch(self) -> str | dict[str, Any]:
        """vLLM's probabilities and those in 8 bits differ from the trainer's; the native sampler's
        do not.
        """
        default = "tis" if self.rollout.departs else "none"
        asked = self.objective.mismatch
        if isinstance(asked, dict):
            return {"name": default, **asked}
        return default if asked is None else asked

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps on a whole batch of rollouts."""
        mini_batch = self.train.mini_batch or self.rollout.prompts
        return self.train.updates * -(-self.rollout.prompts // mini_batch)

    @property
    def optimizer_steps(self) -> int:
        """Of the whole run, where every batch is whole and no step is skipped."""
        return self.train.steps * self.updates_per_batch

    @model_validator(mode="after")
    def chat_options_need_chat(self) -> Self:
        task = self.task
        unused = [name for name in sections.CHAT_OPTIONS[1:] if getattr(task, name)]
        if task.chat is False and unused:
            raise ValueError(
                f"task.{unused[0]} = {toml(getattr(task, unused[0]))}: only a chat template writes it, "
                "and task.chat = false goes without one"
            )
        return self

    @model_validator(mode="after")
    def every_function_has_a_weight(self) -> Self:
        functions, weights = len(self.reward.functions), len(self.reward.weights)
        if functions != weights or not functions:
            raise ValueError(
                f"reward.functions has {functions} entries, reward.weights {weights}: there must be as many "
                f"of both, at least one; reward.weights = {[1.0] * max(functions, 1)} adds them up"
            )
        return self

    @model_validator(mode="after")
    def some_reward_counts(self) -> Self:
        if not any(self.reward.weights) and not self.train.teacher:
            weights = list(self.reward.weights)
            raise ValueError(
                f"reward.weights = {weights}: at least one must not be 0, or every reward is 0 and "
                f"nothing is learnt; {[1.0] * len(weights)} adds the functions up"
            )
        return self

    @model_validator(mode="after")
    def a_right_answer_pays_most(self) -> Self:
        """What `correct` means in metrics and warnings; a negative weight says that it is not wanted."""
        correct = self.reward.correct
        for verdict in NOT_RIGHT:
            worth = getattr(self.reward, verdict)
            if isinstance(worth, float) and worth > correct:
                raise ValueError(
                    f"reward.{verdict} = {worth:g}: must be at most reward.correct, {correct:g}, or what "
                    "is not right pays more than what is; to train against a verifier give its function "
                    "a negative weight in reward.weights"
                )
        return self

    @model_validator(mode="after")
    def objective_can_be_built(self) -> Self:
        objective = self.build_objective()  # refuses with its own sentences
        some_tokens = self.objective.top_entropy_quantile < 1
        refuse_per_token(objective, weight=some_tokens, advantage=bool(self.train.teacher))
        return self

    @model_validator(mode="after")
    def a_single_response_is_compared_with_none(self) -> Self:
        advantage = self.build_objective().advantage.name
        if self.rollout.group_size == 1 and advantage not in COMPARE_NOTHING:
            raise ValueError(
                f"rollout.group_size = 1: advantage = {advantage} compares responses to the same "
                "prompt and is 0 for a single one; use at least 2, or objective.preset = reinforce"
            )
        return self

    @model_validator(mode="after")
    def k_responses_are_in_a_group(self) -> Self:
        advantage = self.build_objective().advantage
        if advantage.name == "pass_at_k" and advantage.options["k"] > self.rollout.group_size:
            raise ValueError(
                f"rollout.group_size = {self.rollout.group_size}: must be at least k = {advantage.options['k']} "
                "with objective.advantage = pass_at_k"
            )
        return self

    @model_validator(mode="after")
    def no_advantage_needs_a_teacher(self) -> Self:
        if self.build_objective().advantage.name == "none" and not self.train.teacher:
            raise ValueError(
                "objective.advantage = none: there is nothing to learn without train.teacher, "
                "whose log-probabilities give each token its advantage"
            )
        return self

    @model_validator(mode="after")
    def mismatch_needs_two_policies(self) -> Self:
        name = self.build_objective().mismatch.name
        if name != "none" and not self.rollout.recomputes:
            raise ValueError(
                f"objective.mismatch = {toml(name)}: must be none unless rollout.exact = true, "
                "rollout.engine = vllm or fp8: π_old is else the sampler's own π_rollout"
            )
        return self

    @model_validator(mode="after")
    def eight_bits_are_the_paged_samplers(self) -> Self:
        asked = self.rollout.eight_bits
        if asked and self.rollout.engine == "vllm":
            raise ValueError(
                f"{asked}: must be auto with rollout.engine = vllm, which has a cache and weights of "
                "its own; use native"
            )
        if asked and self.model.device == "cpu":
            raise ValueError(f"{asked}: must be auto with model.device = cpu; it needs CUDA")
        if self.rollout.weights_dtype == "fp8" and self.model.dtype != "bfloat16":
            raise ValueError(
                f'rollout.weights_dtype = "fp8": needs model.dtype = bfloat16, not {self.model.dtype}'
            )
        return self

    @model_validator(mode="after")
    def ahead_shares_nothing_with_training(self) -> Self:
        if not self.rollout.ahead:
            return self
        if self.rollout.engine == "vllm":
            raise ValueError(
                "rollout.ahead = 1: must be 0 with rollout.engine = vllm, which shares the device "
                "with training by turns; use native"
            )
        if self.train.shard:
            raise ValueError(
                "rollout.ahead = 1: must be 0 with train.shard = true, because every process would "
                "keep the whole weights that sample"
            )
        if self.model.lora_dropout:
            raise ValueError(
                f"rollout.ahead = 1: must be 0 with model.lora_dropout = {self.model.lora_dropout}, "
                "because CUDA graphs of the sampler, while they are captured, hold the generator "
                "that its masks come from"
            )
        return self

    @model_validator(mode="after")
    def ahead_is_corrected(self) -> Self:
        objective = self.build_objective()
        if not self.rollout.ahead or objective.mismatch.name != "none":
            return self
        fix = "set rollout.exact = true and objective.mismatch = tis"
        if self.rollout.recomputes:
            raise ValueError(
                "rollout.ahead = 1: needs objective.mismatch with rollout.exact = true or fp8, because "
                "π_old is then not the policy that sampled; set it to tis, or rollout.exact = false"
            )
        if objective.surrogate.name == "reinforce":
            raise ValueError(
                "rollout.ahead = 1: objective.surrogate = reinforce has no ratio π/π_old, so nothing "
                f"would correct for the older policy that sampled; {fix}"
            )
        return self

    @model_validator(mode="after")
    def vllm_tells_the_support_of_a_draw(self) -> Self:
        rollout = self.rollout
        if rollout.engine == "vllm" and rollout.truncates and not 0 < rollout.top_k <= 1000:
            raise ValueError(
                f"rollout.top_k = {rollout.top_k}: must be from 1 to 1000 with rollout.engine = vllm where anything "
                "is cut: vLLM tells the support of a draw as its n most likely tokens"
            )
        return self

    @model_validator(mode="after")
    def drafts_are_of_whole_draws(self) -> Self:
        rollout = self.rollout
        if rollout.speculation and rollout.truncates:
            raise ValueError(
                f"rollout.speculation = {rollout.speculation}: must be 0 with rollout.top_k, top_p or min_p, because "
                "supports are recorded one token a step"
            )
        if rollout.speculation and rollout.engine == "vllm":
            raise ValueError(
                f"rollout.speculation = {rollout.speculation}: must be 0 with rollout.engine = vllm, because only the "
                "native sampler drafts"
            )
        return self

    @model_validator(mode="after")
    def a_mini_batch_is_part_of_a_batch(self) -> Self:
        if self.train.mini_batch > self.rollout.prompts:
            raise ValueError(
                f"train.mini_batch = {self.train.mini_batch}: must be at most rollout.prompts, "
                f"{self.rollout.prompts}; 0 is all of them"
            )
        return self

    @model_validator(mode="after")
    def four_bits_are_frozen(self) -> Self:
        if self.model.quantize != "none" and not self.model.lora_rank:
            raise ValueError(
                f"model.quantize = {self.model.quantize}: must be none without LoRA, because weights in 4 bits are "
                "not trained; set model.lora_rank"
            )
        return self

    @model_validator(mode="after")
    def the_best_is_evaluated(self) -> Self:
        wanted, evaluated = self.train.keep_best, self.eval
        known = accuracies(evaluated.samples, greedy=evaluated.greedy)
        if wanted and not evaluated.every:
            raise ValueError(f"train.keep_best = {toml(wanted)}: needs evaluations; set eval.every")
        if wanted and wanted not in known:
            raise ValueError(
                f"train.keep_best = {toml(wanted)}: must be a metric of the evaluations, {', '.join(known)}"
            )
        return self

    @model_validator(mode="after")
    def what_is_averaged_is_kept(self) -> Self:
        if self.train.average == 1:
            raise ValueError(
                "train.average = 1: must be 0 or at least 2, because one checkpoint is its own mean"
            )
        if self.train.average > self.train.keep + 1:
            raise ValueError(
                f"train.average = {self.train.average}: must be at most train.keep + 1, {self.train.keep + 1}, "
                "because older checkpoints are gone at the end"
            )
        return self

    @model_validator(mode="after")
    def trackers_have_a_project(self) -> Self:
        if not self.log.project:
            raise ValueError('log.project = "": must be a name')
        return self

    @model_validator(mode="after")
    def shards_pass_alike(self) -> Self:
        passes_are_set = self.train.micro_batch or self.train.micro_tokens
        possible = not self.model.lora_rank and self.rollout.engine == "native" and passes_are_set
        if self.train.shard and not possible:
            raise ValueError(
                "train.shard = true: must go without LoRA, with rollout.engine = native, and with "
                "train.micro_tokens (or train.micro_batch) set, because what fits is not measured "
                "where processes must keep step"
            )
        return self


def accuracies(samples: int, *, greedy: bool) -> list[str]:
    """Metrics of an evaluation with `samples` responses a prompt that are better the higher they are."""
    passes = [f"pass@{2**k}" for k in range(1, samples.bit_length()) if 2**k < samples]
    once = ["greedy"] if greedy else []
    return [f"acc@{samples}", f"best@{samples}", *passes, f"maj@{samples}", *once]


def validated(values: Any) -> Config:
    """A configuration from a table of sections, or a whole one checked again."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(sentence(Config, error)) from error
