"""Readers: the same rows from every kind of source, and a sentence with file and row for everything that is wrong."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.tasks import TaskError
from equipoise.tasks.data_files import open_rows
from equipoise.tasks.row_reader import RowError

from .rows_of import jsonl, parquet, sums

ROWS = sums(50)


def every(rows, spans=None):
    return list(rows.load(spans or [(0, rows.count)]))


@pytest.fixture
def source(tmp_path, request):
    """A name that opens `ROWS`."""
    kind = request.param
    if kind == "folder":
        for k in range(5):
            parquet(tmp_path / f"train-{k:05d}-of-00005.parquet", ROWS[10 * k : 10 * k + 10], group=3)
        parquet(tmp_path / "test-00000-of-00001.parquet", sums(5, 1000))
        return str(tmp_path)
    if kind == "glob":
        (tmp_path / "deep").mkdir()
        for k in range(2):
            jsonl(tmp_path / "deep" / f"part-{k}.jsonl", ROWS[25 * k : 25 * k + 25])
        return str(tmp_path / "*" / "part-*.jsonl")
    if kind in ("saved", "splits"):
        datasets = pytest.importorskip("datasets")
        table = datasets.Dataset.from_list(ROWS)
        if kind == "splits":
            table = datasets.DatasetDict(train=table, test=datasets.Dataset.from_list(sums(5, 1000)))
        table.save_to_disk(str(tmp_path / "saved"))
        return str(tmp_path / "saved")
    if kind == "hub":
        pytest.importorskip("datasets")
        (tmp_path / "owner").mkdir()
        parquet(tmp_path / "owner" / "train.parquet", ROWS)
        return f"hub:{tmp_path / 'owner'}::train"
    return str(jsonl(tmp_path / kind, ROWS) if "jsonl" in kind else parquet(tmp_path / kind, ROWS, group=7))


SOURCES = ["rows.jsonl", "rows.jsonl.gz", "rows.parquet", "folder", "glob", "saved", "splits", "hub"]


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_every_source_gives_the_rows_and_any_spans_of_them(source, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    rows = open_rows(source)
    assert rows.count == 50
    assert rows.size >= 50 * len("What is ")
    assert every(rows) == ROWS
    loaded = rows.load([(3, 9), (20, 21), (45, 50)])
    expected = ROWS[3:9] + ROWS[20:21] + ROWS[45:50]
    assert list(loaded) == expected
    assert [loaded[k] for k in range(len(loaded))] == expected
    labels = {rows.label(k, None) for k in range(50)}
    assert len(labels) == 50
    assert len({rows.where(k) for k in range(50)}) == 50


def test_a_row_is_named_by_its_file_and_place(tmp_path):
    for k in range(2):
        (tmp_path / f"{k}").mkdir()
        jsonl(tmp_path / f"{k}" / "rows.jsonl", sums(3))
    rows = open_rows(str(tmp_path))
    assert rows.where(4) == f"{tmp_path}/1/rows.jsonl, line 2"
    assert rows.label(4, None) == "1/rows.jsonl:2"
    assert rows.label(0, "a") != rows.label(3, "a")
    one = open_rows(str(tmp_path / "0" / "rows.jsonl"))
    assert (one.label(2, None), one.label(2, "a")) == ("3", "a")
    table = open_rows(str(parquet(tmp_path / "t.parquet", sums(9), group=4)))
    assert table.where(5) == f"{tmp_path}/t.parquet, row 6"


def test_blank_lines_windows_line_ends_and_a_missing_last_newline(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n \n{"a": 2}\n\n{"a": 3}')
    rows = open_rows(str(path))
    assert every(rows) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert [rows.where(k).rpartition(" ")[2] for k in range(3)] == ["1", "4", "6"]


@pytest.mark.parametrize(
    ("line", "label", "said"),
    [
        (b'{"a": "\xff"}', "not UTF-8", "byte 0xff at place 7 is not UTF-8"),
        (b'{"a": ', "not JSON", "not valid JSON"),
        (b"[" * 100_000, "not JSON", "nested too deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON", "not valid JSON"),
        (b"[1]", "not an object", "the row is [1], not an object"),
        (b'[{"prompt": "a"}]', "not an object", "write each object of the list on a line of its own"),
        (b"\x00", "not JSON", "not valid JSON"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_in_its_place(tmp_path, line, label, said):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 3}\n')
    first, second, third = every(open_rows(str(path)))
    assert (first, third) == ({"a": 1}, {"a": 3})
    assert isinstance(second, RowError)
    assert second.label == label
    assert said in str(second)


def test_text_of_a_table_that_is_not_utf_8(tmp_path):
    texts = pa.array([b"one", b"tw\xffo", b"three"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"problem": texts, "answer": [1, 2, 3]}), tmp_path / "rows.parquet")
    first, second, third = every(open_rows(str(tmp_path / "rows.parquet")))
    assert (first["problem"], third["problem"]) == ("one", "three")
    assert str(second) == "byte 0xff at place 2 of a text is not UTF-8"


def broken(tmp_path, how):
    """A name that cannot be opened, and what must be said."""
    whole = parquet(tmp_path / "rows.parquet", ROWS, group=10)
    data = whole.read_bytes()
    if how == "cut parquet":
        whole.write_bytes(data[: len(data) // 2])
    elif how == "empty parquet":
        whole.write_bytes(b"")
    elif how == "no rows":
        parquet(whole, [], schema=pa.schema([("problem", pa.string())]))
    elif how == "cut jsonl":
        path = jsonl(tmp_path / "rows.jsonl", ROWS)
        path.write_bytes(path.read_bytes()[:-10])
        return path
    elif how == "cut gzip":
        path = tmp_path / "rows.jsonl.gz"
        path.write_bytes(gzip.compress(json.dumps(ROWS[0]).encode() * 1000)[:-20])
        return path
    elif how == "not gzip":
        (tmp_path / "rows.jsonl.gz").write_bytes(b"hello")
        return tmp_path / "rows.jsonl.gz"
    elif how == "two kinds":
        jsonl(tmp_path / "rows.jsonl", ROWS)
        return tmp_path
    elif how == "empty folder":
        (tmp_path / "none").mkdir()
        return tmp_path / "none"
    elif how == "no match":
        return tmp_path / "x-*.parquet"
    elif how.startswith("missing"):
        return tmp_path / ("none.jsonl" if how == "missing lines" else "none.parquet")
    elif how == "disagree":
        parquet(tmp_path / "second.parquet", [{"problem": 7, "answer": "x"}])
        return tmp_path
    return whole


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cut parquet", "rows.parquet: cannot be read"),
        ("empty parquet", "rows.parquet: cannot be read"),
        ("no rows", "rows.parquet: has no rows"),
        ("cut jsonl", "rows.jsonl, line 50: not valid JSON"),
        ("cut gzip", "rows.jsonl.gz: cannot be read"),
        ("not gzip", "rows.jsonl.gz: cannot be read"),
        ("two kinds", "holds both rows.jsonl and rows.parquet"),
        ("empty folder", "there is no file of prompts (.jsonl, .jsonl.gz, .parquet)"),
        ("no match", "there is no file of prompts"),
        ("missing", "none.parquet: there is no such file"),
        ("missing lines", "none.jsonl: there is no such file"),
        ("disagree", "its files disagree about their columns"),
    ],
)
def test_a_source_that_cannot_be_opened_is_one_sentence(tmp_path, how, said):
    name = broken(tmp_path, how)
    with pytest.raises(TaskError) as error:
        every(open_rows(str(name)))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_row_group_names_its_first_row(tmp_path):
    path = parquet(tmp_path / "rows.parquet", sums(4000), group=1000)
    start = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 200] = b"\xff" * 200
    path.write_bytes(data)
    rows = open_rows(str(path))
    assert len(every(rows, [(0, 2000)])) == 2000
    with pytest.raises(TaskError, match=r"rows\.parquet, row 2001 and on \(row group 3\): cannot be read"):
        every(rows, [(2500, 2600)])


def test_a_file_that_became_shorter_is_refused(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", ROWS)
    rows = open_rows(str(path))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TaskError, match=r"line \d: the file has become shorter since it was opened"):
        every(rows)


def test_the_hub_without_its_package_names_the_extra(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r"needs datasets: pip install 'equipoise\[hub\]'"):
        open_rows("hub:owner/name")


def test_a_hub_name_that_is_not_there_is_one_sentence(monkeypatch, tmp_path):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(TaskError, match=r"hub:.*none: cannot be opened") as error:
        open_rows(f"hub:{tmp_path}/none")
    assert "\n" not in str(error.value)


def test_a_data_set_that_the_hub_does_not_have_is_refused_at_once(hub_asked):
    pytest.importorskip("datasets")
    with pytest.raises(TaskError, match=r"hub:owner/mistyped: cannot be opened: .* the hub has no such data set"):
        open_rows("hub:owner/mistyped")
    assert hub_asked == ["owner/mistyped"]


@pytest.mark.usefixtures("hub_nowhere")
def test_a_hub_that_is_not_reached_is_not_asked_again(capfd):
    pytest.importorskip("datasets")
    with pytest.raises(
        TaskError, match=r"no such folder here, and the hub cannot be reached \(.*\); .* a file that is here"
    ):
        open_rows("hub:owner/model")
    assert "Retrying" not in capfd.readouterr().err
