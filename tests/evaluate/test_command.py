"""`eval --benchmarks` and `regrade` on the command line: tables, JSON, Markdown, runs, one sentence for a mistake."""

import json
import re
import shutil

import pytest

from equipoise.evaluate import PROTOCOLS, EvaluationError, EvaluationRequest, open_benchmarks
from equipoise.evaluate.table import markdown
from equipoise.train.checkpoint import STATE

from .fakes import Writer, fake_policy
from .test_suite import contents, digit, run

SMALL = ("--samples", "2", "--max-tokens", "5")


def test_a_table_json_and_markdown_of_the_same_numbers(equipoise, data, tiny_model, tmp_path):
    asked = ("eval", tiny_model, "--benchmarks", "gsm8k, math500", "--data", data, *SMALL, "--out", tmp_path / "out")
    code, out, err = equipoise(*asked)
    assert code == 0
    assert re.search(r"^gsm8k +6 +\d+\.\d \[\d+\.\d, \d+\.\d\]", out, re.MULTILINE)
    assert re.search(r"^average ", out, re.MULTILINE)
    assert "math500 by level" in out
    assert "gsm8k: 6 of 6 problems" in err
    code, out, err = equipoise(*asked, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result == json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["chat"] is False  # the model has no chat template
    code, out, _ = equipoise(*asked, "--markdown")
    assert code == 0
    assert out == (tmp_path / "out" / "result.md").read_text() == markdown(result)
    cells = [line.count("|") for line in out.splitlines() if line.startswith("| ")]
    assert len(cells) > 6


def test_all_checkpoints_of_a_run_with_peak_and_last(equipoise, data, tiny_model, tmp_path):
    for step in (2, 10):
        shutil.copytree(tiny_model, tmp_path / "run" / "checkpoints" / f"step-{step}")
        (tmp_path / "run" / "checkpoints" / f"step-{step}" / STATE).write_bytes(b"")
    code, out, err = equipoise("eval", tmp_path / "run", "--benchmarks", "gsm8k", "--data", data, *SMALL)
    assert code == 0, err
    assert re.search(r"^gsm8k +acc@2 +\d+\.\d +2 +", out, re.MULTILINE)  # equal weights: the first is the peak
    over = json.loads((tmp_path / "run" / "evaluation" / "result.json").read_text())
    assert over["steps"] == [2, 10]
    assert over["benchmarks"]["gsm8k"]["acc@2"]["drop"] == 0
    assert (tmp_path / "run" / "evaluation" / "step-10" / "samples" / "gsm8k" / "chunk-00000.parquet").exists()
    code, out, err = equipoise("regrade", tmp_path / "run" / "evaluation")
    assert code == 0, err
    assert re.search(r"^step 10: gsm8k +12 +0 ", out, re.MULTILINE)


def test_regrade_shows_what_changed(equipoise, data, tmp_path):
    run(data, tmp_path / "out")
    file = data / "gsm8k.jsonl"
    file.write_text(file.read_text().replace("#### 5", "#### 106"))
    code, out, err = equipoise("regrade", tmp_path / "out")
    assert (code, err) == (0, "")
    assert re.search(r"^gsm8k +24 +3 +3 correct → wrong +acc@4 50.0 → 37.5", out, re.MULTILINE)
    assert "gsm8k, problem 6, sample 0: correct → wrong: answered 5, reference 106" in out
    code, out, _ = equipoise("regrade", tmp_path / "out", "--json")
    assert json.loads(out)["gsm8k"]["changed"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--benchmarks", "gsm9k", "--data", "{data}"], '"gsm9k" is not a benchmark; did you mean "gsm8k"?'),
        (["--benchmarks", "aime24", "--data", "{data}"], "aime24: there is no file of it in {data}: looked for"),
        (
            ["--benchmarks", "gsm8k", "--data", "{data}", "--protocol", "bba"],
            '--protocol "bba" is not a protocol: ba, hadw',
        ),
        (["--limit", "5"], "--limit is for benchmarks: name some with --benchmarks"),
        (["--benchmarks", "gsm8k", "--per-level", "5"], "--per-level is for a task; --limit takes the first problems"),
        (["--benchmarks", ",", "--data", "{data}"], "no benchmarks: name at least one"),
        (["--benchmarks", "gsm8k", "--data", "{data}", "--temperature", "0", "--samples", "4"], "--temperature 0 with"),
        (["--benchmarks", "gsm8k", "--data", "{data}", "--chat"], "has no chat template"),
        (["--benchmarks", "gsm8k", "--data", "{data}", "--device", "cuda"], "--device cuda: there is no CUDA device"),
    ],
)
def test_a_mistake_is_one_sentence(equipoise, data, tiny_model, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = equipoise("eval", tiny_model, *(a.format(data=data) for a in arguments))
    assert (code, out) == (1, "")
    assert err.startswith("equipoise: ")
    assert said.format(data=data) in err
    assert err.count("\n") == 1
    assert not (tmp_path / "evaluation").exists()


def test_a_folder_of_another_evaluation_is_one_sentence(equipoise, data, tiny_model, tmp_path):
    asked = ("eval", tiny_model, "--benchmarks", "gsm8k", "--data", data, *SMALL, "--out", tmp_path / "out")
    assert equipoise(*asked)[0] == 0
    before = contents(tmp_path / "out")
    code, _, err = equipoise(*asked, "--temperature", "0.5")
    assert code == 1
    assert err.startswith(
        f"equipoise: {tmp_path}/out: holds an evaluation with other settings: temperature was 1.0, now 0.5"
    )
    assert contents(tmp_path / "out") == before


def test_the_protocols_of_the_papers(data, tmp_path):
    assert PROTOCOLS["ba"].samples_of("math500") == PROTOCOLS["ba"].samples_of("aime24") == 8
    hadw = PROTOCOLS["hadw"]
    assert [hadw.samples_of(n) for n in ("aime24", "aime25", "amc23", "math500", "gsm8k")] == [16, 16, 16, 1, 1]
    assert PROTOCOLS["ba"].temperature == 1


def request(data, monkeypatch, **options):
    sampler = Writer(digit)
    monkeypatch.setattr("equipoise.evaluate.request.sampler", lambda policy: sampler)
    return EvaluationRequest(open_benchmarks(["gsm8k", "gsm8k"], data, None), **options), sampler


def test_a_request_takes_the_protocols_numbers_and_the_chat_template(data, tmp_path, monkeypatch):
    asked, sampler = request(data, monkeypatch)
    result = asked.evaluate(fake_policy(), tmp_path / "out")
    assert list(result["benchmarks"]) == ["gsm8k"]
    assert result["chat"] is True
    assert result["benchmarks"]["gsm8k"]["samples"] == 8
    assert (sampler.params[0].temperature, sampler.params[0].max_tokens, sampler.params[0].stop) == (1.0, 1024, ())


def test_a_request_says_what_a_run_says_besides_the_problem(data, tmp_path, monkeypatch):
    told = {"system": "Be brief.", "options": {"enable_thinking": False}}
    asked, _ = request(data, monkeypatch, **told)
    policy = fake_policy()
    result = asked.evaluate(policy, tmp_path / "out")
    messages, options = policy.tokenizer.told
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"] == "Be brief."
    assert options["enable_thinking"] is False
    assert (result["system"], result["chat_template_kwargs"]) == ("Be brief.", {"enable_thinking": False})
    assert 'chat with system "Be brief.", enable_thinking = false; ' in markdown(result)
    silent, _ = request(data, monkeypatch)
    with pytest.raises(
        EvaluationError, match=r"system was 'Be brief\.', now ''; chat_template_kwargs was .*, now \{\}"
    ):
        silent.evaluate(policy, tmp_path / "out")


def test_a_folder_of_an_earlier_version_was_told_nothing(data, tmp_path, monkeypatch):
    asked, sampler = request(data, monkeypatch)
    asked.evaluate(fake_policy(), tmp_path / "out")
    file = tmp_path / "out" / "settings.json"
    settings = json.loads(file.read_text())
    del settings["system"], settings["chat_template_kwargs"]
    file.write_text(json.dumps(settings))
    calls = sampler.asked
    result = asked.evaluate(fake_policy(), tmp_path / "out")
    assert (result["system"], sampler.asked) == ("", calls)


def test_benchmarks_ask_a_run_as_it_was_trained(equipoise, data, tiny_model, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(tiny_model, run / "checkpoints" / "step-2")
    (run / "checkpoints" / "step-2" / STATE).write_bytes(b"")
    chat = '[task]\nchat = true\nsystem = "Be brief."\nchat_template_kwargs = { enable_thinking = false }\n'
    (run / "config.toml").write_text(f"{chat}[retired]\noption = 1\n")
    asked = []
    monkeypatch.setattr(EvaluationRequest, "evaluate", lambda self, *rest: asked.append(self) or {"benchmarks": {}})
    monkeypatch.setattr("equipoise.evaluate.request.write_run", lambda folder, results: {})
    for place in (run, run / "checkpoints" / "step-2"):
        for more in ((), ("--no-chat",)):
            equipoise("eval", place, "--benchmarks", "gsm8k", "--data", data, "--json", *more)
    assert [one.chat for one in asked] == [True, False, True, False]
    assert {(one.system, *one.options.items()) for one in asked} == {("Be brief.", ("enable_thinking", False))}
    equipoise("eval", tiny_model, "--benchmarks", "gsm8k", "--data", data, "--json")
    assert (asked[-1].chat, asked[-1].system, asked[-1].options) == (None, "", {})


def test_greedy_is_one_sample(data, tmp_path, monkeypatch):
    asked, _ = request(data, monkeypatch, temperature=0.0)
    assert asked.evaluate(fake_policy(), tmp_path / "out")["benchmarks"]["gsm8k"]["samples"] == 1
    with pytest.raises(EvaluationError, match="it must be one"):
        request(data, monkeypatch, temperature=0.0, samples=8)
