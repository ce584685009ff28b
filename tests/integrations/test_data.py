"""Data sets and rollout logs into the hosts' files and back: the same prompts and references, the same audit."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.audit import measure
from equipoise.config import TaskConfig
from equipoise.integrations.data import export_data, export_rollouts, trl_row, verl_row, write_parquet
from equipoise.integrations.launch import ExportError
from equipoise.tasks import Prompt
from equipoise.tasks.problems import read_problems
from equipoise.train import Trainer
from tests.audit.test_read import numbers
from tests.train.tiny import make_model
from tests.train.tiny import settings as tiny

SCHEMAS = {
    "gsm8k": [{"question": f"How many are {i}?", "answer": f"It is so.\n#### {i:,}"} for i in (3, 1200)],
    "math": [{"problem": "Half?", "solution": r"So \boxed{\frac{1}{2}}.", "level": "Level 3", "unique_id": "a/1"}],
    "trl": [{"prompt": "What?", "answer": "blue"}, {"prompt": "And “this” Ω?", "answer": 7.0}],
    "chat": [{"prompt": [{"role": "system", "content": "Short."}, {"role": "user", "content": "2+2?"}], "label": "4"}],
    "verl": [{"data_source": "x", "prompt": [{"role": "user", "content": "3?"}], "ability": "math",
              "reward_model": {"style": "rule", "ground_truth": "3"}, "extra_info": {"index": 4, "split": "train"}}],
}  # fmt: skip
CODE = {
    "humaneval": [{"task_id": "H/0", "prompt": 'def f(x):\n    """x + 1"""\n', "entry_point": "f",
                   "test": "def check(candidate):\n    assert candidate(1) == 2\n"}],
    "mbpp": [{"task_id": 3, "text": "Add one.", "test_list": ["assert g(1) == 2", "assert g(2) == 3"]}],
}  # fmt: skip


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def said(name):
    """What our reader makes of every row: question, reference, messages, level."""
    return [(item.question, item.answer, item.messages, item.level) for _, item in read_problems(name)]


def one_message(messages, question):
    return messages or ({"role": "user", "content": question},)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_data_set_comes_back_from_verl_as_it_went(schema, tmp_path):
    source = jsonl(tmp_path / f"{schema}.jsonl", SCHEMAS[schema])
    export_data(TaskConfig(name=source), "verl", tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    for before, after in zip(said(source), said(str(tmp_path / "out.parquet")), strict=True):
        question, answer, messages, _ = before
        assert after[:2] == (question, answer)
        assert tuple(after[2]) == tuple(one_message(messages, question))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_data_set_comes_back_from_trl_as_it_went(schema, tmp_path):
    source = jsonl(tmp_path / f"{schema}.jsonl", SCHEMAS[schema])
    export_data(TaskConfig(name=source), "trl", tmp_path / "out.parquet")
    assert {"prompt", "answer"} < set(pq.read_table(tmp_path / "out.parquet").column_names)
    assert said(str(tmp_path / "out.parquet")) == said(source)


@settings(max_examples=50, deadline=None)
@given(
    question=st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    answer=st.text(st.characters(codec="utf-8", exclude_characters="#"), min_size=1, max_size=40),
)
def test_any_text_comes_back(question, answer, tmp_path_factory):
    source = jsonl(tmp_path_factory.mktemp("any") / "x.jsonl", [{"problem": question, "answer": answer}])
    try:
        before = said(source)
    except ValueError:
        return  # no answer that our reader takes
    for host in ("verl", "trl"):
        out = tmp_path_factory.mktemp("out") / "x.parquet"
        export_data(TaskConfig(name=source), host, out)
        assert [row[:2] for row in said(str(out))] == [row[:2] for row in before]


@pytest.mark.parametrize("schema", CODE)
def test_tests_of_code_come_back_from_verl(schema, tmp_path):
    from equipoise.verifiers.code.testcases import tests

    source = jsonl(tmp_path / f"{schema}.jsonl", CODE[schema])
    export_data(TaskConfig(name=source), "verl", tmp_path / "out.parquet")
    ((_, before),), ((_, after),) = read_problems(source), read_problems(str(tmp_path / "out.parquet"))
    assert (after.verifier, after.question) == ("code", before.question)
    assert tests(after.tests) == tests(before.tests)


def test_code_is_left_out_for_trl_with_the_reason(tmp_path):
    source = jsonl(tmp_path / "h.jsonl", CODE["humaneval"])
    with pytest.raises(ExportError, match=r"no row can be used: 1 not comparable \(H/0: TRL has no columns"):
        export_data(TaskConfig(name=source), "trl", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_bad_rows_are_left_out_and_counted(tmp_path):
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": None}, {"prompt": "", "answer": "2"}]
    source = jsonl(tmp_path / "x.jsonl", rows)
    told = export_data(TaskConfig(name=source), "verl", tmp_path / "out.parquet")
    assert "out.parquet: 1 rows; left out 1 no answer" in told
    assert "x.jsonl, line 2" in told
    assert said(str(tmp_path / "out.parquet")) == [("a", "1", ({"role": "user", "content": "a"},), None)]
    with pytest.raises(ValueError, match=r"task\.strict refuses it"):
        export_data(TaskConfig(name=source, strict=True), "verl", tmp_path / "other.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet", "x.jsonl"]


def test_the_options_of_a_task_reach_the_rows(tmp_path):
    rows = [{"q": "a", "a": "1"}, {"q": [{"role": "user", "content": "b"}], "a": "2"}]
    task = TaskConfig(name="", columns={"prompt": "q", "answer": "a"}, suffix=" Go.", verifier="math")
    for i, row in enumerate(rows):
        source = jsonl(tmp_path / f"{i}.jsonl", [row])
        export_data(TaskConfig(**{**vars(task), "name": source}), "trl", tmp_path / f"{i}.parquet")
    (text,), (chat,) = (pq.read_table(tmp_path / f"{i}.parquet").to_pylist() for i in range(2))
    assert (text["prompt"], text["answer"], text["verifier"]) == ("a Go.", "1", "math")
    assert chat["prompt"] == [{"role": "user", "content": "b Go."}]


def test_large_data_is_written_in_pieces_of_one_schema(tmp_path):
    """A level that only later rows have must not have become a column of nulls."""
    rows = [
        verl_row(Prompt(str(i), f"{i}?", str(i), "hard" if i > 5000 else None), "s", "train", i) for i in range(9000)
    ]
    assert write_parquet(iter(rows), tmp_path / "big.parquet") == 9000
    table = pq.read_table(tmp_path / "big.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in table] == [str(i) for i in range(9000)]
    assert table[8999]["extra_info"]["level"] == "hard"


@pytest.mark.parametrize(("first", "said"), [(1, "rows 1 to 4,096"), (4096, "rows 4,097 to 5,000")])
def test_rows_of_two_kinds_leave_nothing_behind(first, said, tmp_path):
    rows = [trl_row(Prompt("1", "a", "1"), chat=i >= first) for i in range(5000)]
    with pytest.raises(ExportError, match=f"{said} are not all of one kind, text or messages"):
        write_parquet(rows, tmp_path / "mixed.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_what_only_its_own_code_can_score_is_left_out(host, tmp_path):
    entry = {"question": "1 + 1 = ?", "answer": "2", "metadata": {"source_dataset": "chain_sum"}}
    source = jsonl(tmp_path / "gym.jsonl", [entry, entry])
    with pytest.raises(ExportError, match=r"2 not comparable \(.*reasoning-gym's own code scores it"):
        export_data(TaskConfig(name=source), host, tmp_path / "out.parquet")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of ours with rollouts of every step."""
    folder = tmp_path_factory.mktemp("run")
    model = make_model(folder / "model")
    Trainer(
        tiny(model, folder / "run", train__steps=3, eval__every=0, log__rollouts_every=1, log__terminal=False)
    ).run()
    return folder / "run"


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_an_audit_of_the_exported_rollouts_is_the_audit_of_the_run(host, run, tmp_path):
    told = export_rollouts(run, host, tmp_path / "log")
    assert told == f"{tmp_path / 'log'}: 48 responses of 3 steps"
    expected, found = measure(run, "dapo"), measure(tmp_path / "log", "dapo")
    assert numbers(found) == numbers(expected)
    assert (expected.source, found.source) == ("equipoise", {"trl": "TRL", "verl": "verl"}[host])
    assert expected.unit == found.unit == "tokens"


