"""Bad input and bad luck: one sentence on stderr, an exit code that is not 0, nothing lost and nothing half-written."""

import errno
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from equipoise.train import ConfigError, RunError, RunFolder, Trainer, checkpoint, journal, loop, read_lines, stopping

from .tiny import REWARDS, make_model, metrics, outcome, overrides, settings


def sentence(ended) -> str:
    """What a failed command said: one line, and no traceback."""
    assert ended.code == 1, ended
    assert ended.stderr.startswith("equipoise: "), ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def no_run_in(folder) -> bool:
    """Whether a start that failed has taken its folder away again."""
    return not folder.exists()


def dataset(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ROWS = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(10, 20) for b in range(1, 9)]


def test_a_model_that_is_not_there(train, tmp_path):
    assert "is not there; give a folder in Hugging Face format" in sentence(train(model__name=str(tmp_path / "none")))
    (tmp_path / "trained").mkdir()
    mistyped = sentence(train(model__name=str(tmp_path / "traned")))
    assert mistyped.endswith(f'traned is not there; did you mean "{tmp_path / "trained"}"?\n')
    assert no_run_in(tmp_path / "run")
    assert train(train__steps=1).code == 0


@pytest.mark.parametrize("damage", ["noise", "torn", "empty"])
def test_a_model_that_cannot_be_read(train, model, tmp_path, damage):
    corrupt = tmp_path / "corrupt"
    shutil.copytree(model, corrupt)
    file = corrupt / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes({"noise": b"\xff" * len(whole), "torn": whole[: len(whole) // 2], "empty": b""}[damage])
    assert f"cannot load {corrupt}" in sentence(train(model__name=str(corrupt)))
    assert no_run_in(tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no rows"),
        ("\n \n", "has no rows"),
        ('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2=", \n', "line 2: not valid JSON"),
        ('{"text": "1+1="}\n', 'line 1: there is no "prompt"'),
        ("[1, 2]\n", 'line 1: there is no "prompt"'),
        ('{"prompt": null, "answer": 2}\n', 'line 1: "prompt"'),
        ('{"prompt": "1+1=", "answer": [2]}\n', 'line 1: "answer"'),
        (None, "there is no such file"),
    ],
)
def test_a_dataset_that_cannot_be_used(train, tmp_path, content, said):
    file = tmp_path / "rows.jsonl"
    if content is not None:
        file.write_text(content)
    told = sentence(train(task__name=str(file)))
    assert str(file) in told
    assert said in told
    assert no_run_in(tmp_path / "run")


def test_a_prompt_longer_than_the_context(train, tmp_path):
    file = dataset(tmp_path / "rows.jsonl", [{"id": "long", "prompt": "1+" * 40 + "1=", "answer": 41}])
    told = sentence(train(task__name=file))
    assert "prompt long: a prompt of 82 tokens leaves no room" in told
    assert "context of 64" in told


def test_one_long_prompt_among_many_is_found_before_the_first_step_and_can_be_left_out(train, tmp_path):
    long = [{"id": f"long {k}", "prompt": "1+" * 40 + f"{k}=", "answer": 40 + k} for k in range(1, 10)]
    file = dataset(tmp_path / "rows.jsonl", [*ROWS, *long])  # some are to train on, some held out
    told = sentence(train(task__name=file, train__steps=1))
    assert ": a prompt of 82 tokens leaves no room" in told
    assert "task.max_prompt_tokens leaves out longer ones" in told
    assert no_run_in(tmp_path / "run")
    ended = train(task__name=file, train__steps=1, task__max_prompt_tokens=63, log__terminal=True)
    assert ended.code == 0, ended.stderr
    assert "a prompt of 82 tokens: must be at most 63" in ended.stdout


@pytest.mark.parametrize(
    ("function", "objective", "said"),
    [
        ("minus_ones", {"preset": "maxrl"}, "maxrl divides by their mean, so they must be ≥ 0"),
        ("spread", {"advantage": "pass_at_k"}, "those of pass_at_k must be 0 or 1"),
        ("spread", {"difficulty": "debias"}, "difficulty = debias needs accuracies"),
    ],
)
def test_rewards_that_the_objective_cannot_take(train, function, objective, said):
    options = {f"objective__{key}": value for key, value in objective.items()}
    told = sentence(train(reward__functions=[f"{REWARDS}:{function}"], log__terminal=False, eval__every=0, **options))
    assert told.startswith("equipoise: step 1: ")
    assert said in told


def test_a_prompt_without_tokens(train, tmp_path):
    file = dataset(tmp_path / "rows.jsonl", [{"id": "nothing", "prompt": "", "answer": 1}])
    assert "prompt nothing: " in sentence(train(task__name=file))


def test_more_held_out_prompts_than_there_are(train, tmp_path):
    assert "eval.per_level = 1000" in sentence(train(eval__per_level=1000))
    assert no_run_in(tmp_path / "run")


def test_steps_that_teach_nothing_are_said_long_before_the_run_stops(train, tmp_path):
    ended = train(reward__functions=[f"{REWARDS}:same"], train__steps=6, log__terminal=True)
    assert ended.code == 0
    assert ended.stdout.count("differed in reward for 5 steps: there is nothing to learn from; look at") == 1
    assert "learning rate, " not in ended.stdout  # no update came before


def test_responses_without_an_answer_that_can_be_read_are_named_as_the_cause(train, tmp_path):
    """abacus ends with #30, which the math verifier does not read: the prompts ask for no mark."""
    file = dataset(tmp_path / "rows.jsonl", [{"prompt": f"{a}+1=", "answer": a + 1} for a in range(40)])
    ended = train(
        model__name="abacus",
        task__name=file,
        reward__functions=["task"],
        train__steps=5,
        eval__every=0,
        log__terminal=True,
    )
    assert ended.code == 0
    assert "no answer could be read in 100% of the last step's responses" in ended.stdout
    assert "task.suffix" in ended.stdout


@pytest.mark.parametrize(("clip", "told"), [(1e-3, 1), (1e3, 0), (0.0, 0)])
def test_a_clip_norm_that_decides_every_step_is_said_once(train, tmp_path, clip, told):
    ended = train(
        optim__clip_norm=clip, objective__aggregation="constant", train__steps=12, eval__every=0, log__terminal=True
    )
    assert ended.code == 0
    assert ended.stdout.count("it, and not the objective, decides how large a step is") == told
    assert ended.stdout.count("or set objective.aggregation.length to rollout.max_tokens") == told


def test_a_learning_rate_that_breaks_the_model_is_named(train, tmp_path):
    ended = train(optim__lr=100.0, train__steps=8, train__max_uninformative=7, log__terminal=True)
    assert "differed in reward for 5 steps: there is nothing to learn from; look at" in ended.stdout
    assert "or the learning rate, 100.0, too large?)" in ended.stdout
    assert "or the learning rate, 100.0, too large?), or raise train.max_uninformative" in sentence(ended)


def test_messages_without_a_chat_template(train, tmp_path):
    assert "has no chat template" in sentence(train(task__chat=True))
    assert no_run_in(tmp_path / "run")


def test_an_all_equal_reward_stops_with_a_checkpoint_and_loses_no_line(train, tmp_path):
    options = {"reward__functions": [f"{REWARDS}:same"], "train__checkpoint_every": 100, "eval__every": 3}
    told = sentence(train(train__max_uninformative=3, **options))
    assert "differed in reward for 3 steps" in told
    assert "train.max_uninformative" in told
    folder = RunFolder(tmp_path / "run")
    assert checkpoint.steps(folder.checkpoints) == [3]
    assert [r["step"] for r in metrics(tmp_path / "run")] == [1, 2, 3]
    assert [r["step"] for r in read_lines(folder.eval)] == [0, 3]
    assert "differed in reward for 4 steps" in sentence(train("--resume", train__max_uninformative=3, **options))
    ended = train("--resume", train__max_uninformative=100, **options)
    assert ended.code == 0, ended.stderr
    assert train(out=tmp_path / "whole", train__max_uninformative=100, **options).code == 0
    assert outcome(tmp_path / "run")["weights"] == outcome(tmp_path / "whole")["weights"]
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_a_group_of_one(train, tmp_path):
    told = sentence(train(rollout__group_size=1))
    assert "rollout.group_size = 1" in told
    assert "use at least 2, or objective.preset = reinforce" in told
    assert no_run_in(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task__name": "arithmetics"}, 'task.name = "arithmetics" is not a task'),
        ({"task__name": "gym:chain_som"}, "gym:chain_som"),
        ({"reward__functions": ["nowhere:f"]}, '"nowhere:f" cannot be imported as module:function'),
        ({"reward__functions": [f"{REWARDS}:threes"]}, "threes"),
        ({"reward__functions": ["ones"]}, 'reward.functions: "ones" is not known; use one of (task, tags, boxed, or'),
        ({"reward__functions": ["tsk"]}, 'reward.functions: "tsk" is not known; did you mean "task"?'),
        ({"reward__functions": [f"{REWARDS}:__name__"]}, "is not a function"),
        (
            {"reward__unparsed": "nothing"},
            'reward.unparsed = "nothing": must be a number from −1e+15 to 1e+15, wrong or mask',
        ),
        ({"reward__limit": [1]}, "reward.limit = [1]: must be a number from −1e+15 to 1e+15, wrong or mask"),
        ({"reward__tags": []}, "reward.tags = []: must be names, at least one"),
        ({"model__device": "cuda"}, "model.device"),
        ({"model__device": "cuda:99"}, "model.device"),
        ({"objective__agregation": "token"}, 'did you mean "aggregation"?'),
        ({"optimizer__lr": 1}, "optimizer is not a section"),
        ({"train__steps": "ten"}, 'train.steps = "ten": must be a whole number'),
    ],
)
def test_a_setting_that_cannot_be_used(train, tmp_path, options, said):
    if "device" in next(iter(options)) and torch.cuda.is_available():
        pytest.skip("there is such a device here")
    assert said in sentence(train(**options))
    assert no_run_in(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model__name": "abacus", "task__suffix": " is what?"}, "abacus's tokenizer cannot read"),
        ({"model__name": "abacus", "task__suffix": " is what?"}, "for other prompts name another model, model.name"),
        ({"task__chat_template": "{{ messages[0].content"}, "the chat template of"),
    ],
)
def test_prompts_that_cannot_be_asked_are_refused_where_nothing_is_evaluated(train, tmp_path, options, said):
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{a}+1", "answer": "{a + 1}"}}\n' for a in range(40)))
    data = {"task__name": str(tmp_path / "rows.jsonl"), "eval__every": 0}
    assert said in sentence(train(**data, **options))
    assert no_run_in(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "ConnectionError: the reward server is gone"),
        ("not_a_number", "it gave nan: must be a finite number, or a Verdict"),
        ("too_large", "it gave -1e+308: must be at most 1e+15 in size"),
        ("nothing", "it gave None: must be a finite number, or a Verdict"),
        ("text", "it gave the text '1': must be a finite number, or a Verdict; return float() of it"),
    ],
)
def test_a_reward_function_that_always_fails_stops_the_run_and_says_why(train, tmp_path, name, said):
    ended = train(reward__functions=[f"{REWARDS}:{name}"], train__max_uninformative=2, log__terminal=True)
    assert f"{REWARDS}:{name}: crashed: " in ended.stdout
    assert said in ended.stdout
    told = sentence(ended)
    assert f"the reward function {REWARDS}:{name} crashed on 100% of the responses, the third step in a row" in told
    assert said in told
    assert [r["step"] for r in metrics(tmp_path / "run")] == [1, 2, 3]
    assert said in (tmp_path / "run" / "troubles.jsonl").read_text()


