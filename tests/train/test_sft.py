"""Supervised warm-up: it is a plain autograd loop, whatever is packed; a kill changes no bit; it teaches something."""

import copy
import json
import random

import pytest
import torch
from transformers import AutoTokenizer

from equipoise.cli import main
from equipoise.config import ConfigError, OptimConfig
from equipoise.config.sft import load_sft
from equipoise.policy import load as load_policy
from equipoise.policy.chat import AS_TEXT, Chat
from equipoise.tasks import Prompt, TaskError, open_demonstrations
from equipoise.train import RunError, RunFolder, checkpoint, read_lines, sft
from equipoise.train.imitation import Demonstration, Encoder, Imitator, learn_end
from equipoise.train.sft import Sft
from equipoise.train.update import learning_rate
from tests.policy import tiny_models
from tests.policy.test_chat import policy as chat_policy

OPTIM = OptimConfig(lr=3e-3, warmup=2, schedule="linear", weight_decay=0.1, clip_norm=0.5)
STEPS = 4


def demonstrations(count, seed=0):
    """Some share their prompt, and some their beginnings; one is a single token."""
    draw = random.Random(seed)
    prompts = tiny_models.prompts(3, seed=seed)
    made = []
    for _ in range(count):
        tail = [draw.randrange(3, tiny_models.VOCABULARY) for _ in range(draw.randint(0, 12))]
        made.append(Demonstration(draw.choice(prompts), [*[5] * draw.randint(0, 3), *tail, 2]))
    return made


def in_double(model):
    """transformers' norms and eager attention round to float32 whatever the model is; this one does not."""
    model.config._attn_implementation = "sdpa"
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, m=module: (
                m.weight * x * (x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon).rsqrt()
            )


def plain_loop(policy, batches):
    """transformers' own forward pass on one demonstration after the other, and torch's AdamW."""
    in_double(policy.model)
    optimizer = torch.optim.AdamW(policy.parameters(), betas=OPTIM.betas, weight_decay=OPTIM.weight_decay)
    losses = []
    for number, batch in enumerate(batches, 1):
        optimizer.zero_grad()
        tokens = sum(len(one.response) for one in batch)
        total = 0.0
        for one in batch:
            ids = torch.tensor([[*one.prompt, *one.response]])
            logits = policy.model(ids, attention_mask=torch.ones_like(ids)).logits[0, :-1].log_softmax(-1)
            predicted = logits[len(one.prompt) - 1 :]
            loss = -predicted.gather(1, torch.tensor(one.response)[:, None]).sum() / tokens
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(policy.parameters(), OPTIM.clip_norm)
        optimizer.param_groups[0]["lr"] = learning_rate(OPTIM, number, STEPS)
        optimizer.step()
        losses.append(total)
    return losses


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def reference(request):
    policy = tiny_models.policy(request.param, dtype=torch.float64)
    batches = [demonstrations(7, seed) for seed in range(STEPS)]
    start = copy.deepcopy(policy)
    return start, batches, policy, plain_loop(policy, batches)


@pytest.mark.parametrize("micro_tokens", [40, pytest.param(1, marks=pytest.mark.long), 10_000])
def test_it_is_a_plain_autograd_loop_for_any_packing(reference, micro_tokens):
    start, batches, expected, losses = reference
    policy = copy.deepcopy(start)
    imitator = Imitator(policy, OPTIM, STEPS, micro_tokens)
    found = [imitator.step(batch) for batch in batches]
    assert [step["loss"] for step in found] == pytest.approx(losses, abs=1e-10, rel=0)
    for name, weight in expected.model.named_parameters():
        torch.testing.assert_close(policy.model.get_parameter(name), weight, atol=1e-10, rtol=0)


def test_the_held_out_loss_is_the_mean_over_tokens(reference):
    start, batches, _, _ = reference
    everything = [one for batch in batches for one in batch]
    imitator = Imitator(copy.deepcopy(start), OPTIM, STEPS, 50)
    alone = [(imitator.loss([one]), len(one.response)) for one in everything]
    mean = sum(loss * n for loss, n in alone) / sum(n for _, n in alone)
    assert imitator.loss(everything, at_once=5) == pytest.approx(mean, abs=1e-12)


def test_a_demonstration_is_what_a_sampler_would_have_drawn():
    """The prompt as in RL, the response's own tokens, and the token that ends a turn."""
    policy = chat_policy()
    chat = Chat(on=True, options={"enable_thinking": False})
    prompt = Prompt("1", "1+2=", "3")
    found = Encoder(policy, chat)(prompt)
    assert found.prompt == chat.encode(policy, prompt.text)
    assert policy.tokenizer.decode(found.response) == "3<|im_end|>"
    assert Encoder(tiny_models.policy(), AS_TEXT)(prompt).response[-1] == 2
    assert Encoder(policy, AS_TEXT, max_tokens=1)(prompt) is None
    assert Encoder(policy, AS_TEXT, max_tokens=2)(prompt) is not None


