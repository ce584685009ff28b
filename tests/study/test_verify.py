"""Cells trained again, beside the published ones."""

import pytest

from equipoise import cli
from equipoise.study import plan, results, verify
from equipoise.train import ConfigError, RunFolder
from equipoise.train.folder import append
from tests.study.test_registered import SMALL, leave_runs

SEEDS = {5: 0.50, 6: 0.52, 7: 0.51, 8: 0.49, **{9 + n: 0.50 for n in range(40)}, 49: 0.3}


@pytest.fixture
def publish(tmp_path):
    def published(name, seeds=SEEDS):
        file = tmp_path / f"{name}.toml"
        file.write_text(SMALL)
        study = plan.read(file)
        runs = leave_runs(study, tmp_path / "runs" / name, dict.fromkeys(study.variants, seeds))
        results.write_results(results.collect(study, runs, {}), tmp_path / f"{name}.json")
        return tmp_path / f"{name}.json"

    return published


@pytest.fixture
def trained(monkeypatch):
    """Runs that end at `value`, but for those that `fail`; what was asked for is kept."""
    asked = {}

    def pretend(value, fail=()):
        def train_all(configs, console, jobs, *, patient, weights):
            assert not weights
            assert patient == (len(configs) > 1)
            asked.update(configs)
            for name, config in configs.items():
                if name not in fail:
                    folder = RunFolder(config.train.out)
                    folder.path.mkdir(parents=True)
                    append(folder.eval, {"step": 4, "acc@8": value, "by_level": {"5": {"acc@8": value / 2}}})
            return dict.fromkeys(fail, "no such model")

        monkeypatch.setattr(verify, "train_all", train_all)
        return asked

    return pretend


def again(file, seed, out):
    return verify.verify(verify.cells([file], "token", seed, out))


def test_a_cell_lies_among_the_published_or_not(publish, trained, tmp_path, capsys):
    published = publish("study")
    trained(0.505)
    assert again(published, 6, tmp_path / "inside")
    said = " ".join(capsys.readouterr().out.split())
    assert "published 52 with this seed, 49.6 ±8.2 over 45 (99 % of single runs): inside" in said
    assert said.endswith("1 cell, 0 failed; measures: 2 inside")
    trained(0.52)
    assert again(published, 6, tmp_path / "same")
    assert "1 cell, 0 failed; measures: 2 the same to the digit" in capsys.readouterr().out
    trained(0.9)
    assert not again(published, 6, tmp_path / "outside")
    trained(0.31)  # the published run of that seed lies as far out
    assert again(published, 49, tmp_path / "rare")


def test_of_several_files_one_cell_each_is_drawn_the_same_at_every_call(publish, trained, tmp_path, capsys):
    files = [publish(name) for name in ("a", "b", "c", "d")]
    asked = trained(0.505)
    with pytest.raises(SystemExit) as ended:
        cli.main(["study", "verify", *map(str, files), "--out", str(tmp_path / "out")])
    assert ended.value.code == 0
    assert "4 cells, 0 failed; measures: 8 inside" in capsys.readouterr().out
    assert [config.train.out for config in asked.values()] == [str(tmp_path / "out" / name) for name in "abcd"]
    first, second = (verify.cells(files, None, None, tmp_path) for _ in range(2))
    assert first == second
    assert len({(cell.variant, cell.seed) for cell in first.values()}) > 1


def test_a_cell_that_cannot_be_trained_or_compared_is_said_and_the_others_are_still_compared(
    publish, trained, tmp_path, capsys
):
    files = [publish("a"), publish("b"), publish("alone", {5: 0.5})]
    asked = trained(0.505, fail=("a",))
    assert not verify.verify(verify.cells(files, None, None, tmp_path / "out"))
    assert list(asked) == ["a", "b"]
    said = capsys.readouterr().out
    assert "no such model" in said
    assert "one published run has no interval" in said
    assert said.endswith("3 cells, 2 failed; measures: 2 inside\n")


@pytest.mark.parametrize("named", [("token", None), (None, 5)])
def test_a_cell_is_named_by_both(publish, tmp_path, named):
    with pytest.raises(ConfigError, match="--variant and --seed together name a cell of one file"):
        verify.cells([publish("a")], *named, tmp_path)


def test_a_cell_of_several_files_or_of_no_variant_is_refused(publish, tmp_path):
    files = [publish("a"), publish("b")]
    with pytest.raises(ConfigError, match="of one file"):
        verify.cells(files, "token", 5, tmp_path)
    with pytest.raises(ConfigError, match='--variant "tokn" is not one of token, balanced'):
        verify.cells(files[:1], "tokn", 5, tmp_path)


def test_a_file_without_a_finished_run_and_two_files_called_alike_are_refused(publish, tmp_path):
    file = publish("a")
    with pytest.raises(ConfigError, match="two are alike"):
        verify.cells([file, file], None, None, tmp_path)
    with pytest.raises(ConfigError, match="no run of it is finished"):
        verify.cells([publish("empty", {})], None, None, tmp_path)
