"""Fingerprints: every byte of a small file counts, the ends and some of the middle of a large one."""

import json

import pytest

from equipoise.tasks import Arithmetic, Dataset, fingerprint
from equipoise.tasks.data_files import files_of

ROWS = [{"prompt": f"{a}+1=", "answer": a + 1} for a in range(40)]


def written(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_file_in_order_with_its_option(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    for name in ("b.jsonl", "a.jsonl"):
        written(folder / name, ROWS[: 20 if name == "a.jsonl" else 40])
    held_out, avoid = written(tmp_path / "test.jsonl"), written(tmp_path / "other.jsonl")
    task = Dataset(str(folder), held_out=str(held_out), avoid=[str(avoid)], dedupe=False)
    found = fingerprint.fingerprints(task, str(held_out), [str(avoid)])
    assert [(one["option"], one["file"]) for one in found] == [
        ("task.name", str(folder / "a.jsonl")),
        ("task.name", str(folder / "b.jsonl")),
        ("task.held_out", str(held_out)),
        ("task.avoid", str(avoid)),
    ]
    assert len({one["sha256"] for one in found}) == 2  # three of the files hold the same


def test_what_changed_is_named(tmp_path):
    file = written(tmp_path / "rows.jsonl")
    before = fingerprint.fingerprints(Dataset(str(file)))
    assert fingerprint.changed(before, before) is None
    written(file, ROWS[:-1])
    now = fingerprint.fingerprints(Dataset(str(file)))
    assert fingerprint.changed(before, now) == f"{file} (task.name) is not what it was"
    assert fingerprint.changed(before, [*before, *before]) == "task.name had 1 files and has 2 now"
    assert fingerprint.changed(before, [{**before[0], "file": "elsewhere.jsonl"}]) is None


@pytest.mark.parametrize("place", [0, 999, -1])
def test_the_ends_and_pieces_of_a_large_file_count(tmp_path, monkeypatch, place):
    monkeypatch.setattr(fingerprint, "WHOLE", 100)
    monkeypatch.setattr(fingerprint, "PIECES", 4)
    monkeypatch.setattr(fingerprint, "PIECE", 16)
    file = tmp_path / "large"
    content = bytearray(3000)
    file.write_bytes(content)
    before = fingerprint.of_file(file)
    content[place] = 1
    file.write_bytes(content)
    assert fingerprint.of_file(file) != before
    file.write_bytes(bytes(3001))
    assert fingerprint.of_file(file) != before


def test_a_task_without_files_is_known_by_its_stream():
    one, same, other = (fingerprint.fingerprints(Arithmetic(seed=seed)) for seed in (0, 0, 1))
    assert one == same
    assert fingerprint.changed(one, other) == "arithmetic (task.name) is not what it was"


def test_the_weights_of_a_mixture_are_no_glob():
    assert files_of("gym:chain_sum*2+gcd") == []
