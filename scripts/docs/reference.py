"""Pages of the reference, as Markdown, made of the code: public names, configuration, commands, metrics.

The sentences are those of the code (docstrings, the sentence under an option, the help of an argument), so a page
cannot say something else. The plug-ins of other engines are read and not imported: their engines need not be there. Not
covered: names that neither a package nor a plug-in lists in its `__all__`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import equipoise
from equipoise.arguments import build_parser
from equipoise.config import Config
from equipoise.config.errors import help_of, options_of
from equipoise.config.sft import SftConfig
from equipoise.report.metrics import METRICS
from equipoise.toml import toml

GENERATED = "*Made of the code when the site is built.*\n"
MARKUP = re.compile(r"(?<!\*)\*(?!\*)|[_<\[]")  # of Markdown; ** is meant
WIDTH = 90  # characters of a signature that stays on its line
FIRST = "equipoise"  # its names are those of the library; the packages follow
PLUGINS = f"{FIRST}.integrations"
SOURCE = Path(equipoise.__file__).parent


def pages() -> dict[str, str]:
    """Path under `reference/` → Markdown."""
    return {
        "configuration.md": configuration(),
        "commands.md": commands(),
        "metrics.md": metrics(),
        **{f"{package}.md": names(package) for package in (FIRST, *public_packages())},
        f"{PLUGINS}.md": plugins(),
    }


def public_packages() -> list[str]:
    """The packages with an `__all__`; those that are reached by name from the library come first."""
    inside = [f"{FIRST}.{module.name}" for module in pkgutil.iter_modules([str(SOURCE)]) if module.ispkg]
    first = [f"{FIRST}.{name}" for name in equipoise.PACKAGES]
    listed = [package for package in inside if hasattr(importlib.import_module(package), "__all__")]
    return first + [package for package in listed if package not in first]


def configuration() -> str:
    lines = [
        "# Configuration\n",
        GENERATED,
        "A configuration is a TOML file with these sections. Every option can also be given on the command line, "
        "`--section.key value`. What a choice of `[objective]` takes is in [Objectives](../objectives.md).\n",
    ]
    for section, options in sections().items():
        lines.append(f"## [{section}]\n")
        if section in options_of(Config):
            lines += ["| option | default | what it is |", "|---|---|---|"]
        else:
            lines += ["Of `equipoise sft` alone.\n", "| option | default | what it is |", "|---|---|---|"]
        for key, option in options.items():
            lines.append(f"| `{key}` | {_default(section, option.default)} | {_cell(help_of(option))} |")
        lines.append("")
    return "\n".join(lines)


def sections() -> dict[str, dict[str, Any]]:
    """The options of every section, those of `equipoise train` first."""
    trained = options_of(Config)
    imitated = {name: options for name, options in options_of(SftConfig).items() if name not in trained}
    return {**trained, **imitated}


def _default(section: str, value: Any) -> str:
    if value is None:
        return "the preset's" if section == "objective" else "none"
    return f"`{toml(value)}`"


def commands() -> str:
    parser = build_parser()
    (choices,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    lines = ["# Commands\n", GENERATED, f"{parser.description}\n"]
    for name, command in choices.choices.items():
        lines += [f"## equipoise {name}\n", f"{_sentence(command.description)}\n"]
        if name == "train":
            lines.append("Every option of a [configuration](configuration.md) can be given as `--section.key value`.\n")
        lines += _arguments(command)
        if command.epilog:
            lines.append(f"{command.epilog}\n")
    return "\n".join(lines)


def _arguments(command: argparse.ArgumentParser) -> list[str]:
    """A table of a command's arguments, empty where it has none."""
    rows = []
    for action in command._actions:
        if action.dest == "help":
            continue
        called = ", ".join(action.option_strings) or (action.metavar or action.dest).upper()
        takes_value = bool(action.option_strings) and action.nargs != 0
        value = f" {action.metavar or action.dest.upper()}" if takes_value else ""
        help_text = (action.help or "") % {**vars(action), "prog": command.prog}
        rows.append(f"| `{called}{value}` | {_cell(help_text)} |")
    return ["| argument | what it is |", "|---|---|", *rows, ""] if rows else []


def metrics() -> str:
    lines = [
        "# Metrics\n",
        GENERATED,
        "A run writes a line of metrics per step. A word in capitals stands for a part of the name that differs "
        "between runs. A name that ends in `/last_update` is the same measure at the last optimizer step of a batch, "
        "where it has several. Some metrics are there only with the option that makes them. `equipoise sft` "
        "writes fewer: [its page](../sft.md) has them.\n",
    ]
    for file, table in METRICS.items():
        lines += [f"## {file}\n"]
        for family, members in _families(table).items():
            lines += [f"### {family}\n", "| metric | what it is |", "|---|---|"]
            lines += [f"| `{name}` | {_cell(table[name])} |" for name in members]
            lines.append("")
    return "\n".join(lines)


def _families(table: dict[str, str]) -> dict[str, list[str]]:
    """Metrics by what stands before their first stroke; those without one together, first."""
    families: dict[str, list[str]] = {"without a prefix": []}
    for name in sorted(table):
        family = f"{name.partition('/')[0]}/" if "/" in name else "without a prefix"
        families.setdefault(family, []).append(name)
    return families


def names(package: str) -> str:
    module = importlib.import_module(package)
    lines = [f"# {package}\n", GENERATED, docstring(module)]
    if package == FIRST:
        pages = {package: f"[{package}]({package}.md)" for package in public_packages()}
        by_name = [pages.pop(f"{FIRST}.{name}") for name in equipoise.PACKAGES]
        lines.append(f"These packages are reached by name, as `equipoise.theory`: {', '.join(by_name)}.\n")
        lines.append(f"These are imported: {', '.join(pages.values())}, and [the plug-ins]({PLUGINS}.md).\n")
    for name in sorted(module.__all__, key=str.lower):
        lines += _entry(name, getattr(module, name), module)
    return "\n".join(lines)


