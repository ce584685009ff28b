"""A run begun by a program: objects instead of names, held against the same run begun by names."""

import asyncio
import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import equipoise as eq
from equipoise import policy as models
from equipoise.config import Config, ConfigError, load
from equipoise.tasks import TaskError
from equipoise.train import RunError, RunFolder
from equipoise.train.given import gather, read_table

from .reward_functions import ones
from .tiny import REWARDS, metrics, outcome

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "hint": a} for a in range(1, 6) for b in range(1, 9)]


def options(out, **more):
    tiny = {
        "train": {"out": str(out), "steps": 2, "threads": 1},
        "rollout": {"prompts": 4, "group_size": 4, "max_tokens": 12},
        "optim": {"lr": 0.01, "warmup": 2},
        "eval.every": 0,
        "model.device": "cpu",
        "log.terminal": False,
    }
    return tiny | {key.replace("__", "."): value for key, value in more.items()}


def the_same(a, b) -> bool:
    """Weights, optimizer and numbers; the rewards' names are in the keys of the metrics."""
    a, b = outcome(a), outcome(b)
    return all(a[key] == b[key] for key in ("weights", "optimizer", "metrics", "checkpoint"))


def test_a_function_given_as_an_object_trains_as_its_name_does(model, tmp_path):
    eq.Trainer(options(tmp_path / "name"), model=model, rewards=[f"{REWARDS}:ones"]).train()
    result = eq.Trainer(options(tmp_path / "object"), model=model, rewards=[ones]).train()
    assert the_same(tmp_path / "name", tmp_path / "object")
    assert (result.step, result.run_dir, result.stopped_by) == (2, tmp_path / "object", "")
    assert result.metrics["reward/mean"] == metrics(tmp_path / "object")[-1]["reward/mean"]


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("learning_rate", 'did you mean config={"optim.lr": …}?'),
        ("steps", 'did you mean config={"train.steps": …}?'),
        ("name", 'did you mean config={"model.name": …} or config={"task.name": …}?'),
        ("train_dataset", 'did you mean "dataset"?'),
        ("reward_funcs", "did you mean rewards?"),
        ("eval_dataset", 'did you mean config={"task.held_out": …}?'),
        ("peft_config", 'did you mean config={"model.lora_rank": …}?'),
        ("nonsense", "use one of"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_nearest(argument, hint):
    known = "(config, model, tokenizer, task, dataset, rewards, objective, callbacks, resume, from_step, weights)"
    with pytest.raises(TypeError) as refused:
        eq.Trainer(model="abacus", **{argument: 1})
    assert str(refused.value) == f'Trainer has no argument "{argument}"; {hint} {known}'


def test_rows_in_memory_train_as_the_same_rows_in_a_file(model, tmp_path):
    datasets = pytest.importorskip("datasets")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    ways = {"file": file, "list": ROWS, "hub": datasets.Dataset.from_list(ROWS)}
    for name, dataset in ways.items():
        eq.Trainer(options(tmp_path / name), model=model, dataset=dataset, rewards=ones).train()
    assert the_same(tmp_path / "file", tmp_path / "list")
    assert the_same(tmp_path / "file", tmp_path / "hub")


PROMPTS = [{"prompt": row["prompt"], "hint": row["hint"]} for row in ROWS]


def test_prompts_without_answers_train_where_own_functions_decide(model, tmp_path):
    eq.Trainer(options(tmp_path / "answers"), model=model, dataset=ROWS, rewards=ones).train()
    trainer = eq.Trainer(options(tmp_path / "prompts"), model=model, dataset=PROMPTS, rewards=ones)
    trainer.train()
    answers, prompts = outcome(tmp_path / "answers"), outcome(tmp_path / "prompts")
    assert (answers["weights"], answers["optimizer"]) == (prompts["weights"], prompts["optimizer"])
    assert 0 < trainer.evaluate()["reward"] < 1
    assert not (tmp_path / "prompts" / "troubles.jsonl").exists()


@pytest.mark.parametrize("rewards", [None, ["task", ones]])
def test_prompts_without_answers_are_refused_where_the_tasks_verdict_is_asked_for(model, tmp_path, rewards):
    with pytest.raises(
        TaskError, match=r'there is no "answer" .*; rows without one need reward.functions without task'
    ):
        eq.Trainer(options(tmp_path / "run"), model=model, dataset=PROMPTS, rewards=rewards)


def test_a_run_on_prompts_alone_is_evaluated_again_by_its_own_functions(model, tmp_path, equipoise):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    more = {"eval__every": 2, "eval__samples": 2, "eval__per_level": 8, "task__name": str(file)}
    own = options(tmp_path / "run", **more, reward__functions=[f"{REWARDS}:ones"])
    eq.Trainer(own, model=model).train()
    code, out, err = equipoise("eval", tmp_path / "run", "--json")
    assert (code, err) == (0, "")
    logged = json.loads((tmp_path / "run" / "eval.jsonl").read_text().splitlines()[-1])
    assert json.loads(out)["acc@2"] == logged["acc@2"]


def test_a_model_object_trains_as_its_folder_does(model, tmp_path):
    eq.Trainer(options(tmp_path / "name"), model=model, rewards=ones).train()
    eq.Trainer(options(tmp_path / "policy"), model=models.load(model), rewards=ones).train()
    theirs = AutoModelForCausalLM.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = eq.Trainer(options(tmp_path / "theirs"), model=theirs, tokenizer=tokenizer, rewards=ones)
    trainer.train()
    assert trainer.policy.model is theirs  # trained in place
    assert the_same(tmp_path / "name", tmp_path / "policy")
    assert the_same(tmp_path / "name", tmp_path / "theirs")


def test_an_objective_object_trains_as_its_choices_do(model, tmp_path):
    choices = {"aggregation": {"name": "power", "alpha": 0.5}, "difficulty": {"name": "hadw", "lam": 1.5}}
    section = {"preset": "dapo", **choices}
    eq.Trainer(options(tmp_path / "file", objective=section), model=model, rewards=ones).train()
    objective = eq.Objective.preset("dapo", **choices)
    eq.Trainer(options(tmp_path / "object"), model=model, rewards=ones, objective=objective).train()
    assert the_same(tmp_path / "file", tmp_path / "object")
    written = load(RunFolder(tmp_path / "object").config).build_objective()
    assert json.dumps(written.choices()) == json.dumps(objective.choices())  # TOML has lists for tuples


@pytest.mark.parametrize("name", sorted(eq.PRESETS))
def test_every_preset_survives_being_given_as_an_object(name):
    objective = eq.Objective.preset(name)
    config = gather({"train.teacher": "abacus"} if name == "distillation" else None, objective=objective).config
    assert config.build_objective().choices() == objective.choices()


def test_functions_of_every_form_are_called_here(model, tmp_path):
    seen = []

    def one(prompt, response, row):
        seen.append(("one", row["hint"]))
        return float(len(response) % 2)

    def group(prompts, completions, hint, **columns):
        seen.append(("group", *hint))
        return [float(c.count("1")) for c in completions]

    async def later(completions, **columns):
        await asyncio.sleep(0)
        seen.append(("async", len(completions)))
        return [0.5] * len(completions)

    def broken(prompt, response, row):
        raise ConnectionError("no server")

    rewards = [one, group, later, broken, "boxed"]
    settings = options(tmp_path / "run", train__steps=1, reward__weights=[1.0, 0.5, 1.0, 0.0, 0.0])
    result = eq.Trainer(settings, model=model, dataset=ROWS, rewards=rewards).train()
    kinds = [call[0] for call in seen]
    assert (kinds.count("one"), kinds.count("group"), kinds.count("async")) == (16, 4, 4)
    assert all(len(set(call[1:])) == 1 for call in seen if call[0] == "group")  # a prompt's rows are alike
    assert result.metrics["rewards/later/mean"] == 0.5
    assert result.metrics["rewards/broken/crashed"] == 1.0
    functions = load(RunFolder(tmp_path / "run").config).reward.functions
    assert functions == ("python:one", "python:group", "python:later", "python:broken", "boxed")


def test_it_resumes_bit_for_bit_and_only_as_it_began(model, tmp_path):
    arguments = {"model": models.load(model), "dataset": ROWS, "rewards": [ones], "objective": "dapo+balanced+hadw"}
    eq.Trainer(options(tmp_path / "whole", train__steps=4), **arguments).train()
    arguments["model"] = models.load(model)
    eq.Trainer(options(tmp_path / "run"), **arguments).train()
    longer = options(tmp_path / "run", train__steps=4)
    with pytest.raises(
        ConfigError, match=r"data: name python:dataset, rows 39, .* is not what the run began with, .*40"
    ):
        eq.Trainer(longer, **arguments | {"dataset": ROWS[:-1]}, resume=True)
    with pytest.raises(ConfigError, match=r'model.name = "python:.*given to the run by a Python program'):
        eq.Trainer(RunFolder(tmp_path / "run").config, resume=True)  # as the command line would
    with pytest.raises(RunError, match=r"reward.functions was \('python:ones',\), now \('python:lambda',\)"):
        eq.Trainer(longer, **arguments | {"rewards": lambda prompt, response, row: 0.0}, resume=True)
    eq.Trainer(longer, **arguments, resume=True).train()
    assert the_same(tmp_path / "whole", tmp_path / "run")
    given = json.loads(RunFolder(tmp_path / "run").given.read_text())
    assert given["data"]["rows"] == 40
    assert list(given["rewards"]) == ["python:ones"]


def test_a_changed_function_is_said_and_not_refused(model, tmp_path, capsys):
    def ones(prompt, response, row):
        return float("1" in response)

    loud = {"log__terminal": True}
    eq.Trainer(options(tmp_path / "run"), model=model, rewards=ones).train()

    def ones(prompt, response, row):
        return float("2" in response)

    eq.Trainer(options(tmp_path / "run", train__steps=3, **loud), model=model, rewards=ones, resume=True).train()
    said = capsys.readouterr().out
    assert "python:ones: its source has changed since the run began" in said


def test_evaluate_writes_nothing_and_repeats_the_last_evaluation(model, tmp_path):
    trainer = eq.Trainer(options(tmp_path / "run", eval={"every": 2, "samples": 2}), model=model, dataset=ROWS)
    before = trainer.evaluate()
    assert not RunFolder(tmp_path / "run").eval.exists()
    result = trainer.train().evaluation
    after = trainer.evaluate()
    assert set(before) == set(after)
    assert all(after[key] == result[key] for key in ("acc@2", "greedy", "length"))


def test_a_config_is_a_mapping_a_file_or_an_object_and_stays_the_callers(tmp_path):
    file = tmp_path / "some.toml"
    file.write_text("[train]\nsteps = 7\n")
    config = Config()
    config.train.steps = 7
    for given in ({"train.steps": 7}, {"train": {"steps": 7}}, file, str(file), config):
        found = gather(given, model="smollm", objective="dapo+balanced").config
        assert (found.train.steps, found.model.name, found.objective.preset) == (7, "smollm", "dapo+balanced")
    assert config.model.name == "abacus"
    assert gather({"reward.weights": 2.0}, rewards=lambda prompt, response, row: 1.0).config.reward.weights == (2.0,)
    assert read_table({"train.steps": 1, "train": {"seed": 2}})["train"] == {"steps": 1, "seed": 2}


def not_a_function(x):
    return 0.0


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({"config": {"train.stepz": 3}}, ConfigError, r'train.stepz is not an option; did you mean "steps"\?'),
        ({"config": {"trainn": {"steps": 3}}}, ConfigError, r'trainn is not a section; did you mean "train"\?'),
        ({"config": {"train": 3}}, ConfigError, "train = 3: must be a section of options"),
        ({"task": "arithmetic", "dataset": ROWS}, ConfigError, "task and dataset are both given"),
        ({"tokenizer": object()}, ConfigError, "tokenizer: goes with a model object"),
        ({"model": object()}, ConfigError, "model is a object: must be a name, a path, an equipoise Policy"),
        ({"dataset": []}, TaskError, "dataset has no rows"),
        ({"dataset": ["24+2="]}, TaskError, r"dataset\[0\] is '24\+2=': must be a dict"),
        ({"dataset": 3}, TaskError, "dataset is a int: must be a path, a list of dicts, or a datasets.Dataset"),
        ({"dataset": {"test": ROWS}}, TaskError, "dataset has the splits test and no train"),
        ({"rewards": [3]}, ConfigError, "rewards: 3 is not a function"),
        ({"objective": "dapo+balancd"}, ConfigError, '"balancd" is not known; did you mean "balanced"'),
    ],
)
def test_mistakes_are_sentences(arguments, kind, sentence):
    with pytest.raises(kind, match=sentence):
        gather(**arguments)


def test_a_function_that_cannot_be_called_is_refused_before_a_model_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match=r'"python:not_a_function" takes \(x\): must be f\(prompt, response, row\)'):
        eq.Trainer(options(tmp_path / "run"), model="no/such-model", rewards=not_a_function)
