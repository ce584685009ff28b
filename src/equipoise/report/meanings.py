"""What each metric is called on the page, and what it means in a sentence each."""

from __future__ import annotations

Shown = tuple[str, str, str]  # metric, title, sentence

TRAINING: tuple[Shown, ...] = (
    ("reward/mean", "Mean reward", "Over all responses of the step."),
    (
        "groups/informative",
        "Informative groups",
        "Share of groups whose responses differ in reward; the others teach nothing.",
    ),
    ("completions/mean_length", "Response length", "Mean tokens per response."),
    ("completions/clipped_ratio", "Truncated responses", "Share of responses cut at max_tokens."),
    (
        "support/single",
        "Forced tokens",
        "With top-k, top-p or min-p: share of tokens that were the only one kept, and so have no gradient.",
    ),
    ("verdict/unparsed", "Unparsed answers", "Share of responses in which no answer was found."),
    ("grad_norm", "Gradient norm", "Before clipping to optim.clip_norm."),
    ("tokens_per_s", "Tokens per second", "Sampled tokens over the whole step's time."),
)

ENTROPY: tuple[Shown, ...] = (
    (
        "entropy",
        "Entropy per token",
        "Of the policy, on the tokens it is trained on. At 0 it has stopped exploring.",
    ),
    (
        "approx_kl",
        "Movement within a batch",
        "Mean of ρ − 1 − log ρ, an estimate of KL(π_old ‖ π), at the batch's first update.",
    ),
    (
        "approx_kl/last_update",
        "Movement at the last update",
        "The same at the last update of the batch.",
    ),
    ("kl", "KL to the starting policy", "Mean per token, as the objective's KL term sees it."),
    (
        "clip_ratio/high",
        "Clipped upwards",
        "Share of tokens with a positive coefficient whose gradient was cut.",
    ),
    (
        "clip_ratio/low",
        "Clipped downwards",
        "Share of tokens with a negative coefficient whose gradient was cut.",
    ),
    (
        "clip_ratio/region",
        "Clipped",
        "Share of tokens whose gradient was cut, at the batch's first update.",
    ),
    (
        "clip_ratio/region/last_update",
        "Clipped at the last update",
        "Share of tokens whose gradient was cut, at the last update of the batch.",
    ),
    ("ratio/std", "Spread of the ratio ρ", "Standard deviation of π/π_old over tokens."),
    (
        "rollout/logprob_difference/mean",
        "Sampler against trainer",
        "Mean |log π_trainer − log π_sampler| of the tokens trained on; in float32 it should be nearly 0.",
    ),
    (
        "rollout/capped_tokens",
        "Tokens at the mismatch cap",
        "Share of tokens whose weight π_old/π_rollout was cut (objective.mismatch = tis).",
    ),
    (
        "rollout/masked_responses",
        "Responses masked for mismatch",
        "Share of responses left out because π_old/π_rollout was too large (objective.mismatch = mis).",
    ),
)

HELD_OUT: dict[str, str] = {
    "acc": "Mean accuracy of the samples.",
    "best": "At least one of the samples is right.",
    "pass": "Chance that one of k samples is right, unbiased.",
    "maj": "The most frequent answer is right.",
    "greedy": "One answer per prompt at temperature 0.",
}

# metric: what it measures, what 0 would mean; first what an objective does,
# then facts of the data it meets
BIAS: dict[str, tuple[str, str]] = {
    "bias/mass_balance": (
        "Σ c·T / Σ |c|·T per group, mean over groups. Above 0 the right answers pull harder, below 0 the wrong ones: "
        "sign and length are coupled.",
        "positives and negatives pull equally hard, and the loss hovers at 0",
    ),
    "bias/mass_imbalance": (
        "Mass balance in absolute value, group by group, so that groups cannot make up for each other.",
        "every single group is balanced",
    ),
    "bias/exchangeability": (
        "|Σ c| / Σ |c| per group: the net push on a token that all responses of the group share.",
        "a shared token gets no net push",
    ),
    "bias/node_exchangeability": (
        "|Σ c| / Σ |c| per token that two or more responses share with its whole prefix, mean over those tokens.",
        "a shared token gets no net push",
    ),
    "bias/zero_sum": (
        "|Σ A| / Σ |A| per group. Difficulty weights break it: they scale rights and wrongs differently.",
        "the advantages of a group sum to 0",
    ),
    "bias/learning_tax": (
        "|Σ c| / Σ |c|·T per group: the share of the gradient mass that each token shared by the whole group costs.",
        "no gradient is spent on what all responses share",
    ),
    "bias/node_learning_tax": (
        "The share of the gradient mass that all tokens shared by the whole group cost together.",
        "no gradient is spent on what all responses share",
    ),
    "bias/equal_weighting": (
        "Standard deviation over mean of the weight, over the tokens of responses with A ≠ 0.",
        "every token weighs the same",
    ),
    "bias/baseline_bias": (
        "|E[p̂ given a mixed group] − p| at p = p̂, mean over mixed groups: by how much the group's mean misleads as a "
        "baseline, because groups without a difference drop out. Larger groups make it smaller.",
        "the group's mean is an unbiased baseline",
    ),
    "bias/masked_mass": (
        "Share of Σ|A| that belongs to responses masked out of the loss: their group is still centred on it, and "
        "nothing pulls with it.",
        "no response with an advantage is masked",
    ),
    "bias/group_length_cv": (
        "Standard deviation over mean of the response lengths inside a group, mean over mixed groups: what "
        "decides between aggregation rules, because groups are weighed on their own.",
        "responses to the same prompt are equally long",
    ),
    "bias/group_length_gap": (
        "(T̄− − T̄+) / T̄ inside a group, mean over mixed groups: hard prompts with long responses do not enter it.",
        "right and wrong responses to the same prompt are equally long",
    ),
    "bias/length_cv": (
        "Standard deviation over mean of the response lengths. A fact of the data, not of the objective: the larger it "
        "is, the more unequally sequence aggregation weighs tokens.",
        "all responses are equally long",
    ),
    "bias/length_gap": (
        "(T̄− − T̄+) / T̄: how much longer wrong responses are. A fact of the data: token aggregation turns it into a "
        "mass imbalance.",
        "right and wrong responses are equally long",
    ),
}
