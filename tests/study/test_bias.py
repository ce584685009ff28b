"""The measured bias against the closed forms on outcomes of a known law, against plain loops, and from end to end."""

import json
import re

import numpy as np
import pytest

from equipoise import theory
from equipoise.cli import main
from equipoise.study import bias, bias_page, bias_text
from equipoise.study.bias import OPTIONS, PLAIN, Outcomes, measure


def outcomes(p, groups=4, G=8, samples=128, seed=0):
    """Prompts of these success rates, as a sampler would have answered them; lengths 1 to 99."""
    rng = np.random.default_rng(seed)
    p = np.asarray(p)
    shape = (len(p), groups, G)
    right = rng.random(shape) < p[:, None, None]
    return Outcomes(right, rng.integers(1, 100, shape), rng.random((len(p), samples)) < p[:, None], 0)


def weighted(estimates, bins):
    """The mean over bins, each weighing as much as it has informative groups."""
    pairs = [(e.value, b.groups) for e, b in zip(estimates, bins, strict=True) if e.value is not None]
    return np.average([v for v, _ in pairs], weights=[n for _, n in pairs])


def by_loops(data, turn, low, high):
    """Mean of p̂ − p, of p and of the closed form over the informative groups of the bin: r − p̂ in plain Python."""
    total, n = np.zeros(3), 0
    for i in range(len(data.groups)):
        known, truth = data.truth[i, turn::2].mean(), data.truth[i, 1 - turn :: 2].mean()
        if not (low <= known < high or known == high == 1.0):
            continue
        for group in data.groups[i]:
            if 0 < group.sum() < len(group):
                total += [group.mean() - truth, truth, theory.baseline_bias(truth, len(group))]
                n += 1
    return total, n


def test_the_plain_advantage_is_what_loops_say():
    data = outcomes(np.random.default_rng(1).random(60))
    for b in measure(data).bins:
        sums, counts = zip(*(by_loops(data, turn, b.low, b.high) for turn in (0, 1)), strict=True)
        n = sum(counts)
        assert b.groups == n / 2
        if n:
            assert [b.measured.value, b.success, b.closed_form] == pytest.approx(list(sum(sums) / n))


def test_measured_and_closed_form_agree_at_every_difficulty():
    result = measure(outcomes(np.repeat([0.03, 0.15, 0.35, 0.6, 0.85, 0.97], 250)))
    assert all(bias_text.agrees(b) for b in result.bins)
    assert [b.measured.value > 0 for b in result.bins] == [True, True, True, False, False, False]


@pytest.mark.parametrize("p", [0.1, 0.3, 0.8])
def test_every_option_has_the_bias_enumeration_gives_it(p):
    """One success rate for all prompts: HA-DW's anchor is the batch's mean, and its bias that of reweighted_bias."""
    data = outcomes(np.full(1500, p), samples=256)
    result = measure(data)
    y = data.groups.mean()
    wanted = {
        (PLAIN, "right"): -theory.baseline_bias(p, 8),
        (PLAIN, "wrong"): -theory.baseline_bias(p, 8),
        (PLAIN, "scale_free"): theory.baseline_bias(p, 8),
        ("rloo", "scale_free"): theory.baseline_bias(p, 8),
        ("r − p̂, hadw", "right"): theory.reweighted_bias(1, p, 8, y, 1.3),
        ("r − p̂, hadw", "wrong"): theory.reweighted_bias(0, p, 8, y, 1.3),
        ("r − p̂, hadw", "scale_free"): theory.reweighted_baseline_bias(p, 8, y),
    }
    for (name, measured), value in wanted.items():
        assert weighted(result.options[name][measured], result.bins) == pytest.approx(value, abs=0.012)


def test_debias_with_a_known_history_leaves_little():
    result = measure(outcomes(np.repeat([0.05, 0.2, 0.5, 0.8, 0.95], 300), samples=512))
    for plain, found in zip(result.options[PLAIN]["right"], result.options["r − p̂, debias"]["right"], strict=True):
        if plain.value is not None and abs(plain.value) > 0.03:
            assert abs(found.value) < abs(plain.value) / 3


def test_a_prompt_is_not_its_own_excuse():
    """Every prompt has p = .3 and few further responses: bins are chance, and the bias must be the same in each.

    With one number for difficulty and truth, the lowest bin would show p̂ − p̃ of about +.25 and the highest −.2.
    """
    result = measure(outcomes(np.full(2000, 0.3), samples=16))
    for b in result.bins:
        if b.prompts > 100:
            assert b.measured.value == pytest.approx(theory.baseline_bias(0.3, 8), abs=0.03)


def test_shares_of_lucky_and_unlucky_groups():
    data = outcomes(np.random.default_rng(3).random(300), groups=2)
    p = data.truth.mean(1)
    lucky = [p[i] < 1 / 8 for i in range(300) for group in data.groups[i] if group.sum() == 1]
    unlucky = [p[i] > 7 / 8 for i in range(300) for group in data.groups[i] if group.sum() == 7]
    result = measure(data)
    assert (result.one_success.groups, result.one_success.share.value) == (len(lucky), pytest.approx(np.mean(lucky)))
    assert (result.one_failure.groups, result.one_failure.share.value) == (
        len(unlucky),
        pytest.approx(np.mean(unlucky)),
    )
    assert result.one_success.share.low < result.one_success.share.value < result.one_success.share.high


def test_intervals_cover():
    """The 95 % interval of r − p̂ holds the true bias in about 95 % of repetitions (60 prompts; 12 repetitions)."""
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(12):
        result = measure(outcomes(np.full(60, 0.35) + 0.1 * rng.random(60), seed=seed))
        b = max(result.bins, key=lambda b: b.groups)
        held += b.measured.low <= b.closed_form <= b.measured.high
    assert held >= 9


