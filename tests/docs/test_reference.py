"""The generated reference has every public name, option, metric and argument, each with its sentence."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

import equipoise
from equipoise.arguments import build_parser
from equipoise.config import Config
from equipoise.config.errors import options_of
from equipoise.config.sft import SftConfig
from equipoise.report.metrics import METRICS
from scripts.docs import reference

from .test_links import GENERATED


@pytest.fixture(scope="module")
def pages():
    return reference.pages()


def rows(page):
    """The first cell of each row of a page's tables, and the last."""
    found = re.findall(r"^\| `([^`]+)` \|(?:.*\|)? (.*?) \|$", page, re.M)
    return dict(found)


def test_the_pages_are_those_that_others_link_to(pages):
    assert set(pages) == {path.name for path in GENERATED}


def test_every_option_has_a_row(pages):
    page = pages["configuration.md"]
    assert {"train", "sft"} <= set(reference.sections())
    for section, options in (options_of(SftConfig) | options_of(Config)).items():
        (part,) = re.findall(rf"^## \[{section}\]\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        assert list(rows(part)) == list(options)
        assert all(rows(part).values())


def test_every_argument_of_every_command_has_a_row(pages):
    page = pages["commands.md"]
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        (part,) = re.findall(rf"^## equipoise {name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        documented = " ".join(rows(part))
        for action in command._actions:
            for flag in action.option_strings or [action.dest.upper()]:
                assert flag in documented or action.dest in ("help", "show_help"), (name, flag)
        assert "%(" not in part


def test_every_metric_has_a_row(pages):
    assert set(rows(pages["metrics.md"])) == {name for table in METRICS.values() for name in table}


def listing_packages():
    """Every package below src whose `__init__` has an `__all__`, by the source alone."""
    source = Path(equipoise.__file__).parent
    listing = [path.parent for path in source.rglob("__init__.py") if "\n__all__ = [" in path.read_text()]
    return sorted(".".join(("equipoise", *folder.relative_to(source).parts)) for folder in listing)


def test_every_package_that_lists_names_has_a_page(pages):
    assert {f"{package}.md" for package in listing_packages()} <= pages.keys()
    assert {"equipoise.train", "equipoise.rollout", "equipoise.kernels"} <= set(listing_packages())


@pytest.mark.parametrize("package", listing_packages())
def test_every_public_name_has_an_entry_that_says_something(pages, package):
    page = pages[f"{package}.md"]
    for name in importlib.import_module(package).__all__:
        (entry,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        sentence = re.sub(r"```python\n.*?```", "", entry, flags=re.S)
        is_value = not entry.startswith(("\n```python\nclass ", f"\n```python\n{name}("))
        assert is_value or len(sentence.split()) > 3, name
        assert entry.split(), name


def test_every_plug_in_has_its_names_on_a_page_without_its_engine(pages):
    page = pages["equipoise.integrations.md"]
    hosts = {path.parent.name for path in Path(equipoise.__file__).parent.glob("integrations/*/plugin.py")}
    assert hosts == {"trl", "verl", "tinker", "skyrl", "slime", "prime_rl"}
    for host in hosts:
        (part,) = re.findall(rf"^## equipoise.integrations.{host}.plugin\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        assert re.findall(r"^### (\w+)$", part, re.M), host
    assert "class EquipoiseGRPOTrainer(GRPOTrainer)\nEquipoiseGRPOTrainer(*args: Any, objective: str" in page
    assert "### forward_backward\n\n```python\nforward_backward(\n    client: Any,\n    objective: Objective,\n" in page


def test_signatures_are_written_as_in_the_source(pages):
    assert "mass_imbalance(m: ArrayLike, T_plus: ArrayLike," in pages["equipoise.theory.md"]
    assert "class Verdict(\n    kind: Kind,\n" in pages["equipoise.verifiers.md"]
    assert "class Credit(\n    advantage: Tensor,\n" in pages["equipoise.objective.md"]
    assert "\ncoefficient: Tensor\n" in pages["equipoise.objective.md"]
    assert "self" not in re.findall(r"```python\n(.*?)```", pages["equipoise.objective.md"], re.S)[0]


def test_a_docstring_keeps_what_is_laid_out_and_escapes_what_markdown_would_take():
    def example():
        """A c*·p̂ of a_b and `x_y`, **not** [1].

            Σ c = 0

        Examples
        --------
        >>> 1 + 1
        2
        """

    text = reference.docstring(example)
    assert r"A c\*·p̂ of a\_b and `x_y`, **not** \[1]." in text
    assert "```text\nΣ c = 0\n```" in text
    assert "**Examples**\n\n```text\n>>> 1 + 1\n2\n```" in text
