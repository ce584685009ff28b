"""The arithmetic task: a stateless stream, a held-out set that training never shows, a verifier hard to game."""

import random
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.tasks import Arithmetic, Task, TaskError, open_task
from equipoise.tasks.arithmetic import LEVELS, grade, trace

TASK: Task = Arithmetic(seed=3)


def numbers_of(prompt):
    return [int(number) for number in prompt.text.removesuffix("=").split("+")]


def test_the_stream_depends_on_seed_and_index_alone():
    forwards = [Arithmetic(seed=3).prompt(i) for i in range(50)]
    assert [TASK.prompt(i) for i in reversed(range(50))] == forwards[::-1]
    assert [Arithmetic(seed=4).prompt(i) for i in range(50)] != forwards
    with pytest.raises(ValueError, match="starts at 0"):
        TASK.prompt(-1)


def test_so_many_chains_come_again_in_every_epoch_in_another_order():
    few = open_task("arithmetic:40", seed=3)
    epochs = [[few.prompt(i).id for i in range(start, start + 40)] for start in (0, 40, 80)]
    assert all(sorted(epoch) == sorted(TASK.prompt(i).id for i in range(40)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert few.evaluation() == TASK.evaluation()
    with pytest.raises(ValueError, match="starts at 0"):
        few.prompt(-1)


@pytest.mark.parametrize("name", ["arithmetic:", "arithmetic:0", "arithmetic:many", "arithmetic:-3"])
def test_a_number_of_chains_is_at_least_one(name):
    with pytest.raises(TaskError, match="at least 1"):
        open_task(name, seed=3)


def test_prompts_say_what_they_ask():
    seen = set()
    for i in range(400):
        prompt = TASK.prompt(i)
        assert re.fullmatch(r"[1-9][0-9](\+[1-9])+=", prompt.text)
        assert prompt.answer == str(eval(prompt.text[:-1]))
        assert prompt.level == str(len(numbers_of(prompt)))
        seen.add(prompt.level)
    assert seen == set(LEVELS)


def test_no_training_prompt_is_a_reordered_held_out_one():
    held_out = {tuple(sorted(numbers_of(prompt))) for prompt in TASK.evaluation(90)}
    training = {tuple(sorted(numbers_of(Arithmetic(seed).prompt(i)))) for seed in range(3) for i in range(4000)}
    assert not held_out & training


def test_the_held_out_set_is_fixed_and_grows_by_appending():
    full = TASK.evaluation()
    assert full == Arithmetic(seed=99).evaluation()
    assert len({prompt.id for prompt in full}) == len(full)
    for level in LEVELS:
        of_level = [prompt for prompt in full if prompt.level == level]
        assert [prompt for prompt in TASK.evaluation(5) if prompt.level == level] == of_level[:5]
    with pytest.raises(ValueError, match="per_level=0"):
        TASK.evaluation(0)
    with pytest.raises(ValueError, match="per_level=5000"):
        TASK.evaluation(5000)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        ("+8=55+5=60#60", "correct"),
        ("#60", "correct"),
        ("+8=50+5=99#60", "correct"),
        ("+8=55+5=60#60 \n", "correct"),
        ("#60#60", "correct"),
        ("+8=55+5=61#61", "wrong"),
        ("#61#60", "wrong"),
        ("#60#61", "wrong"),
        ("#59#60#61", "wrong"),
        ("#6#60", "wrong"),
        ("#060", "wrong"),
        ("#600", "wrong"),
        ("#6", "wrong"),
        ("#" + "6" * 10_000, "wrong"),
        ("", "unparsed"),
        ("60", "unparsed"),
        ("+8=55+5=60", "unparsed"),
        ("#", "unparsed"),
        ("#60#", "unparsed"),
        ("##60", "unparsed"),
        ("#-60", "unparsed"),
        ("#+60", "unparsed"),
        ("#60.0", "unparsed"),
        ("#60 61", "unparsed"),
        ("#60+1", "unparsed"),
        ("#60;", "unparsed"),
        ("#6_0", "unparsed"),
        ("#٦٠", "unparsed"),
        ("#６０", "unparsed"),
        ("#6e1", "unparsed"),
        ("#0x3c", "unparsed"),
        ("＃60", "unparsed"),
    ],
)
def test_the_verifier_reads_one_final_answer(response, kind):
    assert grade(response, "60").kind == kind


@given(st.text(alphabet="0123456789+=~# \n", max_size=30), st.integers(10, 150))
def test_correct_means_every_mark_gives_the_answer_and_nothing_follows(response, answer):
    marks = [part.strip() for part in response.split("#")[1:]]
    says_so = bool(marks) and marks[-1] == str(answer)
    hedges = any(re.match("[0-9]*", part).group() != str(answer) for part in marks)
    assert (grade(response, str(answer)).kind == "correct") == (says_so and not hedges)


@given(st.text(max_size=40))
def test_listing_all_answers_never_pays(rest):
    assert grade("".join(f"#{n}" for n in range(200)) + rest, "60").kind != "correct"


@given(st.integers(0, 10_000))
def test_a_trace_without_slips_is_right(i):
    prompt = TASK.prompt(i)
    written = trace(numbers_of(prompt), random.Random(i), slip=0.0, notice=0.5, again=0.5, twice=0.0)
    assert TASK.grade(prompt, written).kind == "correct"
    assert "~" not in written


def test_slips_make_wrong_answers_longer():
    lengths = {"correct": [], "wrong": []}
    for i in range(4000):
        prompt = TASK.prompt(i)
        if prompt.level == "4":
            written = trace(numbers_of(prompt), random.Random(i), slip=0.1, notice=0.7, again=0.7, twice=0.06)
            lengths[TASK.grade(prompt, written).kind].append(len(written))
    right, wrong = map(statistics.mean, (lengths["correct"], lengths["wrong"]))
    assert len(lengths["wrong"]) > 100
    assert (wrong - right) / right > 0.1


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic:8", "gym:chain_sum"])
@pytest.mark.parametrize(
    "option", [{"held_out": "h.jsonl"}, {"avoid": ["a.jsonl"]}, {"suffix": "!"}, {"columns": {"prompt": "x"}}]
)
def test_options_of_rows_are_refused_where_there_are_none(name, option):
    with pytest.raises(TaskError, match=rf"task\.{next(iter(option))} = .* has no effect with task\.name"):
        open_task(name, 0, **option)
