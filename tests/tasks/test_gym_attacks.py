"""Answers and rows that try to be scored without solving, to break out of the scorer, or to take the trainer with them.

Each hostile text is Python that the package's scorers would evaluate; the first test shows that they do.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.tasks import Dataset, gym, gym_grammar, scoring
from equipoise.tasks.gym import Gym, submit
from equipoise.verifiers.code import sandbox
from equipoise.verifiers.code.resident import Ended, Resident, packages
from equipoise.verifiers.code.sandbox import Late

from .rows_of import jsonl

reasoning_gym = pytest.importorskip("reasoning_gym")
NAMED_BY_REVIEW = (
    "spiral_matrix", "n_queens", "string_insertion", "binary_matrix", "countdown", "puzzle24", "simple_integration",
    "intermediate_integration", "polynomial_multiplication",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("sandboxed")


def entry_of(task, seed=3):
    for index in range(20):
        entry = gym.item(gym._dataset(task, "{}", seed), seed, index)
        if not gym_grammar.entry_refusal(task, entry):
            return entry
    raise AssertionError(task)


def settled(verdict):
    return verdict.result(timeout=900) if hasattr(verdict, "result") else verdict


def hostile(folder):
    """Texts that do something when evaluated, each with the name of what it would leave."""
    mark = folder / "mark"
    return {
        "write": f"open({str(mark)!r}, 'w').write('x')",
        "delete": f"__import__('shutil').rmtree({str(folder / 'checkpoint')!r})",
        "kill": f"__import__('os').kill({os.getpid()}, 15)",
        "kill parent": "__import__('os').kill(__import__('os').getppid(), 9)",
        "leave": f"__import__('os').system('sleep 77 && touch {mark} &')",
        "forge": "[__import__('os').write(n, b'x' * 99) for n in range(3, 40)]",
        "frames": "[x.f_locals for x in [__import__('sys')._getframe(n) for n in range(9)]]",
        "attribute": "().__class__.__base__.__subclasses__()",
        "format": "'{0.__class__}'.format(1)",
        "triple quotes": "'''1'1''' + [].__class__ + '''1'1'''",
        "comprehension": "[x for x in (1,)]",
        "walrus": "(a := 1)",
        "lambda": "(lambda: 1)()",
        "formula": "E.__class__(1)",
        "integral": "Integral(x, x)",
        "unicode name": "ｅxec('1')",
        "factorial": "factorial(10**10)",
        "index": "sin[0]",
    }


def test_the_scorers_of_the_package_evaluate_what_they_are_given(tmp_path):
    """Which is why no text of this kind may reach them."""
    mark = tmp_path / "mark"
    entry = entry_of("spiral_matrix")
    gym._dataset("spiral_matrix", "{}", 3).score_answer(hostile(tmp_path)["write"], entry)
    assert mark.exists()


@pytest.mark.parametrize("task", NAMED_BY_REVIEW)
def test_no_hostile_text_reaches_a_scorer_that_evaluates(task, tmp_path):
    entry = entry_of(task)
    for name, text in hostile(tmp_path).items():
        assert gym_grammar.refusal(task, text, entry) is not None, name
        verdict = settled(submit(entry, f"<answer>{text}</answer>"))
        assert (verdict.kind, verdict.value) == ("wrong", 0.0), name
    assert list(tmp_path.iterdir()) == []


def test_every_call_that_evaluates_text_in_the_package_is_known():
    """A new version with another eval must be looked at before it is used."""
    root = Path(reasoning_gym.__file__).parent
    words = ("eval(", "exec(", "parse_expr(", "sympify(", "subprocess", "pickle", "os.system")
    found = set()
    for path in root.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        if any(word in line for line in lines for word in words if not line.lstrip().startswith(("#", "def "))):
            found.add(path.stem)
    made_only = {"codeio", "basic_arithmetic", "generators_00_49", "generators_50_99"}  # while an item is made
    own_parser = {"propositional_logic"}  # a parse_expr of its own, without eval
    assert found == set(gym_grammar.EVALUATING) | made_only | own_parser


@pytest.mark.parametrize("task", sorted(gym_grammar.EVALUATING))
def test_references_pass_the_grammar_and_score_one(task):
    for index in range(2):
        entry = gym.item(gym._dataset(task, "{}", 11), 11, index)
        if gym_grammar.entry_refusal(task, entry):
            assert task == "intermediate_integration"
            continue
        assert gym_grammar.refusal(task, entry["answer"], entry) is None
        assert settled(submit(entry, f"<answer>{entry['answer']}</answer>")).value == 1.0


def test_lists_keep_the_credit_that_the_package_gives_them():
    entry = entry_of("spiral_matrix")
    listed = "[" + ", ".join(entry["answer"].split()) + "]"
    assert settled(submit(entry, f"<answer>{listed}</answer>")).value == 0.1


@pytest.mark.parametrize(
    ("task", "field"),
    [
        ("number_sorting", "answer"),
        ("polynomial_multiplication", "answer"),
        ("bitwise_arithmetic", "problem"),
        ("simple_integration", "integrand"),
        ("intermediate_integration", "integrand"),
    ],
)
def test_a_row_of_a_file_runs_nothing(task, field, tmp_path):
    entry = json.loads(json.dumps(entry_of(task)))
    mark = tmp_path / "mark"
    text = f"open({str(mark)!r}, 'w').write('x')"
    where = entry if field == "answer" else entry["metadata"]
    where[field] = text
    (prompt,) = Dataset(jsonl(tmp_path / "rows.jsonl", [entry])).train
    verdict = settled(gym.submit(prompt.meta["entry"], "<answer>['1']</answer>"))
    assert verdict.kind == "bad_gold"
    assert not mark.exists()


INSIDE = """
import json, os, signal, socket, sys, time
def warm(): pass
kept = []
def answer(request):
    how = request.decode()
    try:
        return json.dumps(attempt(how))
    except OSError as error:
        return json.dumps(f"refused {error.errno}")
