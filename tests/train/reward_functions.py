"""Reward functions of the tests, named in configurations as tests.train.reward_functions:NAME."""

import time

from equipoise.verifiers import Verdict


def ones(prompt, response, row):
    """The share of the digit 1: every response can be a little better, so a random model learns."""
    return response.count("1") / max(len(response), 1)


def spread(prompt, response, row):
    """Something that differs between almost any two texts, whatever a model writes."""
    return sum(map(ord, response)) % 7 / 6


def twos(prompt, response, row):
    return response.count("2") / max(len(response), 1)


def same(prompt, response, row):
    return 0.5


def not_a_number(prompt, response, row):
    return float("nan")


def too_large(prompt, response, row):
    return -1e308


def nothing(prompt, response, row):
    return None


def text(prompt, response, row):
    return "1"


def broken(prompt, response, row):
    raise ConnectionError("the reward server is gone")


def fails_on_fours(prompt, response, row):
    if len(response) % 4 == 0:
        raise ConnectionError("the reward server is gone")
    return 0.0


def only_one_prompt(prompt, response, row):
    """Differs in the group of one level only."""
    return ones(prompt, response, row) if row["level"] == "2" else 0.0


def minus_ones(prompt, response, row):
    return -ones(prompt, response, row)


def sees_what_it_should(prompt, response, row):
    seen = {"id": "7", "answer": "2", "level": "2", "source": "here", "steps": [1, 2]}
    return (prompt, response, row) == ("1+1=", "3", seen)


def judge(prompt, response, row):
    return Verdict("correct")


def fails_on_odd_lengths(prompt, response, row):
    if len(response) % 2:
        raise ConnectionError("the reward server is gone")
    return ones(prompt, response, row)


def unavailable_on_odd_lengths(prompt, response, row):
    return Verdict("unavailable", "no sandbox") if len(response) % 2 else Verdict("wrong")


def never_in_time(prompt, response, row):
    time.sleep(60)


def takes_two(response, answer):
    return 0.0


def ones_of_a_group(prompts, completions, **columns):
    """TRL's form of `ones`."""
    return [ones(None, completion, None) for completion in completions]


async def twos_async(prompt, response, row):
    return twos(prompt, response, row)


def crashes_in_three_of_four(prompt, response, row):
    if row["level"] != "2":
        raise KeyError("level")
    return 0.0


def marked(prompt, response, row):
    """Pays for an answer mark in a short response, and not for the answer: it can be gamed."""
    return float("#" in response and len(response) < 12)


def strict_judge(prompt, response, row):
    return Verdict("correct" if response.endswith(f"#{row['answer']}") else "wrong")
