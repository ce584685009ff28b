"""The examples of the pages print what the pages say they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(("page", "examples"), [("README.md", 2), ("docs/objectives.md", 1), ("docs/tour.md", 1)])
def test_the_examples_print_what_the_page_says(page, examples):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"```python\n((?:(?!```).)*?)```(?:(?!```).)*?```text\n(.*?)```", text, re.S)
    assert len(found) == examples
    for code, shown in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), {})
        said, shown = (re.sub(r"[-+]0\.0000\b", "0.0000", x).split() for x in (printed.getvalue(), shown))
        assert said == shown


def test_the_library_takes_ten_lines():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"## The library\n.*?```python\n(.*?)```", text, re.S)
    assert len([line for line in code.splitlines() if line.strip()]) == 10


def test_every_link_of_the_readme_leads_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_the_run_the_page_begins_with_is_at_a_rate_that_learns():
    """At 2e-3 the embedded model loses greedy accuracy, and the run asks whether its reward is being gamed."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (rate,) = re.findall(r"equipoise train examples/abacus\.toml .*--optim\.lr (\S+)", text)
    assert float(rate) <= 1e-3


def test_the_audit_compares_the_run_with_what_it_was_not_trained_with():
    """Beside itself an objective shows nothing: the page changes it where it trains."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (trained,) = re.findall(r"equipoise train examples/abacus\.toml .*--objective\.aggregation (\w+)", text)
    (against,) = re.findall(r"equipoise audit runs/abacus --against (\S+)", text)
    assert trained not in against.split(",")


def test_theory_and_rewards_are_there_by_name():
    import equipoise as eq

    assert eq.theory.baseline_bias(0.5, 8) == 0
    assert eq.verifiers.Verdict("correct").kind == "correct"
    with pytest.raises(AttributeError, match="no attribute 'teory'"):
        _ = eq.teory
