"""reasoning-gym: streams that are apart, mixtures by weight, and its own scorers behind a deadline."""

import datetime
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter, deque

import numpy as np
import pytest
from scipy import stats

from equipoise.tasks import Dataset, Gym, TaskError, open_task
from equipoise.tasks import gym as module
from equipoise.tasks.gym import final_answer, pack
from equipoise.tasks.scoring import unpack

from .rows_of import jsonl

reasoning_gym = pytest.importorskip("reasoning_gym")
needs_sandbox = pytest.mark.usefixtures("sandboxed")


@pytest.fixture(autouse=True)
def _few_held_out(monkeypatch):
    """Some tasks take 50 ms an item."""
    monkeypatch.setattr(module, "HELD_OUT", 8)


MIXTURE = "chain_sum*2+leg_counting*1.5+gcd"


def test_streams_of_neighbouring_seeds_are_not_one_stream_shifted():
    """In the package they are: item 1 under seed 0 is item 0 under seed 1."""
    theirs = [reasoning_gym.create_dataset("chain_sum", size=3, seed=seed) for seed in (0, 1)]
    assert theirs[0][1]["question"] == theirs[1][0]["question"]
    ours = [{Gym("chain_sum", seed=seed).prompt(i).text for i in range(100)} for seed in (0, 1)]
    assert len(ours[0] & ours[1]) < 5


def test_a_mixture_keeps_its_weights_and_names_its_levels():
    task = Gym(MIXTURE, seed=1)
    counts = Counter(task.prompt(i).level for i in range(900))
    expected = [400, 300, 200]
    assert stats.chisquare([counts[name] for name in ("chain_sum", "leg_counting", "gcd")], expected).pvalue > 1e-3
    held_out = task.evaluation(3)
    assert Counter(p.level for p in held_out) == {"chain_sum": 3, "leg_counting": 3, "gcd": 3}
    assert len({p.id for p in held_out}) == 9
    assert [task.prompt(i) for i in (7, 3)] == [Gym(MIXTURE, seed=1).prompt(i) for i in (7, 3)]
    assert Gym("chain_sum").prompt(0).level is None


def test_training_and_held_out_items_never_meet_even_where_there_are_few(monkeypatch):
    """Sums of two digits: nearly all of the hundred questions are held out, and training draws again and again."""
    monkeypatch.setattr(module, "HELD_OUT", 256)
    options = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}
    task = Gym("chain_sum", options=options)
    held_out = {p.text for p in task.evaluation()}
    trained = {task.prompt(i).text for i in range(40)}
    assert 50 < len(held_out) < 256
    assert trained
    assert not held_out & trained


def test_a_task_with_too_few_questions_to_hold_any_out_says_so(monkeypatch):
    task = Gym("chain_sum")
    monkeypatch.setattr(module, "_dataset", lambda *_: [{"question": "always the same", "answer": "1"}] * module.BLOCK)
    with pytest.raises(TaskError, match="gym:chain_sum: 100 items in a row are held out: it has too few different"):
        task.prompt(0)


@needs_sandbox
def test_options_reach_the_task():
    task = open_task("gym:chain_sum", 0, gym={"chain_sum": {"min_terms": 6, "max_terms": 6}})
    assert all(len(re.findall(r"\d+", task.prompt(i).text)) >= 6 for i in range(20))
    assert task.grade(task.prompt(0), f"<answer>{task.prompt(0).answer}</answer>").result().value == 1.0


