"""Logs as their writers leave them, in any order and any number of files; and what is refused, with its place."""

import csv
import json
from importlib import resources

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.audit import AuditError, from_table, main_text, measure, parse_columns, read
from equipoise.audit.readers import files

from .synthetic import Law

COLUMNS = Law().draw(24, seed=0, steps=2)


def jsonl(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def records(columns=COLUMNS):
    rows = [v.tolist() if isinstance(v, np.ndarray) else v for v in columns.values()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*rows, strict=True)]


def parquet(path, columns):
    pq.write_table(pa.table(columns), path)
    return path


def verl_dump(folder, columns=COLUMNS, uid=False, **extra):
    """What verl 0.9.1's `_write_generations` writes: STEP.jsonl with input, output, gts, score, step and extras."""
    folder.mkdir(exist_ok=True)
    for step in np.unique(columns["step"]):
        rows = np.flatnonzero(columns["step"] == step)
        entries = [
            {
                "input": f"user\n{columns['prompt_id'][i]}\nassistant\n", "output": "x" * int(columns["length"][i]),
                "gts": "42" if i % 2 else None, "score": float(columns["reward"][i]), "step": int(step),
                **({"uid": f"{columns['prompt_id'][i]}_{i % 8}_0"} if uid else {}), **extra,
            }
            for i in rows
        ]  # fmt: skip
        jsonl(folder / f"{step}.jsonl", entries)
    return folder


def numbers(audit):
    """Everything but where it came from."""
    return {k: v for k, v in audit.to_json().items() if k not in ("source", "unit", "notes", "columns")}


def test_every_kind_of_file_gives_the_same_audit(tmp_path):
    expected = measure(COLUMNS, "dapo")
    assert measure(parquet(tmp_path / "log.parquet", COLUMNS), "dapo") == expected
    assert measure(jsonl(tmp_path / "log.jsonl", records()), "dapo") == expected
    with open(tmp_path / "log.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, list(COLUMNS))
        writer.writeheader()
        writer.writerows(records())
    assert measure(tmp_path / "log.csv", "dapo") == expected
    assert numbers(measure(verl_dump(tmp_path / "verl"), "dapo")) == numbers(expected)


def write_csv(path, columns, encoding="utf-8"):
    with open(path, "w", newline="", encoding=encoding) as f:
        writer = csv.DictWriter(f, list(columns))
        writer.writeheader()
        writer.writerows(records(columns))
    return path


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    """Excel writes one: the column `step` behind it was no step, and two steps became one."""
    columns = {"step": COLUMNS["step"], **COLUMNS}
    expected = measure(columns, "dapo")
    assert len(expected.steps) == 2
    assert measure(write_csv(tmp_path / "log.csv", columns, "utf-8-sig"), "dapo") == expected
    lines = jsonl(tmp_path / "log.jsonl", records(columns)).read_text()
    (tmp_path / "log.jsonl").write_text(lines, encoding="utf-8-sig")
    assert measure(tmp_path / "log.jsonl", "dapo") == expected


def test_responses_of_several_lines_are_read_from_a_csv_file_of_any_size(tmp_path):
    columns = {name: COLUMNS[name] for name in ("prompt_id", "step", "reward")}
    columns["response"] = ['one "line"\n' * 40 * int(length) for length in COLUMNS["length"]]
    path = write_csv(tmp_path / "log.csv", columns)
    assert path.stat().st_size > 4 << 20  # several of the blocks that pyarrow reads
    assert numbers(measure(path, "dapo")) == numbers(measure(columns, "dapo"))


def test_flags_are_numbers_in_every_kind_of_file(tmp_path):
    flags = {"kept": [True] * len(COLUMNS["step"]), "reward": [bool(r) for r in COLUMNS["reward"]]}
    columns = {**COLUMNS, **flags}
    expected = measure(COLUMNS, "dapo")
    for path in (
        write_csv(tmp_path / "log.csv", columns),
        jsonl(tmp_path / "log.jsonl", records(columns)),
        parquet(tmp_path / "log.parquet", columns),
    ):
        assert numbers(measure(path, "dapo")) == numbers(expected)
        assert read(path).kept.all()


def test_decimals_are_numbers(tmp_path):
    decimal = pa.array(COLUMNS["reward"]).cast(pa.decimal128(6, 3))
    path = parquet(tmp_path / "log.parquet", {**COLUMNS, "reward": decimal})
    assert measure(path, "dapo") == measure(COLUMNS, "dapo")


@pytest.mark.parametrize("cut", ["length", "LENGTH", "TRUE", True, 1, 1.0])
def test_cut_at_the_limit_is_read_however_it_is_written(tmp_path, cut):
    columns = {name: values for name, values in COLUMNS.items() if name != "finish"}
    was_cut = np.arange(len(COLUMNS["step"])) % 5 == 0
    other = "stop" if isinstance(cut, str) else type(cut)(0)
    columns["finish"] = [cut if this else other for this in was_cut]
    for path in (write_csv(tmp_path / "log.csv", columns), parquet(tmp_path / "log.parquet", columns)):
        assert read(path).truncated.sum() == was_cut.sum()
        assert not read(path).notes


def test_words_for_the_end_that_nobody_knows_are_noted():
    columns = {**COLUMNS, "finish": ["max_tokens", "end_turn"] * (len(COLUMNS["step"]) // 2)}
    (note,) = from_table(columns).notes
    assert (
        note == 'no response counts as cut at the limit: finish says end_turn, max_tokens, and never "length" or true'
    )


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_order_names_and_files_change_nothing(seed, tmp_path_factory):
    rng = np.random.default_rng(seed)
    columns = {
        **COLUMNS,
        "tokens": [rng.integers(0, 2, 3).tolist() for _ in COLUMNS["step"]],
        "length": [3] * len(COLUMNS["step"]),
    }
    expected = measure(columns, "dapo", ["balanced", "balanced+prefix"])
    names = rng.permutation(1000)
    shuffled = records({**columns, "prompt_id": [int(names[int(p[1:])]) for p in columns["prompt_id"]]})
    rng.shuffle(shuffled)
    cuts = sorted(rng.integers(1, len(shuffled) - 1, 2).tolist())
    folder = tmp_path_factory.mktemp("split")
    files = []
    for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(shuffled)], strict=True)):
        if b > a:
            files.append(jsonl(folder / f"part{i}.jsonl", shuffled[a:b]))
    assert measure(files, "dapo", ["balanced", "balanced+prefix"]) == expected
    assert measure(folder, "dapo", ["balanced", "balanced+prefix"]) == expected
    assert measure(files[::-1], "dapo", ["balanced", "balanced+prefix"]) == expected


