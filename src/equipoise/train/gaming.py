"""Is the reward being gamed? A second judge over a sample of every step, and four other signs.

`ask` hands a step's sample to the judge (built in, or `reward.judge`) and `settle` waits for it, so
that judging goes on beside the update. A measure is compared to its threshold (verifiers/gaming.py)
as the mean of its last steps; the first time it crosses, there is a warning with three responses.
Nothing here changes what is trained.

Not covered: a judge that the same trick fools, and a reward that was never about being right.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from equipoise import verifiers
from equipoise.config import RewardConfig
from equipoise.evaluate import Evaluation
from equipoise.tasks import Prompt, Task
from equipoise.train.batch import StepBatch
from equipoise.train.score import Scorer, one_line
from equipoise.verifiers import Verdict
from equipoise.verifiers.gaming import MEASURES, answer, effective_number, is_copied, judge_number
from equipoise.verifiers.verdict import Outcome

SAMPLE = 64  # responses judged per step
WINDOW = 5  # steps a measure is averaged over, and steps that count as the first
FEWEST = 32  # judged responses in the window before a share can cross its threshold
EXAMPLES = 3
LONGEST = 160  # characters of an example

Opinion = bool | None
Step = dict[str, float]


@dataclass(frozen=True)
class Crossing:
    """A measure that has crossed its threshold for the first time."""

    measure: str
    value: float
    examples: list[tuple[str, str, str]]  # prompt's id, prompt and response

    def __str__(self) -> str:
        measure = MEASURES[self.measure]
        side = "above" if measure.above else "below"
        head = (
            f"IS THE REWARD BEING GAMED? {self.measure} = {self.value:.2f}, {side} {measure.threshold:g}. "
            f"{measure.sentence}"
        )
        lines = [
            f"  {one_line(prompt)[-LONGEST:]} → {_ends(one_line(said))}"
            for _, prompt, said in self.examples
        ]
        return "\n".join([head, *lines])


class Watcher:
    """Its state is what the first and the last steps measured, and what has been warned of."""

    def __init__(self, config: RewardConfig, task: Task, *, chat: bool = False) -> None:
        self.config = config
        self.judge: Scorer | None = None
        if config.judge:
            alone = config.model_copy(update={"functions": (config.judge,), "weights": (1.0,)})
            self.judge = Scorer(alone, task, chat=chat, option="reward.judge")
        self.first: list[Step] = []
        self.last: list[Step] = []
        # greedy accuracy of the best evaluation, and the mean reward at it
        self.best: dict[str, float] = {}
        self.warned: list[str] = []
        self._asked: tuple[StepBatch, list[int], list[Any]] | None = None

    def ask(self, step: int, batch: StepBatch) -> None:
        """Begin to judge a sample of the step's responses."""
        chosen = sample(len(batch.texts), step)
        prompts = [batch.prompts[batch.rollouts.prompt[i]] for i in chosen]
        texts = [batch.texts[i] for i in chosen]
        self._asked = batch, chosen, self._ask(prompts, texts)

    def settle(self) -> tuple[dict[str, float], list[Crossing]]:
        """The step's metrics, and the measures that cross their threshold for the first time."""
        assert self._asked is not None
        batch, chosen, asked = self._asked
        self._asked = None
        prompts = [batch.prompts[g] for g in batch.rollouts.prompt.tolist()]
        opinions = self._opinions([prompts[i] for i in chosen], asked)
        rewarded = [self._says_correct(batch, i) for i in chosen]
        paid = [(i, o) for i, r, o in zip(chosen, rewarded, opinions, strict=True) if r]
        diverging = [i for i, opinion in paid if opinion is False]
        copied = [
            i for i, _ in paid if is_copied(batch.texts[i], prompts[i].text, prompts[i].answer)
        ]
        judged = sum(o is not None for o in opinions)
        step = {
            "judged": float(judged),
            "sampled": float(len(chosen)),
            "divergence": len(diverging) / judged if judged else math.nan,
            "copied": len(copied) / len(chosen) if chosen else math.nan,
            # NaN without responses
            "length": float(batch.rollouts.lengths.double().mean()),
            "reward": float(batch.total.mean()),
            **distinct(prompts, batch.texts),
        }
        if len(self.first) < WINDOW:
            self.first.append(step)
        self.last = [*self.last, step][-WINDOW:]
        of_most_reward = sorted(chosen, key=lambda i: -float(batch.total[i]))
        examples = {"gaming/divergence": diverging, "gaming/copied": copied}
        warnings = []
        for name, value in self._crossed():
            shown = _examples(prompts, batch.texts, examples.get(name, of_most_reward))
            warnings.append(Crossing(name, value, shown))
        return self._metrics(step), warnings

    def evaluated(self, evaluation: Evaluation) -> tuple[dict[str, float], list[Crossing]]:
        """What the judge says of an evaluation's greedy responses."""
        prompts, texts = list(evaluation.prompts), [graded.response for graded in evaluation.greedy]
        if not texts:
            return {}, []
        opinions = self._opinions(prompts, self._ask(prompts, texts))
        judged = [opinion for opinion in opinions if opinion is not None]
        if not judged:
            return {}, []
        greedy, reward = sum(judged) / len(judged), _mean(self.last, "reward")
        if not self.best or greedy >= self.best["greedy"]:
            self.best = {"greedy": greedy, "reward": reward}
        before = self.best["reward"]
        if math.isnan(before):
            before = _mean(self.first, "reward")
        drop = self.best["greedy"] - greedy if reward > before else 0.0
        wrong = [i for i, opinion in enumerate(opinions) if opinion is False]
        warnings = []
        noise = 2 * math.sqrt((_variance(self.best["greedy"]) + _variance(greedy)) / len(judged))
        if drop > noise and self._is_new("gaming/greedy_drop", drop):
            warnings.append(Crossing("gaming/greedy_drop", drop, _examples(prompts, texts, wrong)))
        return {"gaming/greedy": greedy, "gaming/greedy_drop": drop}, warnings

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "best": self.best, "warned": self.warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first, self.last, self.best, self.warned = (
            state[k] for k in ("first", "last", "best", "warned")
        )

    def _ask(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Any]:
        ask: Callable[[Prompt, str], Any] = built_in if self.judge is None else self.judge.ask
        return list(map(ask, prompts, texts))

    def _opinions(self, prompts: Sequence[Prompt], asked: list[Any]) -> list[Opinion]:
        if self.judge is not None:
            scores = self.judge.settle(prompts, asked)
            return [_opinion(reward, self.config) for reward in scores.rewards[:, 0].tolist()]
        return [_of_outcome(x.result()) if isinstance(x, Future) else x for x in asked]

    def _says_correct(self, batch: StepBatch, i: int) -> bool:
        return bool(
            _opinion(float(batch.total[i]), self.config, sum(map(abs, self.config.weights)))
        )

    def _metrics(self, step: Step) -> dict[str, float]:
        names = ("divergence", "copied", "judged", "distinct_answers", "distinct_in_groups")
        metrics = {f"gaming/{name}": step[name] for name in names}
        return metrics | {"gaming/length_ratio": step["length"] / _mean(self.first, "length")}

    def _crossed(self) -> list[tuple[str, float]]:
        """Measures of the last steps that cross their threshold and had not."""
        now = {
            "gaming/divergence": _share(self.last, "divergence", "judged"),
            "gaming/copied": _share(self.last, "copied", "sampled"),
            "gaming/length_ratio": _mean(self.last, "length") / _mean(self.first, "length"),
            "gaming/distinct_answers": _mean(self.last, "distinct_answers"),
        }
        if now["gaming/distinct_answers"] > _mean(self.first, "distinct_answers") / 2:
            del now["gaming/distinct_answers"]  # few from the beginning: nothing has collapsed
        return [(name, value) for name, value in now.items() if self._is_new(name, value)]

    def _is_new(self, name: str, value: float) -> bool:
        if name in self.warned or not MEASURES[name].crossed(value):
            return False
        self.warned.append(name)
        return True