def test_nothing_to_measure_is_said_and_not_invented():
    result = measure(outcomes(np.zeros(10)))
    assert all(b.measured.value is None and b.closed_form is None for b in result.bins)
    assert "Too few mixed groups" in bias_text.verdict(result)
    assert bias_text.shares(result)[0] == "No group had exactly one success among 8."
    page = bias_page.page(result, "nothing")
    assert "Content-Security-Policy" in page
    assert "no bias to measure" in page
    assert "<table" not in page


def test_answers_that_the_verifier_cannot_read_are_said_to_be_so(tmp_path, capsys):
    """The embedded model ends with #60; the math verifier looks for a box."""
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(f'{{"prompt": "{a}+{a}=", "answer": "{2 * a}"}}\n' for a in range(11, 14)))
    options = ["--prompts", "2", "--groups", "1", "--group", "2", "--samples", "2", "--device", "cpu"]
    main(["bias", "abacus", "--task", str(data), *options, "--out", str(tmp_path / "out")])
    said = " ".join(capsys.readouterr().out.split())
    assert "Of all responses: 100.0 % unparsed." in said
    assert "found no answer in most responses: --task.suffix" in said
    assert "r − p̂" not in said  # no tables of dashes


def test_the_command_measures_the_embedded_model(tmp_path, capsys):
    out = tmp_path / "out"
    command = ["bias", "abacus", "--prompts", "12", "--groups", "2", "--samples", "16", "--device", "cpu"]
    main([*command, "--out", str(out)])
    said = capsys.readouterr().out
    assert "E[p̂|S] − p" in said
    record = json.loads((out / "bias.json").read_text())
    assert record["prompts"] == 12
    assert set(record["options"]) == set(OPTIONS)
    page = (out / "bias.html").read_text()
    assert page.count("<svg") == 1 + len(OPTIONS)
    assert not re.search(r"[> (]-[\d.]", page[page.index("<body>") :])  # numbers have a minus, not a hyphen
    assert page.count('<th scope="row">') == 3 * len(OPTIONS)
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")
    assert "https://" not in page
    main([*command, "--out", str(out), "--json"])
    assert json.loads(capsys.readouterr().out) == record  # the draws are seeded


def test_a_task_with_too_few_prompts_says_how_many(tmp_path):
    data = tmp_path / "two.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+2=", "answer": "4"}\n')
    with pytest.raises(SystemExit) as error:
        main(["bias", "abacus", "--task", str(data), "--prompts", "50", "--out", str(tmp_path / "out")])
    assert error.value.code == 1


def test_the_task_takes_the_options_of_a_configurations_task(tmp_path, capsys, monkeypatch):
    """Other columns and a suffix make the same prompts, and so the same numbers, as a file that needs neither."""
    sums = [f"{a}+{b}" for a in range(2, 8) for b in range(3, 6)]
    asked = []
    real = bias.sample

    def sample(policy, sampler, task, prompts, **options):
        asked.append([(prompt.id, prompt.text, prompt.answer) for prompt in prompts])
        return real(policy, sampler, task, prompts, **options)

    monkeypatch.setattr(bias, "sample", sample)
    plain, other = tmp_path / "plain.jsonl", tmp_path / "other.jsonl"
    plain.write_text("".join(json.dumps({"id": s, "prompt": f"{s}=", "answer": str(eval(s))}) + "\n" for s in sums))
    other.write_text("".join(json.dumps({"name": s, "question": s, "value": str(eval(s))}) + "\n" for s in sums))
    options = ["--prompts", "3", "--groups", "1", "--group", "2", "--samples", "2", "--device", "cpu", "--json"]
    columns = '{prompt = "question", answer = "value", id = "name"}'
    found = []
    for name, more in ((plain, []), (other, ["--task.columns", columns, "--task.suffix", "="])):
        main(["bias", "abacus", "--task", str(name), *more, *options, "--out", str(tmp_path / "out")])
        found.append(json.loads(capsys.readouterr().out))
    assert found[0].pop("task") != found[1].pop("task")
    assert found[0] == found[1]
    assert asked[0] == asked[1]
    assert all(text.endswith("=") for _, text, _ in asked[1])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--task.colums", "{}"], "did you mean"),
        (["--task.template", "hadv"], "hadw"),
        (["--task.columns", '{prompt = "nothing"}'], "nothing"),
        (["--task.suffix", " Think.", "--prompts", "2"], "abacus's tokenizer cannot read '"),
    ],
)
def test_an_option_that_is_none_of_the_tasks_is_one_sentence(tmp_path, capsys, arguments, sentence):
    data = tmp_path / "six.jsonl"
    data.write_text("".join(f'{{"prompt": "{a}+1=", "answer": "{a + 1}"}}\n' for a in range(6)))
    with pytest.raises(SystemExit) as error:
        main(["bias", "abacus", "--task", str(data), *arguments, "--out", str(tmp_path / "out")])
    assert error.value.code == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_the_embedded_models_bias_is_the_closed_forms(tmp_path):
    main(["bias", "abacus", "--device", "cpu", "--out", str(tmp_path)])
    bins = json.loads((tmp_path / "bias.json").read_text())["bins"]
    known = [b for b in bins if b["closed_form"] is not None and b["prompts"] >= 10]
    inside = [b["measured"]["low"] <= b["closed_form"] <= b["measured"]["high"] for b in known]
    assert len(known) >= 4
    assert sum(inside) >= len(known) - 1
