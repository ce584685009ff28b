"""Evaluation by hand: a sampler that answers by a known pattern, metrics counted on paper; split over processes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from equipoise.evaluate import Judged, evaluate, line
from equipoise.rollout import Rollouts
from equipoise.tasks import Prompt
from equipoise.verifiers import Verdict

# Three prompts, four samples each: the answers, and whether they are right (the reference is "7").
ANSWERS = {"a": "7777", "b": "7535", "c": "5560"}  # 0 is no answer
GREEDY = {"a": "7", "b": "5", "c": "7"}
LENGTHS = {"7": 2, "5": 3, "3": 6, "6": 5, "0": 8}


class Sampler:
    """Answers prompt k with the digits of its pattern, each repeated to its length."""

    def __init__(self):
        self.asked = []

    def sample(self, prompts, n, params, *, keys=None, step=0):
        self.asked.append((list(keys), n, params.temperature, params.max_tokens, params.stop, step))
        texts = [(GREEDY if params.temperature == 0 else ANSWERS)[key][i] for key in keys for i in range(n)]
        lengths = torch.tensor([LENGTHS[t] for t in texts])
        tokens = torch.tensor([int(t) for t in texts]).repeat_interleave(lengths)
        rows = torch.arange(len(prompts)).repeat_interleave(n)
        zeros = torch.zeros(len(tokens))
        return Rollouts([list(p) for p in prompts], tokens, zeros, lengths, rows, ["stop"] * len(texts))


class Tokenizer:
    def decode(self, row, skip_special_tokens):
        return "".join(map(str, row))


class Task:
    name, max_tokens, stop = "digits", 9, ()

    def grade(self, prompt, response):
        digit = response[0]
        if digit == "0":
            return Verdict("unparsed")
        return Verdict("correct" if digit == prompt.answer else "wrong", answer=digit)


PROMPTS = [Prompt("a", "a", "7", level="1"), Prompt("b", "b", "7", level="2"), Prompt("c", "c", "7", level="2")]


def measure(prompts=PROMPTS, greedy=True, samples=4, **split):
    sampler = Sampler()
    result = evaluate(
        SimpleNamespace(tokenizer=Tokenizer()), sampler, Task(), prompts, [[1]] * len(prompts), samples=samples,
        temperature=0.7, greedy=greedy, max_tokens=9, stop=(";",), **split,
    )  # fmt: skip
    return result.metrics, sampler


def test_the_metrics_by_hand():
    result, sampler = measure()
    assert result["acc@4"] == pytest.approx((4 + 1 + 0) / 12)
    assert result["best@4"] == pytest.approx(2 / 3)
    assert result["pass@2"] == pytest.approx((1 + (1 - 3 / 6) + 0) / 3)
    # a: 7 wins; b: 5 has two votes of four and is wrong; c: 5 wins over 6, and no answer has no vote
    assert result["maj@4"] == pytest.approx(1 / 3)
    assert result["greedy"] == pytest.approx(2 / 3)
    right, wrong = [2] * 5, [3, 6, 3, 3, 3, 5, 8]
    mean = sum(right + wrong) / 12
    assert result["length"] == pytest.approx(mean)
    assert result["length_gap"] == pytest.approx((sum(wrong) / 7 - 2) / mean)
    assert result["by_level"] == {
        "1": {"acc@4": 1.0, "greedy": 1.0},
        "2": {"acc@4": pytest.approx(1 / 8), "greedy": 0.5},
    }
    for name in ("acc@4", "best@4", "pass@2", "maj@4", "greedy"):
        low, high = result["interval"][name]
        assert 0 <= low <= result[name] <= high <= 1
    assert sampler.asked == [
        (["a", "b", "c"], 4, 0.7, 9, (";",), 0),
        (["a", "b", "c"], 1, 0.0, 9, (";",), 0),
    ]


def test_every_response_can_be_read():
    evaluation = evaluate(
        SimpleNamespace(tokenizer=Tokenizer()), Sampler(), Task(), PROMPTS, [[1]] * 3, samples=4, temperature=0.7,
        greedy=True, max_tokens=9,
    )  # fmt: skip
    rows = evaluation.rows()
    assert [(row["prompt_id"], row["sample"]) for row in rows[:5]] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("a", -1),
    ]
    right = [row["verdict"] == "correct" for row in rows if row["sample"] >= 0]
    assert sum(right) / len(right) == pytest.approx(evaluation.metrics["acc@4"])
    last = rows[-1]
    assert (last["prompt_id"], last["response"], last["length"], last["reference"]) == ("c", "77", 2, "7")


def test_a_tie_in_the_vote_goes_to_the_answer_given_first():
    result, _ = measure([Prompt("b", "b", "7")], samples=3)  # 7, 5, 3
    assert result["maj@3"] == 1
    assert result["by_level"] == {}


def test_without_greedy_there_is_no_greedy():
    result, sampler = measure(greedy=False)
    assert "greedy" not in result
    assert result["by_level"]["1"] == {"acc@4": 1.0}
    assert len(sampler.asked) == 1


def test_one_sample():
    result, _ = measure(samples=1)
    assert result["acc@1"] == result["best@1"] == result["maj@1"] == pytest.approx(2 / 3)
    assert not any(name.startswith("pass@") for name in result)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_processes_measures_the_same(count):
    whole, _ = measure()
    slots, everyone = [None] * count, threading.Barrier(count, timeout=600)

    def process(me):
        def share(items):
            return items[len(items) * me // count : len(items) * (me + 1) // count]

        def gather(value):
            slots[me] = value
            everyone.wait()
            values = list(slots)
            everyone.wait()
            return values

        return measure(share=share, gather=gather)[0]

    with ThreadPoolExecutor(count) as threads:
        assert list(threads.map(process, range(count))) == [whole] * count


def test_nothing_to_evaluate_on_is_refused():
    with pytest.raises(ValueError, match="digits has no held-out prompts"):
        measure([])


def test_a_line_for_the_terminal():
    result, _ = measure()
    said = line(result)
    assert said.startswith("acc@4 0.417 [")
    assert "greedy 0.667 [" in said
    assert "pass@" not in said


class Marks:
    """A judge with numbers: the share of sevens, so that a response of any length is right to a degree."""

    name = "marks"

    def judge(self, prompts, responses):
        self.prompts = [prompt.id for prompt in prompts]
        worth = {"7": 0.8, "5": 0.25, "3": 0.5}
        return [Judged("scored", None, worth.get(text[0], 0.0), -1.0 if text[0] == "6" else 2.0) for text in responses]


def test_a_judge_of_numbers_gives_accuracies_between_0_and_1_and_rewards():
    judge = Marks()
    result, _ = measure(judge=judge)
    a, b, c = [0.8] * 4, [0.8, 0.25, 0.5, 0.25], [0.25, 0.25, 0.0, 0.0]
    assert result["acc@4"] == pytest.approx(sum(a + b + c) / 12)
    assert result["best@4"] == pytest.approx((0.8 + 0.8 + 0.25) / 3)
    pairs = [max(row[i], row[j]) for row in (a, b, c) for i in range(4) for j in range(i)]
    assert result["pass@2"] == pytest.approx(sum(pairs) / 18)
    assert result["greedy"] == pytest.approx((0.8 + 0.25 + 0.8) / 3)
    assert result["reward"] == pytest.approx((11 * 2 - 1) / 12)
    assert "maj@4" not in result  # a number has no answer to vote for
    assert result["judge"] == "marks"
    assert judge.prompts == ["a", "b", "c"]
    right, wrong = [2] * 5, [3, 6, 3, 3, 3, 5, 8]  # 0.8 is right, 0.5 is not
    assert result["length_gap"] == pytest.approx((sum(wrong) / 7 - 2) / (sum(right + wrong) / 12))
    assert line(result).endswith("  reward 1.750")


def test_the_tasks_verifier_judges_where_nobody_else_does_and_pays_nothing():
    result, _ = measure()
    assert result["judge"] == "task"
    assert "reward" not in result
    assert "reward" not in line(result)