def test_groups_of_one_prompt_in_one_step_stay_apart_where_the_log_says_so(tmp_path):
    twice = {**COLUMNS, "group": COLUMNS["prompt_id"], "prompt_id": ["same"] * len(COLUMNS["step"])}
    audit = measure(twice, "dapo")
    assert (audit.overall.groups, audit.overall.prompts) == (24, 1)
    verl = measure(
        verl_dump(tmp_path / "verl", {**COLUMNS, "prompt_id": np.array(["same"] * len(COLUMNS["step"]))}), "dapo"
    )
    assert verl.overall.groups == 2  # one a step: the text alone cannot tell more
    uneven = measure({k: np.concatenate([v, v[:8]]) for k, v in COLUMNS.items()}, "dapo")
    assert "came twice in a step" in uneven.notes[0]
    keyed = tmp_path / "keyed"
    verl_dump(keyed, uid=True)
    whole = measure(keyed, "dapo")
    assert whole.overall.groups == 24
    with open(keyed / f"{COLUMNS['step'][0]}.jsonl", "a") as f:  # rows that verl fills a batch with are no responses
        for digit in "0a":
            row = {"input": "", "output": "x", "gts": None, "score": 0.0, "step": int(COLUMNS["step"][0])}
            f.write(json.dumps({**row, "uid": "pad" + 32 * digit}) + "\n")
    padded = measure(keyed, "dapo")
    assert numbers(padded) == numbers(whole)
    assert any("left out 2 rows" in note for note in padded.notes)


