"""Every metric of `metrics.jsonl` and `eval.jsonl` with its sentence.

A capital word in a name stands for a part that differs between runs: `rewards/FUNCTION/mean`. The
sentences of metrics that the page draws are the page's own. Not covered: what a tracker or a reward
function of the user's adds, the tables inside a line of `eval.jsonl` (`interval`, `by_level`),
which repeat its metrics, and the runs of `equipoise sft`.
"""

from __future__ import annotations

import re

from equipoise.report.meanings import BIAS, ENTROPY, HELD_OUT, TRAINING
from equipoise.verifiers.gaming import MEASURES

LAST_UPDATE = "/last_update"  # ends the names of what the last optimizer step of a batch measured

_STEP = {
    "step": "The step of this line; in `eval.jsonl` 0 is before training.",
    "reward/std": "Population deviation of the rewards of the step.",
    "accuracy/mean": "Mean accuracy (the first verdict on the answer, else the reward, cut off at 0 and 1) over all "
    "responses drawn, those of dropped groups as well.",
    "completions/min_length": "Tokens of the shortest response.",
    "completions/max_length": "Tokens of the longest response.",
    "groups/drawn": "Groups sampled for the step; more than were kept where dynamic sampling draws again.",
    "groups/kept": "Groups trained on.",
    "groups/too_easy": "Share of the drawn groups that were all right.",
    "groups/too_hard": "Share of the drawn groups that were all wrong.",
    "groups/seen_before": "Share of the groups whose prompt an earlier step had.",
    "verdict/KIND": "Share of all responses drawn with this verdict; a kind that no response had is left out.",
    "verdict/unscored": "Number of responses drawn that were left out for want of a score.",
    "rewards/FUNCTION/mean": "Mean reward of one function, over the responses it scored.",
    "rewards/FUNCTION/crashed": "Share of its responses on which the function crashed.",
    "rewards/FUNCTION/timeout": "Share of its responses on which the function ran out of time.",
    "rewards/FUNCTION/unparsed": "Share of its responses in which the function found no answer.",
    "length_penalty": "Mean of what `reward.length_penalty` takes from a reward.",
    "support/mean_size": "With top-k, top-p or min-p: mean number of tokens kept at a draw.",
    "gaming/judged": "Responses of the step that the second judge had an opinion on.",
    "gaming/distinct_in_groups": "Different answers within a group over its responses that have one.",
    "teacher/kl": "Mean of log π_old − log π_teacher a token, with `train.teacher`.",
    "difficulty/anchor": "The anchor C that the step's success rates were compared with (HA-DW, debias).",
    "difficulty/turned": "Share of the responses that `recentre` of a difficulty set to 0 to keep their sign.",
    "cancellation/clamped": "Share of the responses that `orthogonal` or `both` left with nothing.",
    "cancellation/infeasible": "Share of the mixed groups in which no coefficients keep both balances (`both`).",
    "cancellation/turned": "Share of the responses that `recentre` set to 0 to keep their sign.",
}

_UPDATE = {
    "loss": "What was minimised: the policy loss with KL and entropy terms; mean over prompts.",
    "policy_loss": "The loss without KL and entropy terms. Without clipping it hovers at 0 where mass balance holds.",
    "tokens": "Tokens in the loss.",
    "nonfinite_tokens": "Tokens left out because their numbers are not finite.",
    "ratio/mean": "Mean of ρ = π/π_old over tokens.",
    "ratio/min": "Smallest ρ.",
    "ratio/max": "Largest ρ.",
    "drift/shared_contexts": "Mean of ρ − 1 − log ρ at contexts that two or more responses to a prompt share.",
    "rollout/logprob_difference/max": "Largest |log π_trainer − log π_sampler| of the tokens trained on.",
    "rollout/kl": "Estimate of KL(π_sampler ‖ π_trainer) a token, by k3.",
    "rollout/tokens_per_pass": "Tokens that a row draws in a step of the sampler, on average (`rollout.speculation`).",
    "rollout/drafts_accepted": "Share of the drafts found that were what is drawn at their place.",
    "rollout/lag": "Optimizer steps that the weights which sampled the batch lack of those it trains "
    "(`rollout.ahead`).",
    "lr": "Learning rate of the last optimizer step.",
    "optimizer_steps": "Optimizer steps so far.",
    "skipped": "Updates so far that were not applied because their numbers were not finite.",
    "timing_s/PART": "Seconds of this part of the step: rollout, reward (waiting for verdicts), assign, train, log (of "
    "the step before), step (the whole). With `rollout.ahead` rollout and reward are the thread's, wait is for it.",
}

