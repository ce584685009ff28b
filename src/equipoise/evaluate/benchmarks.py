r"""The benchmarks of the papers by name: problems with references, and how they are graded.

    math500         the last box or `answer`; levels 1 to 5 and seven subjects
    aime24, aime25  whole numbers from 0 to 999
    amc23           whole numbers; the data writes them as floats (27.0), which is only notation
    minerva_math    the box of the worked solution; a number counts within 1 % of the reference, as its authors grade;
                    the unit is named by the question, so one behind the response's number is left
                    out
    olympiadbench   the text-only, open-ended English problems. `final_answer` is a list of one text; several answers in
                    it (`is_multiple_answer`) are a set: all of them, in any order. `unit` stands
                    behind the number or not; `error` is the absolute tolerance (one problem has
                    one)
    gsm8k           what follows "####"
    livecodebench, humaneval, mbpp    tests, run in the sandbox

Files are looked for in the folder given, as NAME.jsonl, .jsonl.gz or .parquet, there or in its
folders `benchmarks` and `code`; without a folder the data set comes from the hub. Two references
are rewritten because their notation cannot be read (`REWRITTEN`); their values stay.

Not covered: problems with images, proofs, and answers that only a model can judge.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from equipoise import verifiers
from equipoise.objective.choice import did_you_mean
from equipoise.tasks.data_files import KINDS
from equipoise.tasks.problems import read_problems
from equipoise.tasks.schema import Item
from equipoise.tasks.task import Prompt, TaskError
from equipoise.tasks.templates import TEMPLATES, Template
from equipoise.verifiers.code import judge
from equipoise.verifiers.math import exact
from equipoise.verifiers.math.notation import Unreadable, spell
from equipoise.verifiers.math.structure import Chain, Leaf, parse
from equipoise.verifiers.math.units import NO_UNIT
from equipoise.verifiers.verdict import Verdict

FOLDERS = ("benchmarks", "code", "")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a benchmark is on the hub, what is put around its questions, the most tokens a response
    is given where nobody says, the column that names a problem's subject, and the relative
    tolerance of numbers.
    """

    hub: str | None
    template: str
    max_tokens: int
    subject: str | None = None
    relative: Fraction = Fraction(0)


BENCHMARKS = {
    "math500": Source("HuggingFaceH4/MATH-500::test", "math", 4096, "subject"),
    "aime24": Source("HuggingFaceH4/aime_2024::train", "aime", 8192),
    "aime25": Source("math-ai/aime25::test", "aime", 8192),
    "amc23": Source("math-ai/amc23::test", "math", 4096),
    "minerva_math": Source(
        "knoveleng/Minerva-Math::train", "units", 4096, "type", Fraction(1, 100)
    ),
    "olympiadbench": Source(
        "Hothan/OlympiadBench:OE_TO_maths_en_COMP:train", "math", 4096, "subfield"
    ),
    "gsm8k": Source("openai/gsm8k:main:test", "gsm8k", 1024),
    # its loader on the hub is a script, which datasets no longer runs
    "livecodebench": Source(None, "program", 8192),
    "humaneval": Source("openai/openai_humaneval::test", "complete", 1024),
    "mbpp": Source("google-research-datasets/mbpp:full:test", "program", 1024),
}

# A reference as a benchmark has it, and the same value in notation that can be read.
REWRITTEN = {
    ("minerva_math", "np.arcsin(10/13)"): r"\arcsin(10/13)",
    ("olympiadbench", "t(0,4]"): "(0,4]",
}

# Units that the verifier of mathematics does not read:
# quoted names with ties, quotients and powers, and ångström.
NAME = r"(?:\\mu\s*)?\\(?:mathrm|text|textrm|operatorname)\s*\{[^{}]*\}|\\AA"
UNIT = re.compile(rf"(?:\\[ ,;:!]|~|\s|/|(?:{NAME})(?:\s*\^\s*\{{?-?\d\}}?)?)+$")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`source` is the file or hub name the problems came from; `text` is what a model is asked, as
    a user's message or, without `chat`, as something to continue.
    """

    name: str
    source: str
    prompts: tuple[Prompt, ...]
    template: Template
    chat: bool
    max_tokens: int

    def text(self, prompt: Prompt) -> str:
        return self.template.fill(prompt.text, self.chat)

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.chat else self.template.stop

    @property
    def votes(self) -> bool:
        """Whether responses have an answer others can give too; two programs never are the same."""
        return not any("tests" in prompt.meta for prompt in self.prompts)

    def grade(self, prompt: Prompt, response: str, rules: str = "strict") -> Future[Verdict]:
        """What stands behind a stop string is not part of the response.

        By the lenient rules an answer is read wherever it stands,
        as the graders of published scores do.
        """
        said = min((response.partition(mark)[0] for mark in self.stop), key=len, default=response)
        if "tests" in prompt.meta:
            return verifiers.submit_code(said, prompt.meta["tests"])
        answer_in = "auto" if rules == "strict" else "anywhere"
        verdict = verifiers.submit_math(
            said, prompt.answer, rules=rules, answer_in=answer_in, prompt=self.text(prompt)
        )
        if "tolerance" not in prompt.meta:
            return verdict
        return _then(verdict, lambda found: within(found, prompt.answer, prompt.meta["tolerance"]))


def open_benchmark(
    name: str, data: str | Path | None = None, *, chat: bool = True, limit: int | None = None
) -> Benchmark:
    """A benchmark's first `limit` problems. `data`: a folder or the file itself; None: the hub."""
    if name not in BENCHMARKS:
        raise TaskError(
            f'"{name}" is not a benchmark;{did_you_mean(name, BENCHMARKS)} ({", ".join(BENCHMARKS)})'
        )
    source = _found(name, data)
    try:
        items = read_problems(source)
    except TaskError as error:
        if data is None:
            raise TaskError(f"{name}: {error}; --data DIR takes its file from a folder") from error
        raise
    template = TEMPLATES[BENCHMARKS[name].template]
    prompts: dict[str, Prompt] = {}
    for id_, item in items[:limit]:
        if id_ in prompts:
            raise TaskError(
                f"{source}: two problems have the id {id_}: results are kept by id, so each must have its own"
            )
        prompts[id_] = _prompt(name, id_, item)
    return Benchmark(
        name, source, tuple(prompts.values()), template, chat, BENCHMARKS[name].max_tokens
    )


