"""A configuration from a TOML file and from `--section.key value`, and back: what is written can be run again."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from equipoise.config.config import Config, validated
from equipoise.config.errors import ConfigError, help_of, options_of
from equipoise.files import nearest, not_there
from equipoise.toml import toml

# Options that are texts, and what of TOML they take as it is.
TEXTS: dict[Any, Any] = {str: str, tuple[str, ...]: (str, list)}


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file (None: all defaults), apply `--section.key value` overrides, check, and return the whole."""
    config = validated(table_of(path, overrides, Config))
    config.reward.functions = tuple(located(name, path) for name in config.reward.functions)
    config.reward.judge = located(config.reward.judge, path)
    config.task.chat_template = chat_template(config.task.chat_template, folders_of(path))
    return config


def table_of(
    path: str | Path | None, overrides: Sequence[str], kind: type[BaseModel]
) -> dict[str, Any]:
    """The sections of a file with the overrides put in, not checked yet; `kind` knows which options are texts."""
    return _overridden({} if path is None else _read(Path(path)), overrides, kind)


def load_sections(path: str | Path, names: Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """Some sections of a file and the others' defaults: for what does not need them, and must not fail for them."""
    table = _read(Path(path))
    return validated(_overridden({name: table[name] for name in names if name in table}, overrides))


def _overridden(
    table: dict[str, Any], overrides: Sequence[str], kind: type[BaseModel] = Config
) -> dict[str, Any]:
    # A choice before its options, in whatever order they came: its name would replace the table they make.
    for keys, text in sorted(parse_overrides(overrides), key=lambda override: len(override[0])):
        _set(table, keys, _value(keys, text, kind))
    return table


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(not_there(path)) from None
    except IsADirectoryError:
        inside = path / "config.toml"
        hint = f"did you mean {inside}?" if inside.is_file() else "a configuration is a .toml file"
        raise ConfigError(f"{path}: is a folder; {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        hint = (
            ""
            if path.suffix == ".toml"
            else "; a configuration is a .toml file, and names its data as task.name"
        )
        raise ConfigError(f"{path}: not valid TOML: {error}{hint}") from error


def located(function: str, config: str | Path | None) -> str:
    """`file.py:function` with the file's whole path, so that the configuration a run keeps can be run anywhere: the
    file beside the configuration, else the one in the working directory."""
    file, _, attribute = function.rpartition(":")
    if not file.endswith(".py"):
        return function
    folders = folders_of(config)
    found = [path for folder in folders if (path := folder.resolve() / file).is_file()]
    if not found:
        places = " or ".join(dict.fromkeys(str(folder.resolve()) for folder in folders))
        near = [there.name for folder in folders if (there := nearest(folder / file, "*.py"))]
        hint = f"; did you mean {Path(file).with_name(near[0])}?" if near else ""
        raise ConfigError(f'[reward] "{function}": there is no file {file} in {places}{hint}')
    return f"{found[0]}:{attribute}"


def folders_of(config: str | Path | None) -> list[Path]:
    """Where a file that a configuration names may lie."""
    return [Path.cwd()] if config is None else [Path(config).parent, Path.cwd()]


def chat_template(value: str, folders: Sequence[Path]) -> str:
    """The text of a template, which may be given as the name of its file: a run's copy of the configuration then has
    the text, and needs no file. Every template has braces; a name of a file had better have none."""
    if not value or "{" in value:
        return value
    for folder in folders:
        if (folder / value).is_file():
            return (folder / value).read_text(encoding="utf-8")
    places = " or ".join(dict.fromkeys(str(folder.resolve()) for folder in folders))
    raise ConfigError(
        f'task.chat_template = "{value}": there is no such file, not in {places}, and it is no template'
    )


def parse_overrides(arguments: Sequence[str]) -> list[tuple[list[str], str]]:
    """`--a.b value` and `--a.b=value` as a path and a text each."""
    out: list[tuple[list[str], str]] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or "." not in key:
            raise ConfigError(
                f"{argument}: an override is --section.key value, for example --optim.lr 1e-3"
            )
        if not equals:
            if not rest:
                raise ConfigError(f"--{key}: the value is missing")
            text = rest.pop(0)
        out.append((key.split("."), text))
    return out


def _value(keys: Sequence[str], text: str, kind: type[BaseModel]) -> Any:
    """TOML where the text is TOML, else the text itself; so too for an option that is a text (a folder named 7)."""
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
    option = options_of(kind).get(keys[0], {}).get(keys[1]) if len(keys) == 2 else None
    kept = TEXTS.get(option.annotation, object) if option else object
    return value if isinstance(value, kept) else text


def _set(table: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set a value deep in a table; a choice given by name becomes a table when one of its options is set."""
    for key in keys[:-1]:
        inner = table.setdefault(key, {})
        if isinstance(inner, str):
            inner = table[key] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"--{'.'.join(keys)}: {key} is not a section")
        table = inner
    table[keys[-1]] = value


def dump(config: BaseModel) -> str:
    """The configuration as TOML, every option with its value, so that the file alone re-runs it."""
    lines = []
    for name, section in config:
        lines.append(f"[{name}]")
        lines += [f"{key} = {toml(value)}" for key, value in section if value is not None]
        lines.append("")
    return "\n".join(lines)


def describe(kind: type[BaseModel] = Config) -> str:
    """Every option with its default and its sentence, for `equipoise train --help`."""
    lines = []
    for section, options in options_of(kind).items():
        lines.append(f"[{section}]")
        for key, option in options.items():
            default = toml(option.default)
            if option.default is None:
                default = "the preset's" if section == "objective" else "none"
            lines.append(f"  --{section}.{key:22s} {help_of(option)} (default: {default})")
    return "\n".join(lines)
