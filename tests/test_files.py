"""A file is there whole or not at all, whoever reads it and whatever interrupts its writer."""

import os

import pytest

from equipoise.files import not_there, whole


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_appears_when_it_is_finished(tmp_path, durable):
    path = tmp_path / "metrics.json"
    path.write_text("old")
    with whole(path, durable=durable) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text("old")

    def interrupted():
        with whole(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_a_writer_that_wrote_nothing_is_told(tmp_path):
    writer = whole(tmp_path / "x")
    writer.__enter__()
    with pytest.raises(FileNotFoundError):
        writer.__exit__(None, None, None)
    assert os.listdir(tmp_path) == []


def test_leftovers_of_a_killed_writer_are_written_over(tmp_path):
    with whole(tmp_path / "x") as temporary:
        left_behind = temporary
        temporary.write_text("1")
    left_behind.write_text("a much longer text of a writer that was killed")
    with whole(tmp_path / "x") as temporary:
        assert temporary == left_behind
        temporary.write_text("2")
    assert (tmp_path / "x").read_text() == "2"
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_that_is_not_there_is_named_with_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "abacus.toml").touch()
    assert not_there(tmp_path / "abacus.tml") == (
        f"{tmp_path}/abacus.tml: there is no such file; did you mean {tmp_path}/abacus.toml?"
    )
    assert not_there(tmp_path / "smollm.toml") == f"{tmp_path}/smollm.toml: there is no such file"
    monkeypatch.chdir(tmp_path)
    assert not_there("abacus.tml") == "abacus.tml: there is no such file; did you mean abacus.toml?"
    assert not_there("examples/abacus.toml") == (
        f"examples/abacus.toml: there is no such file; {tmp_path} has no folder examples"
    )
    assert not_there("smollm.toml") == f"smollm.toml: there is no such file in {tmp_path}"
    assert not_there("/nowhere/a.toml") == "/nowhere/a.toml: there is no such file; nor a folder /nowhere"