def test_columns_are_named_by_hand(tmp_path):
    path = parquet(tmp_path / "log.parquet", {
        "it": COLUMNS["step"], "problem": COLUMNS["prompt_id"], "right": COLUMNS["reward"],
        "tidy": 1 - COLUMNS["reward"], "n": COLUMNS["length"], "cut": COLUMNS["length"] > 1000,
    })  # fmt: skip
    roles = {"step": "it", "prompt": "problem", "length": "n", "finish": "cut"}
    with pytest.raises(AuditError, match="no column for prompt"):
        read(path)
    log = read(path, {**roles, "reward": "right"})
    assert log.truncated.sum() == (COLUMNS["length"] > 1000).sum()
    summed = read(path, {**roles, "reward": "right + 0.25*tidy"})
    assert sorted(set(summed.reward.tolist())) == [0.25, 1.0]
    with pytest.raises(AuditError, match="is not something the audit reads"):
        read(path, {"rewards": "right"})
    with pytest.raises(AuditError, match="has no column wrong, which columns name for reward"):
        read(path, {**roles, "reward": "wrong"})
    with pytest.raises(AuditError, match="x is not a weight"):
        read(path, {**roles, "reward": "x*right"})


def test_columns_on_a_command_line():
    assert parse_columns("reward=right+0.5*tidy, prompt=uid,") == {"reward": "right+0.5*tidy", "prompt": "uid"}
    for wrong in ("reward", "=right", "reward="):
        with pytest.raises(AuditError, match="ROLE=COLUMN"):
            parse_columns(wrong)


def test_text_is_counted_in_characters_or_in_a_tokenizers_tokens(tmp_path):
    texts = ["1+2=3", "14", "7", "7+7=14"]
    columns = {"prompt": [0, 0, 1, 1], "reward": [1, 0, 1, 0], "response": texts}
    log = from_table(columns)
    assert (log.unit, log.tokens) == ("characters", None)
    assert sorted(log.length.tolist()) == [1, 2, 5, 6]
    tokenizer = str(resources.files("equipoise") / "assets" / "abacus")
    log = from_table(columns, tokenizer=tokenizer)
    assert log.unit == "tokens"
    assert sorted(log.length.tolist()) == [1, 2, 5, 6]  # abacus reads characters
    assert len(log.tokens) == 14
    with pytest.raises(AuditError, match="tokenizer"):
        from_table(columns, tokenizer=str(tmp_path))


def test_conversations_are_read_by_what_they_say():
    chat = {
        "step": [1] * 4,
        "prompt": [[{"role": "user", "content": q}] for q in ("a", "a", "b", "b")],
        "completion": [[{"role": "assistant", "content": c}] for c in ("xx", "xxx", "x", "xxxx")],
        "right": [1.0, 0.0, 1.0, 0.0],
        "advantage": [0.7, -0.7, 0.7, -0.7],
    }
    for columns in (chat, pa.table(chat)):
        log = from_table(columns)
        assert (log.source, log.unit) == ("TRL", "characters")
        by_prompt = {tuple(sorted(log.length[log.prompt == p].tolist())) for p in (0, 1)}
        assert by_prompt == {(2, 3), (1, 4)}


# The run directory


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The layout of a run directory, with two steps of rollouts."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    (folder / "rollouts").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for step in (2, 10):
        T = rng.integers(1, 9, 32)
        parquet(folder / "rollouts" / f"step-{step}.parquet", {
            "prompt_id": np.repeat([f"p{step}", "again", "again", "other"], 8), "prompt": ["?"] * 32,
            "response": ["!"] * 32, "tokens": [rng.integers(0, 3, n).tolist() for n in T], "length": T,
            "finish": np.where(T == 8, "length", "stop"), "reward": (rng.random(32) < 0.5) * 1.0,
            "verdict": ["correct"] * 32, "group": np.repeat(np.arange(4), 8), "level": ["1"] * 32,
            "advantage": np.zeros(32), "logprob_sum": np.zeros(32),
        })  # fmt: skip
    (folder / "config.toml").write_text(
        '[objective]\npreset = "dapo"\naggregation = "balanced"\ncombine = "rewards"\nkl = 0.0\n'
        "[reward]\nmask_truncated = false\n"
    )
    return folder


