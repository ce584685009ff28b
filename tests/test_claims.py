"""What the pages claim of the objectives, computed: a page that says something else than the code does fails here."""

import ast
import inspect
import itertools
import math
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.objective.advantage import ADVANTAGES
from equipoise.objective.aggregation import AGGREGATIONS
from equipoise.objective.cancellation import CANCELLATIONS
from equipoise.objective.surrogate import SURROGATES

ROOT = Path(__file__).parent.parent


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def balances(credit, group, lengths):
    """The largest |Σ cT|/Σ|c|T and |Σ c|/Σ|c| of any group, in plain loops."""
    mass, exchange = 0.0, 0.0
    for g in set(group):
        rows = [i for i, other in enumerate(group) if other == g]
        c = [float(credit.coefficient[i]) for i in rows]
        pulled = [x * lengths[i] for x, i in zip(c, rows, strict=True)]
        if any(c):
            mass = max(mass, abs(sum(pulled)) / sum(map(abs, pulled)))
            exchange = max(exchange, abs(sum(c)) / sum(map(abs, c)))
    return mass, exchange


@pytest.mark.parametrize("cancellation", [c for c in CANCELLATIONS if c != "prefix"])
@pytest.mark.parametrize("rule", AGGREGATIONS)
def test_no_rule_has_both_balances_on_a_whole_group_but_both(rule, cancellation):
    """docs/formulas.md, §1. `prefix` weighs tokens, not responses: tests/objective/test_papers.py."""
    lengths = [4, 9, 12, 7, 3, 11, 4, 10]  # right and wrong responses overlap in length, so that `both` exists
    rewards, group = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0], ["a"] * 4 + ["b"] * 4
    objective = eq.Objective(aggregation=rule, cancellation=cancellation)
    mass, exchange = balances(objective.assign(rewards, group, lengths), group, lengths)
    assert (max(mass, exchange) < 1e-9) == (cancellation == "both")
    claimed = re.search(r"No rule of the table satisfies both on a whole group, nor does any `cancellation` but one: "
                        r"(.*?) leave mass imbalance\. `both`", page("docs/formulas.md"))  # fmt: skip
    named = re.findall("`(.*?)`", claimed[1])
    assert set(named) == set(CANCELLATIONS) - {"none", "both"}
    if cancellation in named:
        assert mass > 0.01


def test_the_readmes_example_shows_the_imbalance_that_the_signed_mean_hides():
    code = re.search(r"```python\n(import torch.*?)```", page("README.md"), re.S)[1]
    space = {"print": lambda *words, sep: None}
    exec(compile(code, "README.md", "exec"), space)
    credit, lengths = space["credit"], space["lengths"].tolist()
    per_group = []
    for rows in (range(4), range(4, 8)):
        pulled = [float(credit.coefficient[i]) * lengths[i] for i in rows]
        per_group.append(sum(pulled) / sum(map(abs, pulled)))
    assert statistics.fmean(per_group) == pytest.approx(0.0, abs=1e-6)  # what mass_balance would have said
    shown = re.search(r"^bias/mass_imbalance +(\S+)", page("README.md"), re.M)[1]
    assert f"{statistics.fmean(map(abs, per_group)):+.4f}" == shown


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def options_of(cell):
    """{option: default} of a cell such as `low` `high` (0.2, 0.2: …), `cap` (3)."""
    found = {}
    for names, values in re.findall(r"((?:`\w+` ?)+)\(([^();:]*)", cell):
        for name, value in zip(re.findall(r"`(\w+)`", names), values.split(", "), strict=False):
            found[name] = value.strip('"')
    return found


@pytest.mark.parametrize(
    ("heading", "table"), [("## 1. Advantage", ADVANTAGES), ("## 4. Aggregation", AGGREGATIONS),
                           ("## 5. Surrogate", SURROGATES)],
)  # fmt: skip
def test_the_options_and_defaults_of_the_page_are_the_codes(heading, table):
    """docs/objectives.md"""
    section = page("docs/objectives.md").split(heading)[1].split("\n## ")[0]
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
    documented = {re.match(r"`(\w+)`", row[0])[1]: options_of(row[2]) for row in rows if len(row) > 2}
    assert {name for name, f in table.items() if defaults(f)} <= set(documented)
    for name, options in documented.items():
        known = defaults(table[name])
        assert set(options) <= set(known), name
        for option, value in options.items():
            default = known[option]
            if isinstance(default, float) and re.match(r"[\d.]", value):  # else told in words
                assert float(value) == default, (name, option)
            elif isinstance(default, str | int):
                assert value == str(default), (name, option)