def attempt(how):
    if how == "echo": return "echo"
    if how == "uid": return os.getuid()
    if how.startswith("read "): return open(how[5:]).read()
    if how.startswith("list "): return os.listdir(how[5:])
    if how == "write": return os.write(os.open("/tmp/mark", os.O_CREAT | os.O_WRONLY), b"x")
    if how == "fork":
        if os.fork() == 0: time.sleep(100)
        return "forked"
    if how == "socket": return str(socket.socket())
    if how == "signal first": return os.kill(1, 9)
    if how == "signal all": return os.kill(-1, 9)
    if how == "environment": return sorted(os.environ)
    if how == "spin":
        while True: pass
    if how == "sleep": time.sleep(1000)
    if how == "exit": os._exit(0)
    if how == "descriptors":
        return [n for n in range(64) if stat(n)]
    if how == "forge":
        for n in range(3, 64):
            try: os.write(n, b"0123456789abcdef0123456789abcdef done \\"forged\\"\\n")
            except OSError: pass
        return "late"
    if how == "keep": kept.append(1)
    if how == "kept": return len(kept)
    if how == "search":
        # The nonce of the request is 32 hex digits: no object of this process holds one.
        import gc, re
        found = [x for held in gc.get_objects() if isinstance(held, dict) for x in held.values()]
        return sum(bool(re.fullmatch(r"[0-9a-f]{32}", str(x))) for x in found if type(x) in (str, bytes))
    if how == "memory": return len(bytearray(1 << 40))
def stat(n):
    try: return bool(os.fstat(n))
    except OSError: return False