def test_a_run_directory_is_audited_with_its_own_objective(run):
    audit = measure(run)
    assert audit.objective == "balanced"
    assert audit.source == "equipoise"
    assert audit.choices["balanced"] == eq.Objective.preset("dapo", aggregation="balanced").choices()
    assert [m.step for m in audit.steps] == [2, 10]
    assert (audit.overall.groups, audit.overall.prompts) == (8, 4)  # "again" and "other" come in both steps
    assert audit.has_tokens
    assert measure(run / "rollouts") == audit
    assert measure([run / "rollouts" / "step-10.parquet", run / "rollouts" / "step-2.parquet"]) == audit
    assert measure(run, "grpo").objective == "grpo"


def test_masked_responses_have_no_length(run, tmp_path):
    copy = tmp_path / "masked"
    (copy / "rollouts").mkdir(parents=True)
    for f in (run / "rollouts").iterdir():
        (copy / "rollouts" / f.name).write_bytes(f.read_bytes())
    (copy / "config.toml").write_text((run / "config.toml").read_text().replace("= false", "= true"))
    plain, masked = read(run), read(copy)
    assert (masked.length == 0).sum() == plain.truncated.sum() > 0
    assert len(masked.tokens) == masked.length.sum() < len(plain.tokens)
    assert measure(copy).overall.log["truncated"] == measure(run).overall.log["truncated"]


def test_two_runs_are_not_one(run, tmp_path):
    other = tmp_path / "other" / "rollouts"
    other.mkdir(parents=True)
    (other / "step-2.parquet").write_bytes((run / "rollouts" / "step-2.parquet").read_bytes())
    with pytest.raises(AuditError, match="are both step 2: audit one run at a time"):
        read([run, other])


# What it says of the columns


def test_the_columns_that_were_read_are_told(tmp_path):
    path = parquet(tmp_path / "log.parquet", {
        "problem": COLUMNS["prompt_id"], "right": COLUMNS["reward"], "tidy": 1 - COLUMNS["reward"],
        "length": COLUMNS["length"],
    })  # fmt: skip
    columns = {"prompt": "problem", "reward": "right+0.25*tidy"}
    told = {"prompt": "problem", "reward": "right + 0.25*tidy", "length": "length", "step": "none, all one step"}
    assert measure(path, "dapo", columns=columns).columns == told
    page = " ".join(main_text([str(path)], "dapo", columns=columns).split())
    assert "Read: prompt = problem, reward = right + 0.25*tidy, length = length, step = none, all one step" in page


def test_a_column_passed_over_for_another_is_told():
    twice = {"prompt": [0, 0], "reward": [1, 0], "score": [0, 1], "length": [2, 3], "step": [1, 1]}
    assert from_table(twice).columns["reward"] == "reward (not score)"
    assert from_table(twice, {"reward": "score"}).columns["reward"] == "score"  # it was asked for


def test_text_among_the_rewards_of_trl_is_told(tmp_path):
    rows = {"step": [1] * 4, "prompt": list("aabb"), "completion": list("wxyz"), "right": [1.0, 0.0] * 2,
            "answer": ["42"] * 4, "advantage": [1.0, -1.0] * 2}  # fmt: skip
    log = read(parquet(tmp_path / "completions_00001.parquet", rows))
    assert log.columns["reward"] == "right (not answer)"
    assert log.columns["length"] == "completion"


def test_the_columns_of_a_run_of_ours_are_not_told(tmp_path):
    own = {"finish": ["stop"] * len(COLUMNS["step"]), "logprob_sum": [0.0] * len(COLUMNS["step"])}
    path = parquet(tmp_path / "step-1.parquet", {**COLUMNS, **own})
    assert "Read:" not in main_text([str(path)], "dapo")


# What is refused


