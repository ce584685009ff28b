"""What the plug-in relies on in TRL and transformers, a sentence each: a version that breaks one names it here."""

import dataclasses
import inspect

import pytest

pytest.importorskip("trl")

import trl
from transformers import Trainer

from equipoise.integrations.trl.plugin import REPLACED

GRPO = trl.GRPOTrainer


def source(function) -> str:
    return inspect.getsource(getattr(GRPO, function) if isinstance(function, str) else function)


def says(function, *parts) -> bool:
    """Whether the function's source has all of these, white space apart."""
    text = "".join(source(function).split())
    return all("".join(part.split()) in text for part in parts)


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


LOSS, SCORE = "_compute_loss", "_generate_and_score_completions"
CONTRACT = {
    "compute_loss is _compute_loss": lambda: says("compute_loss", "return self._compute_loss(model, inputs)"),
    "_compute_loss takes model and inputs": lambda: parameters(GRPO._compute_loss) == ["self", "model", "inputs"],
    "_compute_loss makes its log-probabilities and entropies, in this order, by one call of its method": lambda: (
        says(LOSS, "per_token_logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(")
        and source(LOSS).count("self._get_per_token_logps_and_entropies(") == 1
    ),
    "_compute_loss reads the advantages from its inputs": lambda: says(LOSS, 'advantages = inputs["advantages"]'),
    "_compute_loss takes ratios of 1 where there are no old log-probabilities": lambda: says(
        LOSS, 'inputs.get("old_per_token_logps")', "per_token_logps.detach() if old_per_token_logps is None"
    ),
    "_compute_loss leaves the KL out at self.beta = 0": lambda: says(LOSS, "if self.beta != 0.0:"),
    "_compute_loss has the type sapo, which is 0 at advantages of 0": lambda: says(
        LOSS, 'elif self.loss_type == "sapo"', "per_token_loss = -soft_coef_1 * advantages"
    ),
    "_compute_loss logs nothing of its own for sapo": lambda: (
        "sapo" not in source(LOSS).split("# Log the metrics")[1]
    ),
    "_compute_loss masks padding and tools as completion_mask * tool_mask": lambda: says(
        LOSS, 'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]'
    ),
    "_compute_loss logs policy_loss where there is an entropy bonus": lambda: says(
        LOSS, "if self._entropy_bonus_enabled:", 'self._metrics[mode]["policy_loss"].append('
    ),
    "_compute_loss tells training from evaluation by self.model.training": lambda: says(LOSS, "if self.model.training"),
    "losses are scaled for gradient accumulation by the trainer's own loss": lambda: GRPO.loss_is_scaled_for_ga is True,
    "transformers scales no loss that says it is scaled": lambda: says(
        Trainer.training_step, "loss_is_scaled_for_ga = self.loss_is_scaled_for_ga", "if not loss_is_scaled_for_ga:"
    ),
    "rewards are gathered from all ranks, one column per function": lambda: says(
        "_calculate_rewards", "rewards_per_func = gather(rewards_per_func)", "return rewards_per_func"
    ),
    "a generation batch is rewarded by one call of _calculate_rewards": lambda: (
        source(SCORE).count("self._calculate_rewards(") == 1
    ),
    "a prompt's responses lie together, rank after rank": lambda: says(
        SCORE, "rewards.view(-1, num_generations)", "self.accelerator.process_index * len(prompts)"
    ),
    "advantages of the table of completions come one per response": lambda: says(
        SCORE, 'self._logs["advantages"].extend(all_process_advantages.tolist())'
    ),
    "the batch has the names that the plug-in reads": lambda: says(
        SCORE, *(f'"{name}"' for name in (
            "completion_ids", "completion_mask", "advantages", "old_per_token_logps", "sampling_per_token_logps",
            "ref_per_token_logps", "tool_mask",
        )),
    ),
    "a batch is scored, shuffled with all its rows' tensors, split, and kept": lambda: says(
        "_prepare_inputs", "self._generate_and_score_completions(generation_batch)",
        "shuffle_sequence_dict(generation_batch)",
        "split_tensor_dict(generation_batch, self.args.steps_per_generation)",
    ),
    "a checkpoint is saved by _save_checkpoint(model, trial)": lambda: (
        parameters(GRPO._save_checkpoint) == ["self", "model", "trial"]
    ),
    "a checkpoint is resumed by _load_optimizer_and_scheduler(checkpoint)": lambda: (
        parameters(GRPO._load_optimizer_and_scheduler) == ["self", "checkpoint"]
    ),
    "GRPOConfig has the settings that the plug-in reads": lambda: {
        *REPLACED, "beta", "use_bias_correction_kl", "entropy_coef", "use_adaptive_entropy", "top_entropy_quantile",
        "off_policy_mask_threshold", "steps_per_generation", "num_generations", "use_vllm",
        "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min",
        "vllm_importance_sampling_clip_max",
    } <= {f.name for f in dataclasses.fields(trl.GRPOConfig)},
    "no other way leads from a batch to its loss (a fused one, say)": lambda: not hasattr(GRPO, "compute_liger_loss"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", CONTRACT)
def test_trl_still_does(sentence):
    assert CONTRACT[sentence](), (
        f"TRL {trl.__version__} no longer does this: {sentence}. Read what took its place before "
        "equipoise.integrations.trl.plugin is trusted with it; the gradient tests say whether it still holds."
    )
