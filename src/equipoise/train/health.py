"""Whether a run learns: what is counted from step to step, what it warns of, and why it stops.

Not here: a reward that is gamed (gaming.py), updates that are not finite (update.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from equipoise.config import Config
from equipoise.train.batch import StepBatch
from equipoise.train.folder import RunFolder
from equipoise.train.score import last_line
from equipoise.train.tally import Failing

QUIET_STEPS = 5  # without anything to learn from, after which the terminal says so
CUT_STEPS = 10  # whose gradients were far longer than the clip norm, likewise


@dataclass
class Health:
    config: Config
    folder: RunFolder
    aggregation: str  # the objective's, which decides how long its gradients are
    step: int = 0  # the last one seen
    failing: Failing = field(default_factory=Failing)
    unscored: str = ""  # why too many responses of the last step have no score
    unread: float = 0.0  # share of the last step's responses in which no answer could be read
    uninformative: int = 0  # steps in a row
    cut_norms: list[float] = field(default_factory=list)  # far over optim.clip_norm, in a row

    def see(self, step: int, batch: StepBatch, grad_norm: float | None) -> list[str]:
        """Take in a step that `failing` has seen, without a gradient where no response pulled;
        what to warn of.
        """
        self.step = step
        self.unread = batch.kinds["unparsed"] / batch.kinds.total()
        unscored = batch.unscored / batch.kinds.total()
        if unscored > self.config.reward.max_unscored:
            self.unscored = f"{unscored:.0%} of the responses have no score ({_troubles(batch)})"
        warnings = []
        # Steps whose verifier failed say nothing about whether the prompts are too hard or too
        # easy.
        if not self.failing.steps:
            self.uninformative = self.uninformative + 1 if grad_norm is None else 0
        if self.uninformative == QUIET_STEPS and not self.problem():
            warnings.append(self._nothing_to_learn())
        if grad_norm is not None:
            is_cut = 0 < 2 * self.config.optim.clip_norm < grad_norm
            self.cut_norms = [*self.cut_norms, grad_norm] if is_cut else []
            if len(self.cut_norms) == CUT_STEPS:
                warnings.append(self._always_cut())
        return warnings

    def problem(self) -> str:
        """Why the run cannot learn as it is; empty where it can."""
        reasons = f"{self.folder.troubles} has the reasons"
        if self.failing.sentence:
            return f"{self.failing.sentence}; {reasons}"
        if self.unscored:
            return f"{self.unscored}; {reasons}: repair the verifier or the data, or raise reward.max_unscored"
        if self.uninformative >= self.config.train.max_uninformative:
            return f"{self._nothing_to_learn()}, or raise train.max_uninformative"
        return ""

    def _nothing_to_learn(self) -> str:
        """How long no group has taught anything, and what may have done it."""
        causes = "is the reward always the same, the task too hard or too easy"
        if self.unread > 0.5:
            causes = (
                f"no answer could be read in {self.unread:.0%} of the last step's responses: do the prompts say how "
                "to write it, which task.suffix can add, is it cut off at rollout.max_tokens"
            )
        if self.step > self.uninformative:  # an update came before: it may have broken the model
            causes += f", or the learning rate, {self.config.optim.lr}, too large"
        return (
            f"no two responses to the same prompt differed in reward for {self.uninformative} steps: "
            f"there is nothing to learn from; look at {self.folder.rollouts} ({causes}?)"
        )

    def _always_cut(self) -> str:
        """That clipping decides how large a step is, and what to do about it."""
        norms, clip = self.cut_norms, self.config.optim.clip_norm
        sentence = (
            f"the gradients of {len(norms)} steps had norms from {min(norms):.2g} to {max(norms):.2g} and were all "
            f"cut to optim.clip_norm = {clip:g}: it, and not the objective, decides how large a step is; raise it "
            "or set it to 0"
        )
        if self.aggregation == "constant":
            sentence += ", or set objective.aggregation.length to rollout.max_tokens"
        return sentence


def _troubles(batch: StepBatch) -> str:
    """How many of each verdict that needs looking at, and the first one's reason."""
    counts = Counter(trouble["verdict"] for trouble in batch.troubles)
    many = ", ".join(f"{kind} {n}" for kind, n in counts.most_common())
    if not batch.troubles:
        return "masked"
    return f"{many}; the first: {last_line(batch.troubles[0]['reason'])}"