def test_an_existing_run_is_not_overwritten(train, tmp_path):
    assert train(train__steps=2).code == 0
    before = outcome(tmp_path / "run")
    told = sentence(train(train__steps=2))
    assert "holds a run already (at step 2); --resume goes on with it, --train.out DIR starts another" in told
    assert outcome(tmp_path / "run") == before


def test_there_is_nothing_to_resume(train, tmp_path):
    assert "holds no run to resume; start it without --resume" in sentence(train("--resume"))


def test_a_resumed_run_keeps_its_settings(train, tmp_path):
    assert train(train__steps=2).code == 0
    before = outcome(tmp_path / "run")
    told = sentence(train("--resume", train__steps=4, optim__lr=0.5, objective__aggregation="balanced"))
    assert "optim.lr was 0.01, now 0.5" in told
    assert "objective.aggregation was None, now 'balanced'" in told
    assert "train.steps" not in told
    assert outcome(tmp_path / "run") == before
    assert train("--resume", train__steps=4, eval__every=4, log__rollouts_every=1).code == 0
    assert [r["step"] for r in metrics(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_schedule_cannot_be_stretched(train, tmp_path):
    """A rate that falls to 0 over `train.steps` depends on them, and so would the weights."""
    assert train(train__steps=2, optim__schedule="cosine").code == 0
    assert "train.steps was 2, now 4" in sentence(train("--resume", train__steps=4, optim__schedule="cosine"))


def test_a_second_process_in_the_same_folder(server, train, model, tmp_path):
    arguments = overrides(model, tmp_path / "run", train__steps=10_000)
    first = server.start(["train", str(tmp_path / "empty.toml"), *arguments])
    wait_for(lambda: metrics(tmp_path / "run"))
    for flags in ((), ("--resume",)):
        told = sentence(train(*flags, train__steps=10_000))
        assert f"in use by another run (process {first.pid})" in told
        assert "--train.out" in told
    assert first.wait(0) is None
    first.kill(signal.SIGKILL)
    first.end()
    steps = [r["step"] for r in metrics(tmp_path / "run")]
    assert steps == list(range(1, len(steps) + 1))


def wait_for(condition, patience: float = 900.0):
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


FIVE = {"train__steps": 5, "train__checkpoint_every": 100, "eval__every": 2, "objective__difficulty": "hadw"}
FIVE |= {"reward__seconds": 3600.0}  # to wait in a reward is no timeout
# A reward that makes the run whose log lies beside it (`held`) wait in its third step until that is taken away.
HELD = """
import time
from pathlib import Path
held = Path(__file__).with_name("held")
def ones(prompt, response, row):
    while held.exists() and held.read_bytes().count(b"\\n") == 2:
        held.with_name("waiting").touch()
        time.sleep(0.005)
    return response.count("1") / max(len(response), 1)
"""


@pytest.fixture(scope="module")
def five_steps(model, tmp_path_factory):
    """The options, and what an undisturbed run leaves."""
    folder = tmp_path_factory.mktemp("five")
    (folder / "reward.py").write_text(HELD)
    options = FIVE | {"reward__functions": [f"{folder}/reward.py:ones"]}
    Trainer(settings(model, folder / "run", log__terminal=False, **options)).run()
    return folder, options, outcome(folder / "run")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_step_and_says_how_to_go_on(server, five_steps, model, tmp_path, signum):
    out = tmp_path / "run"
    (tmp_path / "empty.toml").touch()
    folder, options, undisturbed = five_steps
    (folder / "held").symlink_to(RunFolder(out).metrics)
    child = server.start(["train", str(tmp_path / "empty.toml"), *overrides(model, out, **options)])
    wait_for(lambda: len(metrics(out)) >= 2)
    child.kill(signum)
    (folder / "held").unlink()
    ended = child.end()
    assert ended.code == 130
    steps = [r["step"] for r in metrics(out)]
    assert steps in ([1, 2], [1, 2, 3])  # told at the end of the second, or in the third
    assert checkpoint.steps(RunFolder(out).checkpoints) == [len(steps)]
    command = f"equipoise train {out} --resume"
    assert ended.stderr == f"equipoise: stopped after step {len(steps)}; go on with: {command}\n"
    resumed = server.run(command.split()[1:])
    assert resumed.code == 0, resumed.stderr
    assert outcome(out) == undisturbed


def test_an_impatient_second_ctrl_c_stops_at_once(server, model, tmp_path):
    out = tmp_path / "run"
    (tmp_path / "empty.toml").touch()
    (tmp_path / "reward.py").write_text(HELD)
    (tmp_path / "held").symlink_to(RunFolder(out).metrics)  # and the third step never ends
    options = FIVE | {"reward__functions": [f"{tmp_path}/reward.py:ones"]}
    child = server.start(["train", str(tmp_path / "empty.toml"), *overrides(model, out, **options)])
    wait_for((tmp_path / "waiting").exists)
    child.kill(signal.SIGINT)
    time.sleep(1.1)
    child.kill(signal.SIGINT)
    ended = child.end()
    assert ended.code == 130
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("terminal", "said"), [(True, f"\n{stopping.HEARD}\n"), (False, "")])
def test_the_first_ctrl_c_is_answered_at_once_on_a_terminal(monkeypatch, capfd, terminal, said):
    """A step may take minutes: silence would look like a run that hears nothing."""
    monkeypatch.setattr(stopping.os, "isatty", lambda descriptor: terminal)
    with stopping.graceful_stop() as state:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # its echo, from a parent
        assert state.wanted
    assert capfd.readouterr().err == said


def test_a_second_ctrl_c_while_a_checkpoint_is_written_is_no_error_of_torch(monkeypatch):
    clock = itertools.count(0.0, 2.0)
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(clock))

    def save():
        with stopping.graceful_stop() as state:

            class InterruptedFile(io.BytesIO):
                def write(self, data):
                    if not state.at_once:
                        signal.raise_signal(signal.SIGINT)
                    return super().write(data)

            torch.save({"weights": torch.zeros(9)}, InterruptedFile())

    with pytest.raises(KeyboardInterrupt) as stopped:
        save()
    assert "unexpected pos" in str(stopped.value.__cause__)  # what torch makes of it