def unverifiable(benchmark: Benchmark) -> dict[str, str]:
    """Why, for the id of each problem whose reference no response can be graded against."""
    math = [prompt for prompt in benchmark.prompts if "tests" not in prompt.meta]
    found = dict(
        zip((p.id for p in math), verifiers.check_golds([p.answer for p in math]), strict=True)
    )
    for prompt in benchmark.prompts:
        if "tests" in prompt.meta:
            try:
                judge.tests(prompt.meta["tests"])
            except judge.TestsError as error:
                found[prompt.id] = str(error)
    return {id_: why for id_, why in found.items() if why is not None}


def within(verdict: Verdict, gold: str, tolerance: tuple[Fraction, Fraction]) -> Verdict:
    """`verdict`, or correct for numbers with |answer − gold| ≤ relative·|gold| + absolute."""
    relative, absolute = tolerance
    if verdict.kind not in ("wrong", "unparsed") or verdict.answer is None:
        return verdict
    said, right = number(verdict.answer), number(gold)
    if said is None or right is None or abs(said - right) > relative * abs(right) + absolute:
        return verdict
    reason = f"{verdict.answer[:60]} is within the tolerance of {gold[:60]}"
    return dataclasses.replace(verdict, kind="correct", reason=reason)


def number(text: str) -> Fraction | None:
    """The rational number that a text is, whatever its unit; None behind words that are none."""
    unit = UNIT.search(text)
    if unit and not NO_UNIT & set(re.findall(r"[a-z]+", unit.group().lower())):
        text = text[: unit.start()]
    try:
        leaf = parse(spell(text))
        if isinstance(leaf, Chain) and leaf.signs == ("=",) and number(leaf.texts[0]) is None:
            leaf = leaf.members[1]  # "v = 300": the name says nothing
        return exact.number(exact.value(leaf.text)) if isinstance(leaf, Leaf) else None
    except Unreadable:
        return None


def _prompt(name: str, id_: str, item: Item) -> Prompt:
    about, answer = BENCHMARKS[name], REWRITTEN.get((name, item.answer), item.answer)
    if name == "amc23":
        answer = answer.removesuffix(".0")
    meta: dict[str, object] = {}
    if about.subject is not None and item.meta.get(about.subject):
        meta["subject"] = str(item.meta[about.subject])
    if item.tests is not None:
        meta["tests"] = item.tests
    absolute = (
        Fraction(str(item.meta.get("error") or 0)) if name == "olympiadbench" else Fraction(0)
    )
    if about.relative or absolute:
        meta["tolerance"] = about.relative, absolute
    return Prompt(id_, item.question, answer, item.level, meta)


def _found(name: str, data: str | Path | None) -> str:
    hub = BENCHMARKS[name].hub
    if data is None:
        if hub is None:
            raise TaskError(
                f"{name}: cannot be loaded from the hub; get its JSONL files and name their folder: --data DIR"
            )
        return f"hub:{hub}"
    if Path(data).is_file():
        return str(data)
    places = [Path(data) / folder / f"{name}{kind}" for folder in FOLDERS for kind in KINDS]
    for place in places:
        if place.is_file():
            return str(place)
    looked = ", ".join(str(Path(data) / folder / name) for folder in FOLDERS)
    raise TaskError(
        f"{name}: there is no file of it in {data}: looked for {looked} with {', '.join(KINDS)}"
    )


def _then(future: Future[Verdict], change: Callable[[Verdict], Verdict]) -> Future[Verdict]:
    changed: Future[Verdict] = Future()

    def settle(done: Future[Verdict]) -> None:
        try:
            changed.set_result(change(done.result()))
        except BaseException as error:  # whoever waits for the verdict has to hear of it
            changed.set_exception(error)

    future.add_done_callback(settle)
    return changed