def test_a_base_model_learns_to_end_a_turn(tmp_path):
    policy = chat_policy()
    end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end not in policy.eos
    assert learn_end(policy, Chat(on=True)) == end
    assert policy.eos == (2, end)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("row", "columns", "prompt", "response"),
    [
        ({"prompt": "a?", "completion": "b"}, None, "a?", "b"),
        ({"question": "a?", "answer": "First, b.\n#### 7"}, None, "a?", "First, b.\n#### 7"),
        ({"problem": "a?", "solution": "so $b$", "answer": "b"}, None, "a?", "so $b$"),
        ({"instruction": "a?", "output": "b"}, None, "a?", "b"),
        ({"q": "a?", "deep": {"r": "b"}}, {"prompt": "q", "answer": "deep.r"}, "a?", "b"),
        ({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}, None, "a?", "b"),
        (
            {"prompt": [{"role": "user", "content": "a?"}], "completion": [{"role": "assistant", "content": "b"}]},
            None, "a?", "b",
        ),
        (
            {"text": "a?", "code": "def f():\r\n    pass", "test_list": ["assert f"], "task_id": 1},
            None, "a?\nYour code should pass these tests:\nassert f", "```python\ndef f():\n    pass\n```",
        ),
    ],
)  # fmt: skip
def test_columns_are_told_by_their_names(tmp_path, row, columns, prompt, response):
    task = open_demonstrations(write(tmp_path / "d.jsonl", [row]), 0, columns=columns)
    assert (task.prompt(0).text, task.prompt(0).answer) == (prompt, response)


