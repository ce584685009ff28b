import numpy as np
import pytest

from equipoise.objective import Objective
from equipoise.report import difficulty
from equipoise.report.runs import read
from equipoise.report.samples import sample
from tests.report.folders import make_run

RNG = np.random.default_rng(0)
REWARD = (RNG.random(48) < 0.4).astype(float)
GROUP = np.repeat(np.arange(6), 8)
LENGTH = RNG.integers(3, 30, 48)
PAST = np.repeat([[1, 10, 2], [0, 0, 0], [9, 10, 1], [2, 4, 7], [0, 0, 0], [3, 10, 1]], 8, axis=0).astype(float)


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize(
    "spec", ["hadw", "debias", {"name": "hadw", "lam": 0.7, "anchor": "fixed", "threshold": 0.6},
             {"name": "hadw", "recentre": True}, "hadw_history"],
)  # fmt: skip
def test_phi_is_what_the_objective_multiplied_the_advantage_by(spec, advantage):
    weighed = Objective(advantage=advantage, difficulty=spec).assign(REWARD, GROUP, LENGTH, history=PAST)
    plain = Objective(advantage=advantage).assign(REWARD, GROUP, LENGTH)
    C = float(weighed.metrics["difficulty/anchor"])
    past = dict(zip(difficulty.NEEDED[1:], PAST.T.tolist(), strict=True))
    known = {"accuracy": REWARD.tolist(), "group": GROUP.tolist(), "advantage": weighed.advantage.tolist(), **past}
    phi = np.array(difficulty.phi({"preset": "grpo", "advantage": advantage, "difficulty": spec}, C, **known))
    product = phi * plain.advantage.numpy()
    assert product == pytest.approx(weighed.advantage.numpy(), abs=1e-12)


def test_over_time_gives_quantiles_of_every_logged_step(tmp_path):
    run = read(make_run(tmp_path / "run", steps=20, every=5, groups=8, size=8, difficulty="hadw"), "run")
    found = difficulty.over_time(run)
    assert found["steps"] == [1, 5, 10, 15, 20]
    for low, middle, high in (*found["positive"], *found["negative"]):
        assert 1.3 * np.exp(-1) <= low <= middle <= high <= 1.3 * np.exp(1)


def test_a_difficulty_of_another_version_leaves_its_weights_out(tmp_path):
    path = make_run(tmp_path / "run", steps=5, difficulty="hadw")
    config = (path / "config.toml").read_text()
    for other in ('"future"', '{ name = "hadw", eta = "x" }', '{ name = "hadw", unknown = 1 }', "3"):
        (path / "config.toml").write_text(config.replace('"hadw"', other))
        run = read(path, "run")
        assert difficulty.over_time(run)["steps"] == []
        assert "phi" not in sample(run, 10**6)[0][0]["responses"][0]


def test_a_run_without_difficulty_has_no_weights(tmp_path):
    run = read(make_run(tmp_path / "run", steps=5), "run")
    assert difficulty.name(run) == "none"
    assert difficulty.over_time(run)["steps"] == []