@pytest.mark.parametrize(
    ("column", "row", "value", "said"),
    [
        ("reward", 3, float("nan"), r"log.jsonl, row 4, column reward: nan is not a finite number"),
        ("reward", 5, "good", r"log.jsonl, row 6, column reward: 'good' is not a number$"),
        ("reward", 5, "1.0", r"row 6, column reward: '1.0' is text, not a number: write it without quotes$"),
        ("length", 7, "12", r"row 8, column length: '12' is text, not a number: write it without quotes$"),
        ("reward", 2, None, r"log.jsonl, row 3, column reward: nan is not a finite number"),
        ("length", 7, -2, r"log.jsonl, row 8, column length: -2 is not a length"),
        ("length", 7, 2.5, r"log.jsonl, row 8, column length: 2.5 is not a length"),
        ("step", 1, -1, r"log.jsonl, row 2, column step: -1 is not a step"),
        ("prompt_id", 0, None, r"log.jsonl, row 1, column prompt_id: a prompt is missing"),
        ("prompt_id", 9, "alone", r"log.jsonl, row 10: the only response of its group in step 0 \(1 of 192"),
    ],
)
def test_a_bad_value_is_named_by_file_row_and_column(tmp_path, column, row, value, said):
    rows = records()
    rows[row][column] = value
    with pytest.raises(AuditError, match=said):
        read(jsonl(tmp_path / "log.jsonl", rows))


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_csv_file_with_another_separator_is_said_to_have_one(tmp_path, separator):
    (tmp_path / "log.csv").write_text(f"prompt{separator}reward{separator}length\n")
    with pytest.raises(
        AuditError, match=r"log\.csv: its columns must be separated by commas, and its first line has none"
    ):
        read(tmp_path / "log.csv")


def test_a_number_in_quotes_is_text_in_json_and_parquet_and_a_number_in_csv(tmp_path):
    rows = [{"prompt": "p", "reward": reward, "length": "3"} for reward in ("1.0", "0.0")]
    quoted = "".join('"{prompt}","{reward}","{length}"\n'.format(**row) for row in rows)
    (tmp_path / "log.csv").write_text("prompt,reward,length\n" + quoted)
    assert sorted(read(tmp_path / "log.csv").reward.tolist()) == [0.0, 1.0]  # in CSV everything is text
    table = {name: [row[name] for row in rows] for name in rows[0]}
    for path in (jsonl(tmp_path / "log.jsonl", rows), parquet(tmp_path / "log.parquet", table)):
        with pytest.raises(AuditError, match=r"row 1, column reward: '1\.0' is text, not a number"):
            read(path)


def test_rewards_may_be_a_categorical_column():
    rewards = pa.array([1.0, 0.0]).dictionary_encode()
    log = from_table(pa.table({"prompt": [0, 0], "reward": rewards, "length": [2, 3]}))
    assert sorted(log.reward.tolist()) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("prompt_id", None, "a prompt is missing"),
        ("tokens", [1, 2], "the token ids are missing"),
        ("response", "words", "the text is missing"),
    ],
)
def test_a_missing_value_of_a_parquet_file_is_named_by_its_row(tmp_path, column, value, said):
    columns = {name: values.tolist() for name, values in COLUMNS.items() if name != "length"}
    columns[column] = columns.get(column) or [value] * len(columns["reward"])
    columns.setdefault("response", ["words"] * len(columns["reward"]))
    columns[column][4] = None
    with pytest.raises(AuditError, match=rf"log.parquet, row 5, column {column}: {said}"):
        read(parquet(tmp_path / "log.parquet", columns))


def test_a_group_of_one_is_named_by_the_step_and_the_file_it_is_in(tmp_path):
    first, second = ([r for r in records() if r["step"] == step] for step in (0, 1))
    second[3]["prompt_id"] = "alone"
    files = [jsonl(tmp_path / f"{i}.jsonl", rows) for i, rows in enumerate((first, second))]
    with pytest.raises(AuditError, match=r"1.jsonl, row 4: the only response of its group in step 1 \(1 of 192"):
        read(files)


def test_the_row_counts_on_over_the_pieces_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROWS", 16)
    columns = {**COLUMNS, "reward": COLUMNS["reward"].copy()}
    expected = measure(COLUMNS, "dapo", [])
    assert measure(parquet(tmp_path / "good.parquet", columns), "dapo", []) == expected
    columns["reward"][100] = np.inf
    with pytest.raises(AuditError, match=r"log.parquet, row 101, column reward: inf is not"):
        read(parquet(tmp_path / "log.parquet", columns))
    with pytest.raises(AuditError, match=r"log.jsonl, row 101, column reward: inf is not"):
        read(jsonl(tmp_path / "log.jsonl", records(columns)))