_EVALUATION = {
    "judge": "Who says how right a held-out response is: `task`, or the run's own reward functions.",
    "reward": "Mean reward of the sampled responses, before any shaping by length.",
    "length": "Mean tokens per sampled response.",
    "length_gap": "(T̄− − T̄+)/T̄ over the held-out responses: how much longer wrong ones are.",
    "gaming/greedy": "Greedy accuracy by the second judge.",
    "probe/logprob": "Mean log-probability a token of the fixed responses; its fall estimates KL(start ‖ now).",
    "probe/entropy": "Entropy of the policy a token at the fixed responses.",
    "probe/shared/logprob": "The same log-probability where two responses to a prompt have the same context.",
    "probe/shared/entropy": "The same entropy where two responses to a prompt have the same context.",
    "probe/VERDICT/logprob": "Mean log-probability a token of the right, or of the wrong, fixed responses.",
    "probe/VERDICT/LENGTH/logprob": "The same of those shorter (`short`) or longer (`long`) than the prompt's mean.",
    "probe/answers/drift": "Mean change since the start of the log-odds between two right responses to a prompt.",
    "probe/answers/entropy": "Entropy of the policy among its fixed right responses to a prompt, mean over prompts.",
    "start/BIN": "Accuracy now of the held-out prompts whose success rate at the start lay in this range (percent).",
}


def _shown() -> dict[str, str]:
    """The metrics that panels of the page draw."""
    shown = {
        name: sentence
        for name, _, sentence in (*TRAINING, *ENTROPY)
        if not name.endswith(LAST_UPDATE)
    }
    shown.pop("verdict/unparsed")  # one of verdict/KIND
    return shown


def _biases() -> dict[str, str]:
    found = {name: f"{measures} At 0 {at_zero}." for name, (measures, at_zero) in BIAS.items()}
    pushed = ("mass_balance", "mass_imbalance", "exchangeability", "learning_tax")
    for name in (*pushed, "node_exchangeability", "node_learning_tax"):
        found[f"pushed/{name}"] = (
            f"`bias/{name}` of the slopes that multiplied ∇log π, after clipping and ratios."
        )
    return found


# file → metric → sentence
METRICS: dict[str, dict[str, str]] = {
    "metrics.jsonl": {**_STEP, **_UPDATE, **_shown(), **_biases()},
    "eval.jsonl": {
        name if name == "greedy" else f"{name}@N": said for name, said in HELD_OUT.items()
    },
}
for name, measure in MEASURES.items():
    METRICS["metrics.jsonl"][name] = f"{measure.sentence} Warned of at {measure.threshold:g}."
METRICS["eval.jsonl"] |= _EVALUATION
METRICS["eval.jsonl"]["step"] = METRICS["metrics.jsonl"]["step"]
METRICS["eval.jsonl"]["gaming/greedy_drop"] = METRICS["metrics.jsonl"].pop("gaming/greedy_drop")


def meaning(file: str, metric: str) -> str | None:
    """The sentence of a metric as a run wrote it; None where there is none."""
    name = metric.removesuffix(LAST_UPDATE)
    table = METRICS[file]
    if name in table:
        return table[name]
    patterns = (known for known in table if re.search("[A-Z]", known))
    return next((table[known] for known in patterns if pattern(known).fullmatch(name)), None)


def pattern(known: str) -> re.Pattern[str]:
    """A name of the table as a pattern: a capital word stands for anything without a stroke."""
    return re.compile(re.sub(r"[A-Z]+", r"[^/]+", known))
