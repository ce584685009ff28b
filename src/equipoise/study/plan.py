"""A study as it is written down: the file, what it trains, and what it will test.

    question = "…"                     seeds = [200, 215]
    [config.…]                         as for `equipoise train`
    [variants.NAME]                    dotted options each
    [dose]                             one number swept: option, key (inside a table, with `with`), values
    [start]                            a warm start shaped by what it imitates (`start`)
    rates = [2.5e-4, 5e-4, 1e-3]       every variant also at these learning rates; config.optim.lr is the shared one
    written = "after"                  the file was written after its runs, and its tables say so
    [[primary]]                        claim, metric, and plus − minus, or without them what the dose does

A primary may also say `at` (last, mean, jitter: which of the run's evaluations), `shape` (slope or
bend of the dose curve), `expect` (up, down: what the claim says), `margin` (the size that would
matter) and `rate = "own"` (each variant at its best rate). Only primaries are tested, with Holm's
correction over them; whatever else the results show is exploratory and is called so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.files import not_there
from equipoise.study import start
from equipoise.toml import toml
from equipoise.train import Config, ConfigError, load

NEEDED = {"question", "seeds", "config", "primary"}
KNOWN = NEEDED | {"variants", "dose", "start", "rates", "written"}
WRITTEN = ("before", "after")  # the runs
TIMES = ("last", "mean", "jitter")
SHAPES = ("slope", "bend")
EXPECTED = ("", "up", "down")
RATES = ("shared", "own")


@dataclass(frozen=True)
class Primary:
    """One effect named beforehand: `plus` − `minus`, or without them what the dose does.

    at      the metric of the last evaluation, its mean over all evaluations after the start, or its jitter
    shape   of the dose's effect: the slope, from the lowest dose to the highest; or the bend, how far the middle of the
            doses lies above the line through their ends,
            which a claim that a middle is best is about
    """

    claim: str
    metric: str
    plus: str = ""
    minus: str = ""
    at: str = "last"
    shape: str = "slope"
    expect: str = ""
    margin: float | None = None
    rate: str = "shared"

    @property
    def dosed(self) -> bool:
        return not self.plus


@dataclass(frozen=True)
class Dose:
    """`values` of one number: the option itself, or `key` of its table beside `others`."""

    option: str
    values: tuple[float, ...]
    key: str = ""
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.key or self.option.rpartition(".")[2]

    def variants(self) -> dict[str, dict[str, Any]]:
        return {self.variant(value): {self.option: self._set(value)} for value in self.values}

    def variant(self, value: float) -> str:
        return f"{self.name}={value:g}"

    def _set(self, value: float) -> Any:
        return {**self.others, self.key: float(value)} if self.key else float(value)


@dataclass(frozen=True)
class Study:
    question: str
    seeds: range
    config: dict[str, Any]  # sections of a configuration
    variants: dict[str, dict[str, Any]]  # name → dotted option → value; the dose's among them
    primary: list[Primary]
    dose: Dose | None = None
    start: dict[str, Any] | None = None
    rates: tuple[float, ...] = ()
    written: str = "before"

    def cells(self) -> list[tuple[str, float | None]]:
        """Of one seed: every variant at the shared rate (None), then at the others."""
        shared = self.config.get("optim", {}).get("lr")
        others = [rate for rate in self.rates if rate != shared]
        return [(name, rate) for rate in (None, *others) for name in self.variants]

    def configs(self, out: Path) -> dict[str, Config]:
        """Seed by seed: a study that is stopped half way has whole pairs."""
        found = {}
        for seed in self.seeds:
            for variant, rate in self.cells():
                name = cell_name(variant, rate, seed)
                found[name] = self.one(variant, seed, out / name, rate, out / "start")
        return found

    def one(
        self,
        variant: str,
        seed: int,
        out: Path,
        rate: float | None = None,
        start: Path | None = None,
    ) -> Config:
        options = {**_flat(self.config), **self.variants[variant]}
        options |= {"train.seed": seed, "train.out": str(out), "log.terminal": False}
        if rate is not None:
            options["optim.lr"] = rate
        if self.start is not None:
            options["model.name"] = str(start or out / "start")
        options.setdefault("train.threads", 1)
        return load(
            None, [part for key, value in options.items() for part in (f"--{key}", _text(value))]
        )


def cell_name(variant: str, rate: float | None, seed: int) -> str:
    return f"{at_rate(variant, rate)}/seed-{seed}"


def at_rate(variant: str, rate: float | None) -> str:
    return variant if rate is None else f"{variant}@{rate:g}"


def read(path: str | Path) -> Study:
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(not_there(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    return parse(table, str(path))


def parse(table: Mapping[str, Any], name: str) -> Study:
    """A study of a file's table; its results hold the same one."""
    odd = sorted((NEEDED - set(table)) | (set(table) - KNOWN))
    if odd or not {"variants", "dose"} & set(table):
        look = ", ".join(odd) or "variants, dose"
        raise ConfigError(
            f"{name}: a study must have {', '.join(sorted(NEEDED))} and variants or dose, and may have start "
            f"and rates: look at {look}"
        )
    first, last = table["seeds"]
    if not 0 <= first < last:
        raise ConfigError(
            f"{name}: seeds = [{first}, {last}] must be the first and the last of two or more"
        )
    dose = _dose(table["dose"], name) if "dose" in table else None
    variants = {**table.get("variants", {}), **(dose.variants() if dose else {})}
    primary = [_primary(row, variants, dose, name) for row in table["primary"]]
    if "start" in table:
        start.check(table["start"], name)
    rates = tuple(table.get("rates", ()))
    if rates and table["config"].get("optim", {}).get("lr") not in rates:
        raise ConfigError(
            f"{name}: rates = {list(rates)} must have config.optim.lr, the shared one, among them"
        )
    written = table.get("written", "before")
    if written not in WRITTEN:
        raise ConfigError(f'{name}: written = "{written}" must be one of {", ".join(WRITTEN)}')
    seeds = range(first, last + 1)
    return Study(
        table["question"],
        seeds,
        table["config"],
        variants,
        primary,
        dose,
        table.get("start"),
        rates,
        written,
    )