def plugins() -> str:
    """What other engines are given, engine by engine, from the source."""
    lines = [f"# {PLUGINS}\n", GENERATED, docstring(importlib.import_module(PLUGINS))]
    for name, module in listing_modules(SOURCE / "integrations"):
        lines += [f"## {PLUGINS}.{name}\n", prose(ast.get_docstring(module))]
        defined = {node.name: node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        for name in listed_names(module):
            lines += [f"### {name}\n", *_definition(defined[name])]
    return "\n".join(lines)


def listing_modules(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """Modules with an `__all__` below a folder, by their dotted names from there."""
    for path in sorted(folder.rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if listed_names(module):
            yield ".".join(path.relative_to(folder).with_suffix("").parts), module


def listed_names(module: ast.Module) -> list[str]:
    """`__all__` of a module that is not imported."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _definition(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    text = prose(ast.get_docstring(node))
    if isinstance(node, ast.FunctionDef):
        return [_code(f"{node.name}{_written(node)}"), text]
    methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
    bases = f"({', '.join(ast.unparse(base) for base in node.bases)})"
    made = f"\n{node.name}{_written(methods['__init__'], returned=False)}" if "__init__" in methods else ""
    lines = [_code(f"class {node.name}{bases}{made}"), text]
    for name, method in methods.items():
        if not name.startswith("_") and ast.get_docstring(method):
            lines += [f"#### {node.name}.{name}\n", _code(f"{name}{_written(method)}")]
            lines.append(prose(ast.get_docstring(method)))
    return lines


def _entry(name: str, value: Any, module: ModuleType) -> list[str]:
    lines = [f"## {name}\n"]
    if inspect.isclass(value):
        lines += [_code(f"class {name}{_signature(value)}"), docstring(value)]
        for member, function, is_property in _members(value):
            signature = _signature(function)
            shown = signature.replace("() ->", ":") if is_property else signature
            lines += [f"### {name}.{member}\n", _code(f"{member}{shown}"), docstring(function)]
    elif callable(value) and get_origin(value) is None:  # the name of a type is a value
        lines += [_code(f"{name}{_signature(value)}"), docstring(value)]
    else:
        lines.append(_value(value))
    return lines


def _defined(kind: type) -> dict[str, Any]:
    """What a class and those of its bases that are ours define."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith(FIRST)]
    return {name: member for base in ours for name, member in vars(base).items()}


def _members(kind: type) -> Iterator[tuple[str, Any, bool]]:
    """Public methods and properties that a class of ours defines and describes; and which of the two."""
    for name, member in _defined(kind).items():
        is_property = isinstance(member, property | cached_property)
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, function, is_property


def _signature(thing: Any) -> str:
    """As the source has it: annotations by the names they were written with."""
    function = _defined(thing).get("__init__", thing) if inspect.isclass(thing) else thing
    if not inspect.isfunction(function) or (function.__name__ == "__init__" and is_dataclass(thing)):
        return _called(thing)
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    return _written(definition, returned=function is thing)


def _written(definition: ast.FunctionDef, returned: bool = True) -> str:
    arguments = definition.args
    first = [*arguments.posonlyargs, *arguments.args][:1]
    if first and first[0].arg in ("self", "cls"):
        arguments.args = arguments.args[1:]
    kind = f" -> {ast.unparse(definition.returns)}" if definition.returns and returned else ""
    return _wrapped(ast.unparse(arguments), kind)


def _called(kind: Any) -> str:
    """The signature of a class without an `__init__` in its source."""
    try:
        text = str(inspect.signature(kind))
    except ValueError:  # an exception's, written in C
        return ""
    return _wrapped(re.sub(r"'([\w\[\], |.]+)'", r"\1", text).removesuffix(" -> None")[1:-1], "")


def _wrapped(arguments: str, returned: str) -> str:
    """A line, or a line for each argument where that is too long."""
    if len(arguments) + len(returned) <= WIDTH:
        return f"({arguments}){returned}"
    parts = re.split(r", (?=\*|\w+: |\w+=)", arguments)
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def docstring(thing: Any) -> str:
    return prose(inspect.getdoc(thing))


def prose(text: str | None) -> str:
    """Paragraphs as Markdown; what is indented, formulas and tables, and examples as they stand."""
    out = []
    for block in re.split(r"\n\s*\n", text or ""):
        lines = block.rstrip().splitlines()
        if len(lines) > 1 and set(lines[1]) == {"-"}:  # a heading of numpy's style
            out.append(f"**{lines[0]}**\n")
            lines = lines[2:]
        if not lines:
            continue
        verbatim = lines[0].startswith((" ", ">>>")) or any(re.search(r"\S {2,}\S|^ ", line) for line in lines)
        out.append(_code(textwrap.dedent("\n".join(lines)), "text") if verbatim else _plain("\n".join(lines)) + "\n")
    return "\n".join(out)


def _plain(text: str) -> str:
    """Roles of reStructuredText as code, and nothing that Markdown would take for its own."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    parts = re.split(r"(`[^`]*`)", text)  # every second one is code
    return "".join(part if k % 2 else MARKUP.sub(r"\\\g<0>", part) for k, part in enumerate(parts))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "A mapping with the keys " + ", ".join(f"`{key}`" for key in value) + ".\n"
    return _code(repr(value))


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```\n"


def _sentence(text: str | None) -> str:
    return f"{(text or '')[:1].upper()}{(text or '')[1:]}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