def test_the_columns_are_those_of_the_hosts(run, tmp_path):
    export_rollouts(run, "trl", tmp_path / "trl")
    export_rollouts(run, "verl", tmp_path / "verl")
    table = pq.read_table(tmp_path / "trl" / "completions" / "completions_00002.parquet")
    assert table.column_names[:5] == ["step", "prompt", "completion", "reward", "advantage"]
    ours = pq.read_table(run / "rollouts" / "step-2.parquet")
    assert table["completion"].to_pylist() == ours["response"].to_pylist()
    assert table["advantage"].to_pylist() == ours["advantage"].to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "verl" / "2.jsonl").read_text().splitlines()]
    assert list(lines[0])[:6] == ["input", "output", "gts", "score", "step", "uid"]
    assert [row["uid"] for row in lines[:5]] == ["0_0_0", "0_1_0", "0_2_0", "0_3_0", "1_0_0"]
    assert [row["score"] for row in lines] == ours["reward"].to_pylist()


def test_what_is_no_run_or_is_there_already_is_refused(run, tmp_path):
    with pytest.raises(ExportError, match=r"holds no rollouts/step-N\.parquet: train with --log\.rollouts_every 1"):
        export_rollouts(tmp_path, "trl", tmp_path / "out")
    with pytest.raises(ExportError, match='--to "tlr": must be trl or verl'):
        export_rollouts(run, "tlr", tmp_path / "out")
    export_rollouts(run, "verl", tmp_path / "out")
    with pytest.raises(ExportError, match=r"1\.jsonl: is there already"):
        export_rollouts(run, "verl", tmp_path / "out")
    (tmp_path / "bad" / "rollouts").mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "bad" / "rollouts" / "step-1.parquet")
    with pytest.raises(ExportError, match=r"step-1\.parquet: is no rollout file of ours"):
        export_rollouts(tmp_path / "bad", "trl", tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export_rollouts(run, "trl", tmp_path / "file" / "inside")