@pytest.mark.parametrize(
    ("mixture", "options", "said"),
    [
        ("chain_sum*0", None, '"chain_sum*0" is not NAME or NAME*WEIGHT'),
        ("chain_sum*x", None, '"chain_sum*x" is not NAME'),
        ("chain_sum+chain_sum", None, "each name once"),
        ("chain_sum+chain_som", None, 'gym:chain_som is not a task of reasoning-gym; did you mean "chain_sum"?'),
        ("nothing_like_it", None, "gym:nothing_like_it is not a task of reasoning-gym; reasoning_gym.factory.DATASETS"),
        ("chain_sum", {"gcd": {}}, "options for gcd, which is not in it (chain_sum)"),
        ("chain_sum", {"chain_sum": {"terms": 3}}, "gym:chain_sum: "),
        ("chain_sum", {"chain_sum": {"min_terms": -1}}, "gym:chain_sum: min_terms must be positive"),
        ("knight_swap", None, "does not make the same question twice"),
        ("composite", None, "gym:composite: "),
    ],
)
def test_a_mixture_that_cannot_be_opened_is_one_sentence(mixture, options, said):
    with pytest.raises(TaskError) as error:
        Gym(mixture, options=options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_tasks_that_depend_on_the_order_of_sets_want_it_fixed(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(TaskError, match="set PYTHONHASHSEED=0"):
        Gym("ransom_note")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    Gym("ransom_note")


@pytest.mark.parametrize(
    ("response", "reference", "answer"),
    [
        ("so <answer> 4 </answer> or <answer>5</answer>.", "5", "5"),
        ("<answer>3", "3", "<answer>3"),
        ("</answer>7", "7", "</answer>7"),
        ("Answer: 42\nThat is it.", "42", "42"),
        ("Answer:\n1 2\n3 4\nDone.", "1 2\n3 4", "1 2\n3 4"),
        ("I think\n1 2\n3 4", "1 2\n3 4", "1 2\n3 4"),
        ("first\nlast", "x", "last"),
        ("<think>Answer: 1</think>2", "2", "2"),
        ('Answer: [{"a": 1},\n{"b": 2}]', "", '[{"a": 1},\n{"b": 2}]'),
        ("", "x", ""),
        ("Answer:", "x", ""),
    ],
)
def test_final_answers(response, reference, answer):
    assert final_answer(response, reference) == answer


def test_an_entry_travels_unchanged():
    value = {"a": (1, [2.5, (None, True)]), 3: {"b": "c", (4, 5): []}, "dict": {"tuple": 1}}
    assert unpack(json.loads(json.dumps(pack(value)))) == value


def test_dates_and_times_of_an_entry_travel_too():
    """A row of a Parquet file has them as they are; JSON has not."""
    moments = [datetime.datetime(2024, 2, 29, 1, 2, 3), datetime.date(2024, 2, 29), datetime.time(23, 59)]
    assert unpack(json.loads(json.dumps(pack({"at": moments})))) == {"at": moments}
    assert pack(np.int64(3)) == 3


@needs_sandbox
def test_partial_credit_is_a_value_and_scorers_that_trip_are_verdicts():
    task = Gym("chain_sum+arc_1d+prime_factorization", seed=2)
    prompts = {p.level: p for p in task.evaluation(1)}
    partial = task.grade(prompts["chain_sum"], f"Answer: about {prompts['chain_sum'].answer}").result()
    assert partial.kind == "wrong"
    assert 0 < partial.value < 1
    tripped = task.grade(prompts["prime_factorization"], "Answer: [[").result()
    assert (tripped.kind, tripped.value) == ("unparsed", 0.0)
    assert "ValueError" in tripped.reason
    nothing = task.grade(prompts["arc_1d"], "   ")
    assert (nothing.kind, nothing.value) == ("unparsed", 0.0)
    long = task.grade(prompts["arc_1d"], "Answer: " + "1 " * 20_000)
    assert long.kind == "limit"


@needs_sandbox
def test_a_scorer_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 1.0)
    task = Gym("countdown")
    asked = [task.grade(task.prompt(0), f"Answer: {x}") for x in ("9*" * 9000 + "9", "(" * 9000, task.prompt(0).answer)]
    kinds = [future.result().kind for future in asked]
    assert kinds[0] != "correct" != kinds[1]
    assert kinds[2] == "correct"
    integral = Gym("simple_integration")
    tower = integral.grade(integral.prompt(0), "Answer: 9999**9999**9999*x").result()
    assert tower.kind in ("timeout", "limit")


@needs_sandbox
def test_answers_with_several_lines_and_grids_score_one():
    """An entry's tuples come through: as plain JSON the right grid would score 0.05."""
    task = Gym("rearc+mini_sudoku+tower_of_hanoi")
    for prompt in task.evaluation(1):
        assert "\n" in prompt.answer
        assert task.grade(prompt, f"Answer:\n{prompt.answer}").result().value == 1.0
        assert task.grade(prompt, f"Let me see.\n{prompt.answer}").result().value == 1.0


@needs_sandbox
def test_entries_of_a_file_are_scored_by_their_task(tmp_path):
    made = [reasoning_gym.create_dataset(name, size=2, seed=4)[0] for name in ("rearc", "gcd", "graph_color")]
    task = Dataset(jsonl(tmp_path / "entries.jsonl", made))
    rearc, gcd, color = sorted(task.train, key=lambda p: ("rearc", "gcd", "graph_color").index(p.level))
    assert task.grade(rearc, f"Answer:\n{made[0]['answer']}").result().value == 1.0
    assert task.grade(gcd, f"Answer: {gcd.answer}").result().kind == "correct"
    assert task.grade(gcd, "Answer: 0").result().kind == "wrong"
    solved = json.dumps(made[2]["metadata"]["possible_answer"])
    assert task.grade(color, solved).result().kind == "correct"


def test_entries_of_a_file_without_the_package_name_the_extra(tmp_path, monkeypatch):
    row = {"question": "6*7?", "answer": "42", "metadata": {"source_dataset": "products"}}
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(TaskError, match=r"entries\.jsonl needs reasoning-gym: pip install 'equipoise\[gym\]'"):
        Dataset(jsonl(tmp_path / "entries.jsonl", [row]))


def box_plan(state):
    """Carry every box along rows, then columns, to the target of its colour."""
    place = {item: tuple(map(float, key.split("_"))) for key, items in state.items() for item in items}
    plan = []
    for box, (x, y) in place.items():
        target = box.replace("box", "target")
        if not box.startswith("box") or target not in place:
            continue
        while (x, y) != place[target]:
            tx, ty = place[target]
            step = (x + (tx > x) - (tx < x), y) if tx != x else (x, y + (ty > y) - (ty < y))
            plan.append({f"Agent[{x}, {y}]": f"move({box}, square[{step[0]}, {step[1]}])"})
            x, y = step
        plan.append({f"Agent[{x}, {y}]": f"move({box}, {target})"})
    return json.dumps(plan)


def slide(question):
    """Breadth-first search on the board as it is printed."""
    rows = [line for line in question.split("Board:\n")[1].splitlines() if line]
    cars = {}
    for r, line in enumerate(rows):
        for c, letter in enumerate(line):
            if letter not in ".x":
                cars.setdefault(letter, []).append((r, c))
    walls = {(r, c) for r, line in enumerate(rows) for c, letter in enumerate(line) if letter == "x"}
    start = tuple(sorted((name, tuple(cells)) for name, cells in cars.items()))
    queue, seen = deque([(start, "")]), {start}
    while queue:
        state, moves = queue.popleft()
        if any(name == "A" and (2, 5) in cells for name, cells in state):
            return moves.strip()
        taken = walls | {cell for _, cells in state for cell in cells}
        for name, cells in state:
            sideways = cells[0][0] == cells[1][0]
            for step in (1, -1):
                moved = tuple((r, c + step) if sideways else (r + step, c) for r, c in cells)
                if all(0 <= r < 6 and 0 <= c < 6 and ((r, c) not in taken or (r, c) in cells) for r, c in moved):
                    after = tuple((n, moved if n == name else x) for n, x in state)
                    if after not in seen:
                        seen.add(after)
                        queue.append((after, f"{moves} {name}{step:+d}"))
    raise AssertionError("no way out")


SOLVED = {
    "graph_color": lambda entry: json.dumps(entry["metadata"]["possible_answer"]),
    "rubiks_cube": lambda entry: entry["metadata"]["example_correct_answer"],
    "propositional_logic": lambda entry: entry["metadata"]["example_answer"],
    "boxnet": lambda entry: box_plan(entry["metadata"]["initial_state"]),
    "rush_hour": lambda entry: slide(entry["question"]),
}


@needs_sandbox
@pytest.mark.parametrize("name", SOLVED)
def test_tasks_without_a_reference_accept_a_solution(name):
    task = Gym(name, seed=3, options={"rush_hour": {"max_moves": 8}} if name == "rush_hour" else None)
    values = []
    for i in range(4):
        prompt = task.prompt(i)
        assert prompt.answer == ""
        values.append(task.grade(prompt, f"Answer: {SOLVED[name](prompt.meta['entry'])}").result().value)
    assert values.count(1.0) >= 3


@needs_sandbox
@pytest.mark.parametrize(
    ("name", "fooling"),
    [
        ("complex_arithmetic", ["nan", "NaN + nani"]),
        ("coin_flip", ["0", "0."]),
        ("game_of_life_halting", ["x", "0"]),
    ],
)
def test_scorers_that_a_constant_answer_fools_are_not_fooled(name, fooling):
    task = Gym(name)
    for prompt in task.evaluation(6):
        for answer in fooling:
            theirs = float(module._dataset(name, "{}", 0).score_answer(answer, prompt.meta["entry"]))
            ours = task.grade(prompt, f"Answer: {answer}").result()
            assert ours.value < 1.0
            assert ours.value == (0.0 if theirs == 1.0 else theirs)
        assert task.grade(prompt, f"Answer: {prompt.answer}").result().value == 1.0
    entry = {"question": "", "answer": "True", "metadata": {"source_dataset": "game_of_life_halting"}}
    assert module.submit(entry, "Answer: False").result().value == 0.0


SLOW = {"composite", "futoshiki", "figlet_font", "zebra_puzzles", *module.UNREPEATABLE}
REPEAT = """
import hashlib, json, sys
from equipoise.tasks import gym
found = {}
for name in sys.argv[2:]:
    places = [(640 * k, j) for k in range(4) for j in (0, 5, 33, 63)]
    made = [gym.item(gym._dataset(name, "{}", seed), seed, j) for seed, j in places]
    found[name] = hashlib.sha256(repr([(e["question"], e["answer"]) for e in made]).encode()).hexdigest()
json.dump(found, open(sys.argv[1], "w"))
"""


def test_making_an_item_disturbs_no_other_draw():
    task = Gym("list_functions")
    random.seed(5)
    first = random.random()
    random.seed(5)
    task.prompt(0)
    assert random.random() == first


@needs_sandbox
@pytest.mark.slow
def test_every_task_repeats_in_another_process_and_scores_its_gold_one(tmp_path):
    """What the module says about the package's tasks, no more and no less."""
    names = sorted(set(reasoning_gym.factory.DATASETS) - SLOW)

    def questions(hash_seed):
        environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed}
        out = tmp_path / hash_seed
        subprocess.run([sys.executable, "-c", REPEAT, str(out), *names], check=True, env=environment)
        return json.loads(out.read_text())

    first, second = questions("1"), questions("2")
    assert {name for name in names if first[name] != second[name]} == set(module.HASHED)
    scores = {}
    for name in names:
        made = [module._dataset(name, "{}", 640 * k)[7 * k] for k in range(3)]
        scores[name] = [module.submit(entry, f"Answer: {entry['answer']}") for entry in made if entry["answer"]]
    wrong = {name for name, asked in scores.items() if any(future.result().value != 1.0 for future in asked)}
    assert not wrong
    assert {name for name, asked in scores.items() if not asked} == set(SOLVED)


@needs_sandbox
@pytest.mark.slow
def test_no_scorer_gives_a_full_score_to_a_constant_or_to_noise():
    noise = ["9" * 5000, "((" * 3000, "__import__('os')._exit(0)", "\x00", "[" * 2000, '{"a":' * 500, "1e400"]
    constants = ["nan", "inf", "0", "x", "[]", "None", "True"]
    asked = []
    for name in sorted(set(reasoning_gym.factory.DATASETS) - SLOW):
        made = [module._dataset(name, "{}", 0)[k] for k in range(3)]
        asked += [(name, t, [(e["answer"], module.submit(e, f"Answer: {t}")) for e in made]) for t in noise + constants]
    for name, text, outcomes in asked:
        verdicts = [a if not hasattr(a, "result") else a.result() for _, a in outcomes]
        assert {v.kind for v in verdicts} <= {"correct", "wrong", "crashed", "unparsed", "limit", "timeout"}
        unlike = [v for (gold, _), v in zip(outcomes, verdicts, strict=True) if str(gold) not in (text, f"{text}.0")]
        assert not [v for v in unlike if v.kind == "correct"], (name, text[:20])