def test_a_path_with_a_space_can_be_pasted_into_a_shell(model, tmp_path):
    trainer = Trainer(settings(model, tmp_path / "my run", train__steps=1, log__terminal=False))
    assert journal.resume_command(trainer.folder) == f"equipoise train '{tmp_path}/my run' --resume"
    trainer.run()


class FullDisk:
    """Writing fails from the n-th write on, until room is made."""

    def __init__(self, monkeypatch, module, name: str, n: int) -> None:
        self.left, self.real = n, getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *arguments, **options):
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.real(*arguments, **options)


WRITING = {"train__checkpoint_every": 2, "log__terminal": False, "log__rollouts_every": 2}


@pytest.fixture(scope="module")
def undisturbed(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    Trainer(settings(model, out, **WRITING)).run()
    return outcome(out)


@pytest.mark.parametrize(
    ("module", "name", "n", "last"),
    [
        (torch, "save", 0, "no checkpoint was written yet"),
        pytest.param(torch, "save", 2, "step 4 is the last whole checkpoint", marks=pytest.mark.long),
        pytest.param(os, "fsync", 15, "step 2 is the last whole checkpoint", marks=pytest.mark.long),
        (journal, "append", 3, "step 2 is the last whole checkpoint"),  # a line of the log
        # a rollout file
        pytest.param(None, "write_table", 7, "step 4 is the last whole checkpoint", marks=pytest.mark.long),
        (None, "write_table", 3, "step 2 is the last whole checkpoint"),  # the history of the prompts
    ],
)
def test_a_full_disk_names_the_last_checkpoint_and_the_run_goes_on_later(
    model, undisturbed, tmp_path, monkeypatch, module, name, n, last
):
    import pyarrow.parquet

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        trainer = Trainer(settings(model, out, **WRITING))
        FullDisk(patch, module or pyarrow.parquet, name, n)
        with pytest.raises(RunError) as error:
            trainer.run()
    told = str(error.value)
    assert "cannot be written: No space left on device" in told
    assert last in told
    assert told.endswith(f"make room and go on with: equipoise train {out} --resume")
    assert not list(RunFolder(out).path.rglob(".writing-*"))
    Trainer(settings(model, out, **WRITING), resume=True).run()
    assert outcome(out) == undisturbed


def test_a_disk_that_is_full_from_the_start(model, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        FullDisk(patch, os, "replace", 0)
        with pytest.raises(RunError, match="No space left on device; no checkpoint was written yet; make room and sta"):
            Trainer(settings(model, tmp_path / "run"))
    Trainer(settings(model, tmp_path / "run", train__steps=1, log__terminal=False)).run()


@pytest.mark.slow
def test_a_disk_that_is_really_full(server, model, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        (tmp_path / "empty.toml").touch()
        options = {"train__steps": 30, "train__checkpoint_every": 3, "train__keep": 100}
        run = ["train", str(tmp_path / "empty.toml")]
        assert server.run([*run, *overrides(model, tmp_path / "whole", **options)]).code == 0
        times = 0
        arguments = [*run, *overrides(model, disk / "run", **options)]
        while (ended := server.run(arguments)).code:
            told = sentence(ended)
            assert "No space left on device" in told
            assert f"make room and go on with: equipoise train {disk}/run --resume" in told
            times += 1
            size = 600 + 150 * times
            subprocess.run(["mount", "-o", f"remount,size={size}k", disk], check=True)
            arguments = ["train", str(disk / "run"), "--resume"]
        assert times > 3
        assert outcome(disk / "run") == outcome(tmp_path / "whole")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_trainer_that_could_not_be_made_lets_the_folder_go(model, tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        Trainer(settings(model, tmp_path / "run", reward__functions=["nowhere:f"]))
    Trainer(settings(model, tmp_path / "run", train__steps=1, log__terminal=False)).run()


def test_a_missing_tracker_is_one_sentence_and_leaves_no_run(model, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)  # an import of it raises ImportError
    with pytest.raises(ConfigError) as error:
        Trainer(settings(model, tmp_path / "run", log__wandb=True))
    assert str(error.value) == (
        "log.wandb = true needs a package that is not installed: pip install 'equipoise[wandb]'"
    )
    assert no_run_in(tmp_path / "run")


def test_a_context_too_short_for_the_task(tmp_path):
    short = make_model(tmp_path / "short", context=4)
    with pytest.raises(RunError, match=r"leaves no room in .*'s context of 4"):
        Trainer(settings(short, tmp_path / "run"))
    assert no_run_in(tmp_path / "run")


def test_a_run_whose_output_nobody_reads_stops_with_a_checkpoint(server, model, tmp_path):
    """`equipoise train … | head -1`: the step is finished, and stderr says how to go on."""
    (tmp_path / "empty.toml").touch()
    program = ["train", str(tmp_path / "empty.toml")]
    options = {"train__steps": 10_000, "train__checkpoint_every": 100_000, "eval__every": 0}
    program += overrides(model, tmp_path / "run", **options)
    out = server.next_out()
    os.mkfifo(f"{out}.stdout")
    child = server.start(program, out=out)
    with open(f"{out}.stdout") as head:
        head.readline()
    code = child.wait(900)
    err = Path(f"{out}.stderr").read_text()
    (step,) = checkpoint.steps(RunFolder(tmp_path / "run").checkpoints)
    assert step < 10_000
    assert err == f"equipoise: stopped after step {step}; go on with: equipoise train {tmp_path}/run --resume\n"
    assert code == 130


def test_a_reward_that_cannot_be_used_is_refused_before_the_model_is_loaded(model, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "load_policy", lambda config: pytest.fail("the model was loaded"))
    for name in ("threes", "takes_two"):
        with pytest.raises(ConfigError, match=name):
            Trainer(settings(model, tmp_path / "run", reward__functions=[f"{REWARDS}:{name}"]))
    with pytest.raises(ConfigError, match=r"reward.judge"):
        Trainer(settings(model, tmp_path / "run", reward__judge="nowhere:f"))
    assert no_run_in(tmp_path / "run")
