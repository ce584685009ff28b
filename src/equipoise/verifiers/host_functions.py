"""Our verifiers as reward functions of other trainers, which have no deadline or isolation.

A verdict is worth 1 where it is `correct` (or its partial credit), None where nothing is known
about the response (a reference that means nothing, no sandbox to run in), and 0 otherwise: a
verifier that timed out on what a model wrote must not be a way to escape a wrong answer. Not here:
the shaping of rewards (length, tags), and reward models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equipoise.verifiers.grade import grade_many
from equipoise.verifiers.verdict import KINDS, SCORES, Verdict

Grade = Callable[[str, Any], Verdict]
Completion = str | Sequence[Mapping[str, Any]]


def text_of(completion: Completion) -> str:
    """What the model said last: the completion, or its last assistant message's content."""
    if isinstance(completion, str):
        return completion
    said = [m.get("content") for m in completion if m.get("role", "assistant") == "assistant"]
    content = said[-1] if said else ""
    if isinstance(content, list):  # blocks, as multimodal chat templates have them
        return "".join(block.get("text", "") for block in content)
    return content or ""


def as_trl(
    verifier: str | Grade,
    column: str = "answer",
    *,
    budget: float | None = None,
    rules: str = "strict",
    answer_in: str = "auto",
) -> Callable[..., list[float | None]]:
    """A reward function for TRL: "math", "code", or any grade(response, reference) -> Verdict.

    >>> GRPOTrainer(reward_funcs=[as_trl("math", column="solution")], ...)

    column   the dataset's column that holds the reference: an answer, or for "code" tests as grade_code reads them
    budget   seconds for the verdicts of one batch of "math" or "code", after which the rest are `timeout`
    rules, answer_in   those of grade_math, for "math"; a column `form` of the data is its form

    "math" and "code" are graded in worker processes with a deadline each (code in the sandbox); a
    function of your own runs here. The shares of verdicts that are no score are logged as
    NAME/timeout and so on, and every response's verdict stands in TRL's table of completions under
    NAME/verdict.
    """
    if isinstance(verifier, str) and verifier not in ("math", "code"):
        raise ValueError(
            f'verifier = "{verifier}" is not known; use "math", "code", or a grade(response, reference)'
        )
    name = verifier if isinstance(verifier, str) else verifier.__name__

    def reward(
        completions: Sequence[Completion],
        *,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        if column not in columns:
            known = ", ".join(k for k, v in columns.items() if isinstance(v, list))
            raise ValueError(
                f'the data has no column "{column}" for the verifier {name}; it has {known}'
            )
        texts = [text_of(completion) for completion in completions]
        if verifier == "math":
            options = {"rules": rules, "answer_in": answer_in}
            asked = [prompt_text(prompt) for prompt in columns.get("prompts") or [""] * len(texts)]
            verdicts = _math(texts, columns[column], asked, columns.get("form"), budget, options)
        else:
            verdicts = _verdicts(verifier, texts, columns[column], budget)
        kinds: list[str] = [v.kind for v in verdicts]
        if log_extra is not None:
            log_extra(f"{name}/verdict", kinds)
        if log_metric is not None:
            # every kind, every time: TRL averages over the processes that reported one
            for kind in KINDS:
                if kind not in SCORES:
                    log_metric(f"{name}/{kind}", kinds.count(kind) / max(len(kinds), 1))
        return [v.accuracy for v in verdicts]

    reward.__name__ = name
    return reward


def _verdicts(
    verifier: str | Grade, texts: list[str], references: list[Any], budget: float | None
) -> list[Verdict]:
    if not isinstance(verifier, str):
        return [
            verifier(text, reference) for text, reference in zip(texts, references, strict=True)
        ]
    return grade_many("code", texts, [_tests(r) for r in references], budget=budget)


def _math(
    texts: list[str],
    references: Sequence[Any],
    prompts: Sequence[str],
    forms: Sequence[str | None] | None,
    budget: float | None,
    options: Mapping[str, str],
) -> list[Verdict]:
    golds = ["" if reference is None else str(reference) for reference in references]
    asked = None if forms is None else [form or "any" for form in forms]
    return grade_many("math", texts, golds, prompts=prompts, forms=asked, budget=budget, **options)


def prompt_text(prompt: Completion) -> str:
    """What the model was asked: the prompt itself, or the contents of its messages."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(text_of([{**message, "role": "assistant"}]) for message in prompt)


def _tests(reference: Any) -> Any:
    """A column of structs has every row's keys: None where this row has none."""
    if isinstance(reference, Mapping):
        return {k: v for k, v in reference.items() if v is not None}
    return reference


def verl_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    kind: str = "math",
    rules: str = "strict",
    answer_in: str = "auto",
) -> dict[str, Any]:
    """verl's `custom_reward_function`, called for one response at a time in verl's threads.

    reward.custom_reward_function.path=pkg://equipoise.verifiers.host_functions
    reward.custom_reward_function.name=verl_score

    kind   "math" or "code" (`+reward.custom_reward_function.reward_kwargs.kind=code`); tests may be a JSON string
    rules, answer_in   those of grade_math; `extra_info` gives the prompt (`prompt` or `question`) and `form`, where the
                       data has them there. verl does not say what the model was asked: without it,
                       "auto" reads any explicit mark, and a copy of the prompt cannot be told

    verl has no reward for a response that nothing is known about:
    it gets 0, and `ungraded` says so.
    """
    if kind not in ("math", "code"):
        raise ValueError(f'kind = "{kind}" is not known; use "math" or "code"')
    if kind == "code" and isinstance(ground_truth, str):
        try:
            ground_truth = json.loads(ground_truth)
        except ValueError:
            ground_truth = {}  # no tests: the verdict says that the reference is at fault
    if kind == "code":
        (verdict,) = _verdicts(kind, [solution_str], [ground_truth], None)
    else:
        about = extra_info if isinstance(extra_info, Mapping) else {}
        asked = [prompt_text(about.get("prompt") or about.get("question") or "")]
        options = {"rules": rules, "answer_in": answer_in}
        (verdict,) = _math(
            [solution_str], [ground_truth], asked, [about.get("form")], None, options
        )
    reward = verdict.accuracy
    return {
        "score": reward or 0.0,
        "acc": float(verdict.kind == "correct"),
        "ungraded": float(reward is None),
        "pred": verdict.answer or "",
        "verdict": verdict.kind,
    }