def test_hadws_released_code_by_the_options_the_page_gives():
    """A window that counts this batch, λ = 1.5, and the sample deviation: in plain loops over three batches."""
    text = page("docs/objectives.md")
    said = re.search(r"released with the paper is `(\{.*?\})` with `advantage=(\{.*?\})`", text)
    objective = eq.Objective(advantage=ast.literal_eval(said[2]), difficulty=ast.literal_eval(said[1]))
    rng, means = np.random.default_rng(0), []
    for _ in range(3):
        rewards = rng.integers(0, 2, size=12).astype(float)
        rewards[:4] = (1, 0, 0, 1)  # at least one mixed group
        means.append(rewards.mean())
        anchor, wanted = statistics.fmean(means[-10:]), []
        for group in rewards.reshape(3, 4):
            p = group.mean()
            sigma = statistics.stdev(group.tolist()) + 1e-6
            for r in group:
                A = (r - p) / sigma
                wanted.append(1.5 * math.exp(-np.sign(A) * np.sign(p - anchor) * abs(p - anchor)) * A)
        credit = objective.assign(rewards, np.arange(12) // 4, [5] * 12)
        assert credit.advantage.tolist() == pytest.approx(wanted, abs=1e-12)


def test_an_option_without_a_name_is_merged_into_the_presets_choice():
    """docs/objectives.md: a mapping without a name sets options and leaves the others; one with a name replaces."""
    sentence = next(line for line in page("docs/objectives.md").splitlines() if "without a name (`" in line)
    knob = re.search(r"without a name \(`(\w+)=(\{.*?\})`", sentence)
    merged = eq.Objective.preset("aspo", **{knob[1]: ast.literal_eval(knob[2])})
    before = eq.Objective.preset("aspo").surrogate.spec()
    assert merged.surrogate.spec() == {**before, **ast.literal_eval(knob[2])}
    replaced = eq.Objective.preset("aspo", surrogate={"name": "aspo", "high": 0.3}).surrogate.spec()
    assert replaced["low"] == defaults(SURROGATES["aspo"])["low"]


def test_gspos_ratio_is_a_geometric_mean_and_not_the_product_hadw_writes():
    assert "writes GSPO's ratio as a full product Πρ" in page("docs/objectives.md")
    log_ratio = torch.tensor([0.3, -0.1, 0.25, 0.05], dtype=torch.float64)
    old = torch.full((4,), -1.0, dtype=torch.float64)
    logp = (old + log_ratio).requires_grad_()
    objective = eq.Objective("reward", surrogate={"name": "gspo", "low": 1.0, "high": 99.0})
    credit = objective.assign([1.0], ["a"], [4])
    objective.loss(logp, old, credit, torch.zeros(4, dtype=torch.int64)).loss.backward()
    mean = math.exp(float(log_ratio.mean()))  # dJ/dlog π of each of T tokens with weight 1/T is s/T
    assert (-logp.grad).tolist() == pytest.approx([mean / 4] * 4, abs=1e-12)
    assert mean != pytest.approx(math.exp(float(log_ratio.sum())), rel=0.1)


def test_the_preset_dapo_is_a_loss_and_says_which_switches_it_leaves_off(tmp_path):
    from equipoise.train import load

    file = tmp_path / "dapo.toml"
    file.write_text('[objective]\npreset = "dapo"\n')
    config = load(file, [])
    off = {"rollout.dynamic_sampling": config.rollout.dynamic_sampling,
           "reward.overlong_buffer": config.reward.overlong_buffer}  # fmt: skip
    assert not any(off.values())
    for option, text in itertools.product(off, (eq.PRESETS["dapo"].source, page("docs/objectives.md"))):
        assert option in text
