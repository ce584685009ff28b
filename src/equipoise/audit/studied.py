"""What our studies found (docs/study.md), in the sentences that the advice says, and the bounds it is tied to.

tests/audit/test_studied.py holds every number here to studies/results.
"""

# A sign imbalance off-policy (studies 3 and 10), 0.54 to 1 being the dose -0.3 there, 1.86 to 1 +0.3:
WRONG_PULL = (
    "In our study wrong responses that pull harder cost accuracy (1.8 points at 0.54 to 1)."
)
RIGHT_PULL = (
    "In our study right responses that pull harder cost no accuracy (off-policy, at 1.86 to 1, they gained 1.6 "
    "points), so nothing need change."
)
# the step from token to balanced (studies 8, 16, 19, 30 and 31) and on to over="batch" (31 and 32);
# longer by that share of the mean length:
LONG_WRONG = (
    "Where wrong ones were 33 to 42 % longer, balanced learnt 0 to 1.3 points more than token over the group in our "
    "studies, and over the batch 0.4 to 1.3 more than that."
)
# constant is token over the batch but for a factor a batch; studies 31, 32 and 42, and 43
LONG_OVER_BATCH = (
    "Where wrong ones were 30 to 41 % longer, balanced over the batch learnt 0.5 to 0.9 points more than token over "
    "the batch in our studies; where they were 53 % longer and soon no more, no half point."
)
# below this gap no study found a gain: 38 (.24), 32 (.22), 24 and 25 (.20) none, 36 and 38 (.13 and less) a loss
LONG = 0.3
SMALL_GAP = (
    "Where wrong ones were 6 to 24 % longer, no test of our studies found balanced to learn more: "
    "this is no reason to change the aggregation."
)
# Studies 36, 38 and 41: wrong responses that leave steps out are short, or short and long by turns.
SPREAD_CV, SPREAD_GAP = 0.35, 0.2  # lengths spread by more, wrong ones longer by less
SPREAD_LOSS = (
    "Where lengths spread like that and wrong ones were 6 and 13 % longer, balanced over the batch learnt 0.8 and 1.4 "
    "points less than token over the batch in our studies."
)
SHORT = -0.05  # the gap
SHORT_LOSS = (
    "Where wrong ones were 15 and 29 % shorter, balanced over the batch learnt 1.0 and 0.5 points less than token over "
    "the batch in our studies."
)
# studies 19 and 27
OVER_BATCH = (
    "In our study {rule} learnt no more than averaging over the batch: "
    "this is no reason to change the aggregation."
)
TIED = "In our studies balanced learnt 0 to 0.6 points more than sequence, which no test decided: nothing need change."
# the regime rule: studies 16 and 30 for a large gap, over the group; study 19 over the batch; no study decided the rest
LARGE_GAP = (
    "Where wrong ones were 34 to 40 % longer, sequence learnt 0.5 to 0.9 points more than token over the group in "
    "our studies."
)
UNDECIDED = "Our study did not decide between the two there, so nothing need change."
# studies 24 (groups of 16) and 28 (groups of 8, prompts that come again)
NO_COST = (
    "In our studies taking it out (debias) changed no half point of accuracy: nothing need change."
)
# studies 18 (off-policy) and 24 (on-policy), exploratory
PREFIX = (
    "In our studies cancellation = prefix, which takes that out, learnt no more on sequence (0.2 and 0.6 points less), "
    "so it is not proposed."
)
