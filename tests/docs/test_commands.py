"""Every `equipoise …` that a page shows can be typed: its command, arguments and options exist. Nothing is run."""

import re
import shlex
from pathlib import Path

import pytest

from equipoise.arguments import build_parser
from equipoise.cli import _without_overrides
from equipoise.config import Config, parse_overrides
from equipoise.config.errors import options_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(ROOT.glob("docs/**/*.md"))]
TAKES_CONFIGURATION = ("train", "compare", "export", "eval", "bias")


def shown(text):
    """Commands in fenced and indented blocks: up to two blanks and a comment, over lines that end in a stroke."""
    text = re.sub(r" *\\\n\s*", " ", text)
    for line in re.findall(r"^(?: {4}|(?:\S*/)?(?:torchrun [^\n]* -m )?)(equipoise .*)$", text, re.M):
        yield re.split(r"\s{2,}#|\s#\s|\s{3,}", line)[0].strip()


def commands():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.M | re.S)
        indented = re.findall(r"(?:^ {4}.*\n)+", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
        for block in [*blocks, *indented]:
            for command in shown(block):
                yield pytest.param(command, id=f"{page.name}: {command[:60]}")


FOUND = list(commands())


def test_there_are_many():
    assert len(FOUND) > 50


@pytest.mark.parametrize("command", FOUND)
def test_a_command_can_be_typed(command):
    arguments = shlex.split(command.replace("…", "").replace("'{prompt = ...}'", "'{prompt = \"x\"}'"))[1:]
    words, overrides = _without_overrides(arguments)
    options, unknown = build_parser().parse_known_args([word for word in words if word != "--help"])
    assert unknown == []
    known = options_of(Config)
    for keys, _ in parse_overrides(overrides):
        assert options.command in TAKES_CONFIGURATION
        assert keys[1] in known[keys[0]], keys