"""


@pytest.fixture(scope="module")
def resident(tmp_path_factory):
    """The sandbox of the scorers with hostile work in it: as if a text had passed the grammar and taken the process."""
    work = tmp_path_factory.mktemp("work") / "inside.py"
    work.write_text(INSIDE)
    there = Resident(str(work), packages())
    yield there
    there.close()


def ask(resident, how, seconds=5.0, *, alone=False):
    return json.loads(resident.ask(how.encode(), seconds, alone=alone))


def test_what_runs_in_the_sandbox_has_no_rights(resident, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o666)
    assert ask(resident, "echo") == "echo"
    assert ask(resident, "uid") == 65534
    assert len(ask(resident, "descriptors")) == 5  # null three times, and the two pipes to the first process
    for how in (f"read {secret}", "read /etc/passwd", "list /proc", "list /home", "write", "fork", "socket"):
        assert str(ask(resident, how)).startswith("refused"), how
    assert not {"PATH", "USER", "LOGNAME", "PYTHONPATH"} & set(ask(resident, "environment"))
    assert ask(resident, "search") == 0


@pytest.mark.parametrize("how", ["exit", "forge"])
def test_a_process_that_misbehaves_costs_its_own_request(resident, how):
    with pytest.raises(Ended):
        ask(resident, how)
    assert ask(resident, "echo") == "echo"


@pytest.mark.parametrize("how", ["signal first", "signal all"])
def test_a_signal_to_the_first_process_does_nothing(resident, how):
    with contextlib.suppress(Ended):
        ask(resident, how)
    assert ask(resident, "echo") == "echo"


def test_a_process_that_spins_or_sleeps_is_replaced(resident):
    ask(resident, "echo")
    for how in ("spin", "sleep"):
        with pytest.raises(Late):
            ask(resident, how, 0.1)
        assert ask(resident, "echo") == "echo"


def test_memory_is_bounded_and_nothing_stays_between_requests_asked_alone(resident):
    assert ask(resident, "memory") == ["limit", "out of memory", None]
    ask(resident, "keep", alone=True)
    assert ask(resident, "kept") == 0


def test_nothing_is_left_when_the_holder_is_killed(tmp_path):
    work = tmp_path / "inside.py"
    work.write_text(INSIDE)
    script = (
        "import sys, time\nfrom equipoise.verifiers.code.resident import Resident, packages\n"
        f"r = Resident({str(work)!r}, packages())\nr.ask(b'echo', 5.0)\nprint(r._guest.pid, flush=True)\n"
        "time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    inside = int(holder.stdout.readline())
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and Path(f"/proc/{inside}").exists():
        time.sleep(0.02)
    assert not Path(f"/proc/{inside}").exists()


def test_without_a_sandbox_no_answer_is_scored(monkeypatch):
    monkeypatch.setattr(sandbox, "available", lambda: "no namespaces here")
    gym._resident.cache_clear()
    job = json.dumps(["chain_sum", {}, gym.pack(entry_of("chain_sum")), "1"])
    verdict = gym.score_job(job, False, 1.0)
    gym._resident.cache_clear()
    assert (verdict.kind, verdict.reason) == ("unavailable", "no namespaces here")


def test_the_holder_believes_no_verdict_that_is_none(monkeypatch):
    class Liar:
        def ask(self, *_, **__):
            return self.said

    liar = Liar()
    monkeypatch.setattr(gym, "_resident", lambda: liar)
    job = json.dumps(["chain_sum", {}, gym.pack(entry_of("chain_sum")), "1"])
    for said in ('["great", "", 1]', '["correct", "", 5]', "[1]", "x", "null", '["correct", "", "1"]'):
        liar.said = said
        assert gym.score_job(job, False, 1.0).kind == "crashed", said


def test_scoring_needs_nothing_of_this_package():
    """It runs where equipoise is not."""
    source = Path(scoring.__file__).read_text()
    assert "equipoise" not in "".join(line for line in source.splitlines() if line.startswith(("import", "from")))


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [("1+2*3", 7, [1, 2, 3]), ("(8-4)/ 3", (4, 3), [8, 4, 3]), ("-(2)", -2, [2])],
)
def test_exact_arithmetic(text, value, numbers):
    from fractions import Fraction

    expected = Fraction(*value) if isinstance(value, tuple) else Fraction(value)
    assert scoring.arithmetic(text) == (expected, numbers)


@pytest.mark.parametrize("text", ["2**3", "7//2", "1.5", "True", "x", "1 if 1 else 2", "~1", "'1'", ""])
def test_what_is_no_arithmetic_is_refused(text):
    with pytest.raises((ValueError, SyntaxError)):
        scoring.arithmetic(text)


def test_a_mixture_is_still_scored_by_its_own_tasks():
    task = Gym("countdown+spiral_matrix")
    for prompt in task.evaluation(2):
        assert settled(task.grade(prompt, f"Answer:\n{prompt.answer}")).value == 1.0