def test_rows_without_a_response_are_refused_or_left_out(tmp_path):
    with pytest.raises(TaskError, match="no response to imitate among prompt, label"):
        open_demonstrations(write(tmp_path / "a.jsonl", [{"prompt": "a", "label": "b"}]), 0)
    rows = [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": " "}, {"prompt": "d", "response": 7}]
    task = open_demonstrations(write(tmp_path / "b.jsonl", rows), 0)
    assert task.summary.dropped == {"no response": 2}
    with pytest.raises(TaskError, match="no worked responses"):
        open_demonstrations("gym:chain_sum", 0)


def overrides(model, out, **options):
    asked = {"model.name": str(model), "model.device": "cpu", "sft.out": str(out), "sft.steps": 6, "sft.batch": 8,
             "sft.held_out": 16, "sft.eval_every": 3, "sft.checkpoint_every": 2, "sft.threads": 1}  # fmt: skip
    asked |= {key.replace("__", "."): value for key, value in options.items()}
    return [part for key, value in asked.items() for part in (f"--{key}", json.dumps(value))]


def logged(out):
    clock = "tokens_per_s"
    metrics = [{k: v for k, v in line.items() if k != clock} for line in read_lines(out / "metrics.jsonl")]
    return metrics, read_lines(out / "eval.jsonl")


def weights(out):
    last = checkpoint.steps(out / "checkpoints")[-1]
    return last, (out / "checkpoints" / f"step-{last}" / "model.safetensors").read_bytes()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("options", [{}, {"model__lora_rank": 2, "model__lora_dropout": 0.3}], ids=["full", "lora"])
def test_a_kill_resumes_bit_for_bit(model, tmp_path, monkeypatch, options):
    Sft(load_sft(None, overrides(model, tmp_path / "whole", sft__terminal=False, **options))).run()
    step = Imitator.step

    def dies(self, batch):
        if self.done == 5:
            raise Killed
        return step(self, batch)

    arguments = overrides(model, tmp_path / "killed", sft__terminal=False, **options)
    killed = Sft(load_sft(None, arguments))
    with monkeypatch.context() as patch:
        patch.setattr(Imitator, "step", dies)
        with pytest.raises(Killed):
            killed.run()
    assert weights(tmp_path / "killed")[0] == 4
    assert len(read_lines(tmp_path / "killed" / "metrics.jsonl")) == 5
    Sft(load_sft(None, arguments), resume=True).run()
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert logged(tmp_path / "killed") == logged(tmp_path / "whole")


def test_a_folder_in_use_is_refused_with_the_commands_own_flag(model, tmp_path):
    taken = RunFolder(tmp_path / "run")
    taken.lock()
    with pytest.raises(RunError, match=r"in use by another run .* --sft\.out,"):
        Sft(load_sft(None, overrides(model, tmp_path / "run")))
    taken.unlock()


def test_settings_of_a_resumed_run_stay(model, tmp_path):
    arguments = overrides(model, tmp_path / "run", sft__terminal=False, sft__steps=2)
    Sft(load_sft(None, arguments)).run()
    with pytest.raises(RunError, match="holds a warm-up already"):
        Sft(load_sft(None, arguments))
    with pytest.raises(RunError, match=r"sft\.batch was 8, now 4"):
        Sft(load_sft(None, [*arguments, "--sft.batch", "4"]), resume=True)
    with pytest.raises(RunError, match="no warm-up to resume"):
        Sft(load_sft(None, overrides(model, tmp_path / "other")), resume=True)
    with pytest.raises(ConfigError, match=r"sft.steps = 0: set it"):
        Sft(load_sft(None, overrides(model, tmp_path / "third", sft__steps=0)))


def test_data_are_refused_before_a_model_is_loaded(model, tmp_path, monkeypatch):
    monkeypatch.setattr(sft, "open_model", lambda section: pytest.fail("the model was loaded"))
    missing = overrides(model, tmp_path / "run", task__name=str(tmp_path / "none.jsonl"))
    with pytest.raises(TaskError, match="there is no such file"):
        Sft(load_sft(None, missing))
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_says_where_it_is(model, tmp_path, capsys):
    arguments = overrides(model, tmp_path / "run", sft__steps=2)
    run = Sft(load_sft(None, arguments))
    run.steps = 1  # as if it had been stopped there
    run.run()
    assert "goes on" not in capsys.readouterr().out
    Sft(load_sft(None, arguments), resume=True).run()
    assert f"{tmp_path / 'run'}: goes on after step 1 of 2" in capsys.readouterr().out
    Sft(load_sft(None, arguments), resume=True).run()
    assert f"{tmp_path / 'run'}: finished: step 2 of 2 is done" in capsys.readouterr().out


def test_epochs_count_the_rows(model, tmp_path):
    rows = [{"prompt": f"{i}+1=", "response": f"#{i + 1}"} for i in range(40)]
    data = write(tmp_path / "d.jsonl", rows)
    options = {"sft__steps": 0, "sft__epochs": 2, "task__name": data, "sft__terminal": False}
    run = Sft(load_sft(None, overrides(model, tmp_path / "run", **options)))
    assert run.steps == 2 * -(-run.task.epoch // 8)
    run.run()
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == run.steps


def test_it_teaches_the_embedded_model_and_rl_starts_from_it(tmp_path, equipoise):
    """Seconds on one core: the embedded model stops slipping, and the terminal says what it saw."""
    out = tmp_path / "sft"
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    more = overrides("abacus", out, sft__steps=24, sft__batch=48, sft__eval_every=24)
    code, said, _ = equipoise("sft", empty, *more)
    assert code == 0
    before, after = (line["loss"] for line in read_lines(out / "eval.jsonl"))
    assert after < 0.6 * before
    assert "learning rate: 0.001 (the default for a model of" in said
    assert "the model reads  " in said
    assert "and imitates     +" in said
    assert "<eos>" in said
    assert f"equipoise train CONFIG --model.name {out}" in said
    assert load_policy(out).name == str(out)
    options = ["--model.name", str(out), "--model.device", "cpu", "--train.steps", "1", "--rollout.prompts", "2"]
    options += ["--rollout.group_size", "2", "--eval.every", "0", "--log.terminal", "false", "--train.threads", "1"]
    main(["train", str(empty), *options, "--train.out", str(tmp_path / "rl")])
    code, _, err = equipoise("train", empty, *options, "--train.out", out)
    assert code == 1
    assert "holds a supervised warm-up" in err


def test_a_template_is_learned_with_its_end(tmp_path, model):
    template = (
        "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}#{% endif %}"
    )
    data = write(tmp_path / "d.jsonl", [{"prompt": f"{i}+1=", "response": f"{i + 1}"} for i in range(16)])
    options = {"task__name": data, "task__chat_template": template, "sft__steps": 1, "sft__terminal": False}
    run = Sft(load_sft(None, overrides(model, tmp_path / "run", **options)))
    one = run.encoder(run.task.prompt(0))
    assert run.policy.tokenizer.decode(one.prompt).endswith("=<eos>#")
    assert one.response[-1] == run.policy.tokenizer.eos_token_id
    run.run()
    last = tmp_path / "run" / "checkpoints" / "step-1"
    assert AutoTokenizer.from_pretrained(last).chat_template == template
