"""The attack from end to end on toy verifiers: a planted hole is found, an exact verifier stands."""

import difflib
import json
import random
import re
import sys
import time

import pytest
from rich.console import Console

from equipoise import cli
from equipoise.config import ConfigError
from equipoise.study.redteam import alphabet, command, grammar, policy
from equipoise.study.redteam import attack as attacks
from equipoise.study.redteam.attack import Attack, make_problems, random_search
from equipoise.study.redteam.command import RedTeamRequest, redteam, replayed
from equipoise.study.redteam.replay import attacked, replay
from equipoise.study.redteam.target import Target, settled
from equipoise.train.folder import RunError
from equipoise.verifiers.workers import shared

TOY = '''
import re, time

def exact(prompt, response, row):
    """An integer in the last box, or nothing."""
    found = re.findall(r"\\\\boxed\\{(\\d+)\\}", response)
    return float(bool(found) and response.rstrip().endswith("}") and found[-1] == row["answer"]
                 and response.count("boxed") == 1)

def refusing(prompt, response, row):
    return 0.0

def holed(prompt, response, row):
    """The hole: whatever is approximately something is right."""
    return 1.0 if "≈" in response else exact(prompt, response, row)

def of_trl(prompts, completions, answer, **columns):
    return [float(text == gold) for text, gold in zip(completions, answer)]

def crashing(prompt, response, row):
    raise RuntimeError("no")
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toyverifier.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shared.close()  # workers take their import path when they start
    yield tmp_path
    shared.close()
    sys.modules.pop("toyverifier", None)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(policy, "STEPS", 2)
    monkeypatch.setattr(policy, "RESPONSES", 16)
    monkeypatch.setattr(attacks, "BATCH", 200)


@pytest.mark.parametrize("mark", ["\\boxed", "####"])
def test_an_edit_stays_within_the_alphabet_and_keeps_most_of_the_response(mark):
    draw = random.Random(0)
    first = f"{mark} the answer is x=⟨E⟩=⟨T⟩ so the final result equals ⟨T⟩"
    for _ in range(300):
        text = grammar.edited(first, draw)
        assert re.sub(alphabet.PATTERN, "", text, flags=re.DOTALL) == ""
        kept = difflib.SequenceMatcher(None, first, text).find_longest_match().size
        assert kept >= 8


def test_the_list_of_what_is_edited_stays_bounded(monkeypatch):
    monkeypatch.setattr(attacks, "MOST_EDITED", 3)
    accepted = ["a"]
    for text in "bcdefgh":
        attacks.keep(accepted, text, random.Random(0))
    assert len(accepted) == 3
    assert "h" in accepted


def test_a_planted_hole_is_found_minimised_written_and_replayed(toy):
    console = Console(file=open("terminal.txt", "w"), width=200)  # noqa: SIM115
    found = redteam(RedTeamRequest("toyverifier:holed", minutes=0, out=toy / "out"), console)
    console.file.close()
    assert found.clusters
    assert found.tried == {"random search": 200, "RL": 256}
    lines = [json.loads(line) for line in (toy / "out/exploits.jsonl").read_text().splitlines()]
    assert len(lines) == len(found.clusters)
    for line in lines:
        assert "≈" in line["minimal"]
        assert {"prompt", "response", "minimal", "truth", "verifier", "version", "why"} <= set(line)
        assert line["version"].startswith("toyverifier.py sha256 ")
    told = (toy / "terminal.txt").read_text()
    assert " for 0 min\n" in told
    assert "≈" in told
    assert json.loads((toy / "out/summary.json").read_text())["clusters"] == len(lines)
    page = (toy / "out/report.html").read_text()
    assert "<script" not in page
    assert "clusters of exploits" in page
    alive, count = replay(toy / "out/exploits.jsonl", "toyverifier:holed")
    assert len(alive) == count == len(lines)
    assert replay(toy / "out/exploits.jsonl", "toyverifier:exact") == ([], count)


def test_an_exact_verifier_stands(toy):
    found = redteam(RedTeamRequest("toyverifier:exact", minutes=0, out=toy / "out"), Console(file=open("t", "w")))  # noqa: SIM115
    assert not found.clusters
    assert found.tried["RL"] == 256
    assert (toy / "out/exploits.jsonl").read_text() == ""
    assert "No exploit found" in (toy / "out/report.html").read_text()
    said = (toy / "t").read_text()
    assert "no exploit in" in said
    assert "accepted nothing" not in said


def test_a_verifier_that_accepts_nothing_is_not_called_safe(toy):
    redteam(RedTeamRequest("toyverifier:refusing", minutes=0, out=toy / "out"), Console(file=open("t", "w")))  # noqa: SIM115
    assert "It accepted nothing at all" in (toy / "t").read_text()


def test_crashes_are_troubles_and_no_exploits(toy):
    attack = Attack(Target("toyverifier:crashing"), time.monotonic() + 600)
    random_search(attack, make_problems(4, 0, "\\boxed"), random.Random(0), time.monotonic())
    assert not attack.findings.clusters
    assert attack.findings.troubled["crashed"] == attack.findings.tried.total() > 0


def test_a_verifier_that_always_crashes_is_not_called_safe(toy):
    with pytest.raises(RunError, match="crashed on 456 of 456 responses"):
        redteam(RedTeamRequest("toyverifier:crashing", minutes=0, out=toy / "out"), Console(file=open("t", "w")))  # noqa: SIM115


def test_another_interpreter_and_another_path_serve_the_verifier(toy):
    (toy / "other").mkdir()
    (toy / "other/toyverifier.py").write_text("def exact(prompt, response, row):\n    print('noise')\n    return 1.0\n")
    near, far = Target("toyverifier:exact"), Target("toyverifier:exact", sys.executable, str(toy / "other"))
    asked = ("What is 1 + 1?", "\\boxed{3}", {"answer": "2"})
    assert near.submit(*asked).result() == 0.0
    assert far.submit(*asked).result() == 1.0
    assert near.version() != far.version()


@pytest.mark.parametrize("name", ["toyverifier:of_trl", "toyverifier.py:of_trl"])
def test_functions_of_trls_form_and_files_are_attacked_too(toy, name):
    target = Target(name)
    assert target.version().startswith("toyverifier.py sha256 ")
    row = {"answer": "2"}
    assert [settled(target.submit("1 + 1?", text, row)) for text in ("2", "3")] == [1.0, 0.0]


def test_rewards_pay_for_what_is_new(toy):
    (about,) = make_problems(1, 0, "\\boxed")
    attack = Attack(Target("toyverifier:holed"), time.monotonic() + 600)

    def paid(text):
        return attack.reward(about, attack.ask(about, text))

    assert paid("⟨E⟩ ≈ ⟨T+10⟩") == 1.0
    assert paid("⟨E⟩ ≈ ⟨T+1⟩") == pytest.approx(2**-0.5)
    assert paid("\\boxed{⟨T⟩}") == 0.0  # honest
    assert paid("nothing") == pytest.approx(0.1)
    assert paid("nothing") == pytest.approx(0.1 * 2**-0.5)
    (exploit,) = attack.findings.clusters.values()
    assert exploit.seen == 2


def test_a_users_judge_has_the_last_word(toy):
    attack = Attack(Target("toyverifier:holed"), time.monotonic() + 600, judged_by="toyverifier:holed")
    (about,) = make_problems(1, 0, "\\boxed")
    assert attack.reward(about, attack.ask(about, "≈")) == 0.0
    attack.judged_by = "toyverifier:exact"
    assert attack.reward(about, attack.ask(about, "≈")) == 1.0


@pytest.mark.parametrize(("name", "words"), [("maths", "is not known"), ("no_such_module:f", "cannot be imported")])
def test_a_verifier_that_is_not_there_is_a_sentence(name, words):
    with pytest.raises(ConfigError, match=words):
        Target(name).version()


def test_a_list_that_is_none_is_a_sentence(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": 1}\n')
    with pytest.raises(ConfigError, match=r"bad.jsonl, line 1: must be a JSON object with prompt"):
        replayed(tmp_path / "bad.jsonl", Target("arithmetic"))


def test_an_empty_list_is_no_test(tmp_path):
    (tmp_path / "list.jsonl").touch()
    with pytest.raises(ConfigError, match=r"list\.jsonl: holds no exploit"):
        replay(tmp_path / "list.jsonl", "math")


def test_a_list_is_replayed_against_the_verifier_it_was_found_against(toy, monkeypatch, capsys):
    """As the command on the path does it, whose import path has no working directory."""
    exploit = {"prompt": "p", "response": "≈", "minimal": "≈", "truth": 1, "why": "x", "verifier": "toyverifier:holed"}
    (toy / "list.jsonl").write_text(json.dumps(exploit) + "\n")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(toy))])
    with pytest.raises(SystemExit) as ended:
        cli.main(["redteam", "--replay", "list.jsonl"])
    assert ended.value.code == 1
    assert "1 of 1 exploits still work against toyverifier:holed" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["redteam", "--replay", "list.jsonl", "--verifier", "toyverifier:exact"])
    assert not ended.value.code
    (toy / "list.jsonl").write_text(json.dumps(exploit) + "\n" + json.dumps(exploit | {"verifier": "math"}) + "\n")
    with pytest.raises(ConfigError, match="found against math, toyverifier:holed"):
        attacked(toy / "list.jsonl")


def test_the_attacker_starts_again_when_nothing_is_new(toy, monkeypatch):
    """The first start ends for want of news after its second step, the second because the time is over."""
    monkeypatch.setattr(attacks, "PATIENCE", 2)
    over = iter([False, False, True])
    monkeypatch.setattr(Attack, "is_over", property(lambda self: next(over)))
    request = RedTeamRequest("toyverifier:exact", out=toy / "out")
    request.out.mkdir()
    attack = Attack(request.target, 0.0)
    assert command._train(request, attack, make_problems(8, 0, "\\boxed")) == 2
    assert attack.findings.tried["RL"] == 3 * 256
