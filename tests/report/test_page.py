import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise import report
from equipoise.report.page import command, data, embed
from tests.report.folders import make_run

HOSTILE = [
    "</script><script>window.__pwned = 1</script>",
    "<img src=x onerror='window.__pwned = 1'>",
    "<!--<script>",
    "{{script}} {{data}} \\1 \\g<0>",
    "\u202egnp.exe\u2066 \u200b\ufeff \u2028\u2029",
    "nul \x00 bell \x07 escape \x1b[31m",
    "&lt;b&gt; \" ' ` ${1}",
]


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []
        self.scripts = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", {}))

    def handle_data(self, text):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += text


def parsed(page):
    elements = Elements()
    elements.feed(page.read_text(encoding="utf-8"))
    return elements


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return report.write([make_run(folder / "run", steps=5)], folder / "page.html")


def test_hostile_text_changes_no_element_of_the_page(tmp_path, plain):
    run = make_run(tmp_path / "<b onclick=x>run", steps=5, texts=HOSTILE)
    with open(run / "config.toml", "a") as f:
        f.write('[extra]\nnote = "</script><script>window.__pwned = 1</script>"\n')
    with open(run / "metrics.jsonl", "a") as f:
        f.write(json.dumps({"step": 6, "bias/</script><i>": 1.0, "x\ud800": 1.0}) + "\n")
    page = parsed(report.write([run], tmp_path / "page.html"))
    assert [t for t, _ in page.tags] == [t for t, _ in parsed(plain).tags]
    content = json.loads(page.scripts[0])
    texts = {r["text"] for g in content["runs"][0]["groups"] for r in g["responses"]}
    assert texts == set(HOSTILE)


def test_the_page_asks_nothing_of_any_network(plain):
    text = plain.read_text(encoding="utf-8")
    page = parsed(plain)
    references = [a for _, attributes in page.tags for a in attributes if a in ("src", "srcset", "action", "data-src")]
    assert references == []
    assert [a["href"] for _, a in page.tags if "href" in a] == ["data:,", "#main"]
    outside_data = text.replace(page.scripts[0], "")
    assert set(re.findall(r"https?://[^\s\"'<>)]+", outside_data)) <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(http" not in text
    assert "innerHTML" not in re.sub(r"//.*", "", page.scripts[1])


def test_the_policy_allows_the_pages_own_script_alone(plain):
    policy = next(a["content"] for t, a in parsed(plain).tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src 'none'" in policy


@given(st.text(st.characters(), max_size=50))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_embedded_json_is_ascii_without_tags_and_comes_back(text):
    embedded = embed({"text": text})
    assert embedded.isascii()
    assert "<" not in embedded
    assert json.loads(embedded) == {"text": text}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["step", "acc@8", "greedy", "interval", "by_level", "reward/mean", "bias/new", "difficulty/anchor", "verdict/wrong"]
)


@given(st.lists(st.dictionaries(names, values | st.dictionaries(names, values, max_size=3), max_size=6), max_size=4))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_whatever_the_logs_hold_there_is_a_page(tmp_path, records):
    lines = "".join(json.dumps({"step": i, **record}) + "\n" for i, record in enumerate(records))
    (tmp_path / "metrics.jsonl").write_text(lines)
    (tmp_path / "eval.jsonl").write_text(lines)
    assert json.loads(embed(data([tmp_path]))).keys() == data([tmp_path]).keys()


def test_the_same_runs_make_the_same_page(tmp_path):
    run = make_run(tmp_path / "run", steps=10, difficulty="hadw")
    first = report.write([run], tmp_path / "a.html").read_bytes()
    assert report.write([run], tmp_path / "b" / "b.html").read_bytes() == first
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["b.html"]


@pytest.mark.long
def test_a_page_of_many_long_runs_of_long_responses_stays_small(tmp_path):
    for i in range(4):
        path = make_run(
            tmp_path / f"run{i}", steps=20, seed=i, every=2, groups=4, size=8, texts=["é" * 30_000, "x" * 200_000]
        )
        lines = (path / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        more = [{**records[k % 20], "step": k, **{f"m{j}": k / 7 for j in range(30)}} for k in range(21, 1500)]
        with open(path / "metrics.jsonl", "a") as f:
            f.writelines(json.dumps(r) + "\n" for r in more)
    page = report.write([tmp_path], tmp_path / "page.html")
    assert page.stat().st_size < 6_000_000


def test_the_command_names_a_configuration_that_is_there(tmp_path):
    run = make_run(tmp_path / "a run; rm", steps=1)
    words = shlex.split(command(run))
    assert words == ["equipoise", "train", f"{run}/config.toml", "--train.out", f"{run}-again"]
    assert data([run])["runs"][0]["toml"] == (run / "config.toml").read_text()


def test_the_folder_one_stands_in_has_a_command_too(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", steps=1)
    monkeypatch.chdir(run)
    assert shlex.split(command(Path()))[-1] == f"{run}-again"


def test_settings_of_any_type_are_shown_as_toml(tmp_path):
    written = {"x": "inf", "y": "nan", "day": "2026-01-02", "t": '{ name = "power", alpha = 0.5 }', "l": '["é", true]'}
    lines = [f"{key} = {value}" for key, value in written.items()]
    (tmp_path / "config.toml").write_text("\n".join(["[a]", *lines, "[model]", 'name = "m"']), encoding="utf-8")
    content = json.loads(embed(data([tmp_path])))
    assert content["runs"][0]["settings"] == {**{f"a.{k}": v for k, v in written.items()}, "model.name": '"m"'}
    assert content["about"] == "m"


def test_a_run_without_a_configuration_says_so(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 1}\n')
    (run,) = data([tmp_path])["runs"]
    assert run["command"] == ""
    assert run["notes"] == ["It has no config.toml: its settings are not known."]