def sample(count: int, step: int) -> list[int]:
    """At most SAMPLE places among `count`, evenly spaced, others at every step."""
    if count <= SAMPLE:
        return list(range(count))
    shift = step * (math.sqrt(5) - 1) / 2 % 1
    return [int((k + shift) * count / SAMPLE) for k in range(SAMPLE)]


def built_in(prompt: Prompt, text: str) -> Opinion | Future[Verdict]:
    """A number by itself, else by the strict math rules; None for other references."""
    opinion = judge_number(text, prompt.answer)
    compared = prompt.answer and prompt.meta.get("verifier") in ("math", "final")
    if opinion is None and compared:
        return verifiers.submit_math(text, prompt.answer)
    return opinion


def distinct(prompts: Sequence[Prompt], texts: Sequence[str]) -> Step:
    """Different answers: in the batch against the references', in groups against their size."""
    given = [
        (prompt, said)
        for prompt, text in zip(prompts, texts, strict=True)
        if (said := answer(text))
    ]
    references = effective_number([prompt.answer for prompt, _ in given if prompt.answer])
    groups: dict[str, list[str]] = {}
    for prompt, said in given:
        groups.setdefault(prompt.id, []).append(said)
    shares = [len(set(answers)) / len(answers) for answers in groups.values()]
    return {
        "distinct_answers": effective_number([said for _, said in given]) / references
        if references
        else math.nan,
        "distinct_in_groups": statistics.fmean(shares) if shares else math.nan,
    }


def _opinion(reward: float, config: RewardConfig, weight: float = 1.0) -> Opinion:
    """Correct is what earns more than half of the way from `wrong` to `correct`."""
    return None if math.isnan(reward) else reward > weight * (config.wrong + config.correct) / 2


def _of_outcome(verdict: Outcome) -> Opinion:
    assert isinstance(verdict, Verdict)
    return verdict.kind == "correct" if verdict.kind in ("correct", "wrong", "unparsed") else None


def _variance(share: float) -> float:
    """Of one answer that is right with this probability."""
    return share * (1 - share)


def _mean(steps: Sequence[Step], name: str) -> float:
    known = [step[name] for step in steps if not math.isnan(step[name])]
    return statistics.fmean(known) if known else math.nan


def _share(steps: Sequence[Step], name: str, weight: str) -> float:
    """Over all responses of the steps; nothing is known from a few."""
    known = [
        (step[name] * step[weight], step[weight]) for step in steps if not math.isnan(step[name])
    ]
    total = sum(count for _, count in known)
    return sum(part for part, _ in known) / total if total >= FEWEST else math.nan


def _examples(
    prompts: Sequence[Prompt], texts: Sequence[str], places: Sequence[int]
) -> list[tuple[str, str, str]]:
    different = list({texts[i]: i for i in reversed(places)}.values())[::-1]
    return [(prompts[i].id, prompts[i].text, texts[i]) for i in different[:EXAMPLES]]


def _ends(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