def test_broken_files_are_sentences(tmp_path):
    whole = parquet(tmp_path / "whole.parquet", COLUMNS).read_bytes()
    cases = {
        "torn.parquet": whole[: len(whole) // 2],
        "empty.parquet": b"",
        "empty.jsonl": b"",
        "empty.csv": b"",
        "header.csv": b"prompt,reward,length\n",
        "torn.jsonl": b'{"prompt": 1, "reward": 1, "length": 3}\n{"prompt": 1, "rew',
        "list.jsonl": b"[1, 2]\n",
        "text.csv": b"prompt,reward,length\n1,good,3\n1,0,3\n",
        "latin.jsonl": '{"prompt": "é", "reward": 1, "length": 2}\n'.encode("latin-1"),
        "later.jsonl": b'{"prompt": 1, "reward": 1, "length": 3}\n{"prompt": 1, "reward": 1}\n',
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(AuditError, match=name) as caught:
            read(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(AuditError, match=r"torn.jsonl, row 2: not a JSON object"):
        read(tmp_path / "torn.jsonl")
    with pytest.raises(AuditError, match=r"later.jsonl, row 2: no column length"):
        read(tmp_path / "later.jsonl")
    with pytest.raises(AuditError, match="is empty"):
        read(tmp_path / "empty.jsonl")
    with pytest.raises(AuditError, match="does not exist"):
        read(tmp_path / "nothing")
    (tmp_path / "hollow").mkdir()
    with pytest.raises(AuditError, match="holds no"):
        read(tmp_path / "hollow")
    for name in ("config.toml", "metrics.jsonl", "eval.jsonl"):
        (tmp_path / "hollow" / name).write_text("{}\n")
    with pytest.raises(AuditError, match="hollow: the run wrote no rollouts"):
        read(tmp_path / "hollow")
    with pytest.raises(AuditError, match="no files"):
        read([])


def test_files_that_do_not_go_together_are_refused(tmp_path):
    base = {"prompt": [0, 0], "reward": [1, 0]}
    kinds = {
        "text": {**base, "response": ["ab", "a"]},
        "length": {**base, "length": [2, 1]},
        "tokens": {**base, "tokens": [[1, 2], [1]]},
        "finish": {**base, "length": [2, 1], "finish": ["stop", "length"]},
    }
    paths = {name: parquet(tmp_path / f"{name}.parquet", columns) for name, columns in kinds.items()}
    for one, other, said in (
        ("text", "length", "only text"),
        ("tokens", "length", "token ids"),
        ("length", "finish", "finish"),
    ):
        for pair in ((one, other), (other, one)):
            with pytest.raises(AuditError, match=said):
                read([paths[name] for name in pair])


def test_tables_that_do_not_fit_are_sentences():
    good = {"prompt": [0, 0], "reward": [1, 0], "length": [2, 3]}
    for change, said in (
        ({"length": [0, 0]}, "every response has length 0"),
        ({"reward": [1]}, "one entry per response"),
        ({"tokens": [[1, 2], [1]]}, "row 2, column length: 3 is not the number of tokens, 1"),
        ({"tokens": [[1, 2], "ab"]}, "not lists of token ids"),
        ({"length": ["a", "b"]}, "row 1, column length: 'a' is not a number"),
    ):
        with pytest.raises(AuditError, match=said):
            from_table({**good, **change})
    with pytest.raises(AuditError, match="no column for length"):
        from_table({"prompt": [0, 0], "reward": [1, 0]})
    with pytest.raises(AuditError, match="give paths, a pyarrow table or a mapping"):
        measure([1, 2], "dapo")


def test_a_tokenizer_has_the_names_that_models_have():
    """`abacus` is the embedded model's, not one of the hub."""
    columns = {"prompt": [0, 0], "reward": [1, 0], "response": ["1+2=3", "14"]}
    assert from_table(columns, tokenizer="abacus").unit == "tokens"
    with pytest.raises(AuditError, match=r"--tokenizer \./nowhere: .*nowhere is not there"):
        from_table(columns, tokenizer="./nowhere")


def test_text_a_tokenizer_cannot_spell_is_one_sentence():
    columns = {"prompt": [0, 0], "reward": [1, 0], "response": ["it is three", "14"]}
    with pytest.raises(AuditError, match=r"--tokenizer cannot read the responses, 'it is three' and on: .*model's own"):
        from_table(columns, tokenizer="abacus")