def of_results(results: Mapping[str, Any]) -> Study:
    return parse({key: value for key, value in results.items() if key != "runs"}, "results")


def _dose(table: Mapping[str, Any], name: str) -> Dose:
    odd = sorted(
        ({"option", "values"} - set(table)) | (set(table) - {"option", "values", "key", "with"})
    )
    if odd:
        raise ConfigError(
            f"{name}: dose must have option and values, and may have key and with: look at {', '.join(odd)}"
        )
    values = table["values"]
    if len(values) < 3 or sorted(set(values)) != list(values):
        raise ConfigError(
            f"{name}: dose.values = {values} must be three numbers or more, each above the one before"
        )
    if "with" in table and "key" not in table:
        raise ConfigError(
            f"{name}: dose.with has the other entries of a table: dose.key must say which one is swept"
        )
    return Dose(table["option"], tuple(values), table.get("key", ""), table.get("with", {}))


def _primary(
    row: Mapping[str, Any], variants: Mapping[str, Any], dose: Dose | None, name: str
) -> Primary:
    try:
        primary = Primary(**row)
    except TypeError as error:
        raise ConfigError(
            f"{name}: a primary has something it should not, or lacks something: {error}"
        ) from error
    if primary.dosed:
        if primary.minus or dose is None:
            raise ConfigError(
                f'{name}: "{primary.claim}" has no plus: then it needs a dose, and no minus'
            )
    else:
        for variant in (primary.plus, primary.minus):
            if variant not in variants:
                raise ConfigError(
                    f'{name}: "{variant}" is not one of the variants {", ".join(variants)}'
                )
    for key, known in (("at", TIMES), ("shape", SHAPES), ("expect", EXPECTED), ("rate", RATES)):
        if getattr(primary, key) not in known:
            shown = ", ".join(filter(None, known))
            raise ConfigError(
                f'{name}: {key} = "{getattr(primary, key)}" of a primary must be one of {shown}'
            )
    return primary


def table_of(study: Study) -> dict[str, Any]:
    """What `parse` takes to make the study again: plain enough for JSON."""
    swept = study.dose.variants() if study.dose else {}
    table: dict[str, Any] = {
        "question": study.question,
        "seeds": [study.seeds[0], study.seeds[-1]],
        "config": study.config,
        "variants": {
            name: options for name, options in study.variants.items() if name not in swept
        },
        "primary": [_without_defaults(row) for row in study.primary],
    }
    if study.dose:
        table["dose"] = {"option": study.dose.option, "values": list(study.dose.values)}
        table["dose"] |= (
            {"key": study.dose.key, "with": study.dose.others} if study.dose.key else {}
        )
    if study.start is not None:
        table["start"] = study.start
    if study.rates:
        table["rates"] = list(study.rates)
    if study.written != "before":
        table["written"] = study.written
    return table


def _without_defaults(row: Primary) -> dict[str, Any]:
    defaults = vars(Primary("", ""))
    return {key: value for key, value in vars(row).items() if value != defaults[key]}


def _flat(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, keys in sections.items()
        for key, value in keys.items()
    }


def _text(value: Any) -> str:
    """As an override on the command line has it: a text as it stands, anything else in TOML."""
    return value if isinstance(value, str) else toml(value)


def in_turn(studies: Sequence[tuple[str, Study, Path]]) -> dict[str, Config]:
    """The runs of several studies, seeds spread evenly: a time limit leaves whole seeds."""
    ranked = []
    for place, (stem, study, out) in enumerate(studies):
        for name, config in study.configs(out).items():
            share = (config.train.seed - study.seeds[0]) / len(study.seeds)
            ranked.append((share, place, f"{stem}/{name}" if stem else name, config))
    return {name: config for _, _, name, config in sorted(ranked, key=lambda entry: entry[:2])}
