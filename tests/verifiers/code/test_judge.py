"""Which code runs, which tests a row holds, and when an answer is the expected one."""

import dataclasses
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.verifiers import grade
from equipoise.verifiers.code import judge as code_judge
from equipoise.verifiers.code import sandbox

needs_sandbox = pytest.mark.usefixtures("sandboxed")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1\n```", "x = 1\n"),
        ("```Python3\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("```python title=a.py\nx = 1\n```", "x = 1\n"),
        ("Text.\n```python\nx = 1\n```\nMore.\n```python\nx = 2\n```\nEnd.", "x = 2\n"),
        ("```python\nx = 1\n```\nIt prints\n```\n1\n```", "x = 1\n"),
        ("```\nx = 1\n```\nfor example\n```text\n1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nand\n```python\nx = 2", "x = 1\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("1. This:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
        ("```python\r\nx = 1\r\ny = 2\r\n```\r\n", "x = 1\ny = 2\n"),
        ("<think>```python\nx = 1\n```</think>```python\nx = 2\n```", "x = 2\n"),
        ("x = 1", "x = 1"),
        ("    return 1\n", "    return 1\n"),
        ("<think>x = 0</think>x = 1", "x = 1"),
    ],
)
def test_extract_finds_the_last_complete_python_block(response, expected):
    assert code_judge.extract(response) == expected


@pytest.mark.parametrize(
    "response",
    [
        "",
        "  \n ",
        "```python\nx = 1\n",
        "```cpp\nint x;\n```",
        "```python\n```",
        "```python\n\n```",
        "<think>```python\nx = 1\n```</think>I give up:\n```python\n",
        "```text\nx = 1\n```",
        "<think>Let me see.\n```python\nx = 1\n```\n",
    ],
)
def test_extract_finds_nothing_where_no_block_is_complete(response):
    assert code_judge.extract(response) is None
    assert code_judge.judge(response, code_judge.Programs((("", ""),))).kind == "unparsed"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="`~ab \n\r\tpython<>/think", max_size=80))
def test_extract_takes_any_text(response):
    found = code_judge.extract(response)
    assert found is None or found.strip()


@pytest.mark.parametrize(
    "response",
    [
        "```" + "a" * 10**6 + "`",
        "`" * 10**6,
        "``` " * 10**5,
        "```\n" * 10**5,
        "```a\n````\n" * 10**4,
        "```py\n" + "~~~\n" * 10**5,
        " " * 10**6 + "x",
        "\t" * 10**6 + "```",
        "```python\nadd" + "\n" * 10**6 + "```",
    ],
)
def test_extract_takes_one_pass_over_any_text(response):
    began = time.process_time()
    code_judge.extract(response)
    assert time.process_time() - began < 3


@given(st.text(alphabet=st.characters(exclude_characters="`~\r"), min_size=1).filter(str.strip))
def test_extract_gives_back_what_a_block_holds(source):
    if "</think>" not in source:
        assert code_judge.extract(f"Here:\n```python\n{source}\n```\n") == f"{source}\n"


def judge(source, tests, **limits):
    return code_judge.judge(f"```python\n{source}\n```", tests, sandbox.Limits(**limits))


SUM = code_judge.Programs((("1 2\n", "3\n"), ("10 20\n", "30\n")))


@needs_sandbox
@pytest.mark.parametrize(
    "source",
    [
        "a, b = map(int, input().split())\nprint(a + b)",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
        "import sys\nfor line in sys.stdin: print(sum(map(int, line.split())))",
        "print(sum(map(int, open(0).read().split())))",
        "print(sum(map(int, open('/dev/stdin').read().split())))",
        "import os\nprint(sum(map(int, os.read(0, 100).split())))",
        "import sys\nsys.stdout.write(str(sum(map(int, input().split()))))",
        "print(sum(map(int, input().split())), '  ')\nprint()",
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
        "print(sum(map(int, input().split())))\nexit()",
        "print(sum(map(int, input().split())))\nquit(0)",
        "import sys\nprint(sum(map(int, input().split())))\nsys.exit()",
        "import os, sys\nprint(sum(map(int, input().split())), flush=True)\nos._exit(0)",
        "import threading\nthreading.Thread(target=lambda: print(sum(map(int, input().split())))).start()",
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**27)\n"
        "def f(n): return n and 1 + f(n - 1)\n"
        "def main():\n    a, b = map(int, input().split())\n    print(f(30000) - 30000 + a + b)\n"
        "t = threading.Thread(target=main)\nt.start()\nt.join()",
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\n"
        "print(f(20000) - 20000 + sum(map(int, input().split())))",
        "import asyncio\nasync def main(): print(sum(map(int, input().split())))\nasyncio.run(main())",
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "with Pool(8) as pool: print(sum(pool.map(int, input().split())))",
        "from multiprocessing import Pool\nif __name__ == '__main__':\n"
        "    with Pool(2) as pool: print(sum(pool.map(int, input().split())))",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: 'int'\n    b: int = 0\n"
        "print(sum(map(int, input().split())))",
        "import tempfile\nwith tempfile.TemporaryFile('w+') as f:\n    f.write(input())\n    f.seek(0)\n"
        "    print(sum(map(int, f.read().split())))",
        "import collections, heapq, itertools, math, re, bisect, functools, random, decimal, string, datetime\n"
        "print(sum(map(int, input().split())))",
        "# " + "x" * 100_000 + "\nprint(sum(map(int, input().split())))",
        "x = [\n" + "    1,\n" * 20_000 + "]\nprint(sum(map(int, input().split())))",
    ],
)
def test_programs_written_in_any_usual_way_are_correct(source):
    verdict = judge(source, SUM)
    assert verdict.kind == "correct", verdict.reason


@needs_sandbox
def test_lines_and_sources_of_any_length():
    line = "7" * 10**6
    tests = code_judge.Programs(((line + "\n", line + "\n"), ("x\r\ny\r\n", "2\n")))
    source = "import sys\nlines = sys.stdin.read().splitlines()\nprint(lines[0] if len(lines) == 1 else len(lines))"
    assert judge(source, tests).kind == "correct"
    response = "```python\r\nimport sys\r\nprint(len(sys.stdin.read()))\r\n```"
    assert code_judge.judge(response, code_judge.Programs((("abc", "3"),))).kind == "correct"


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "kind", "reason"),
    [
        ("print(4)", "wrong", "printed '4"),
        ("print(3)", "wrong", "test 2 of 2"),
        ("", "unparsed", ""),
        ("pass", "wrong", "printed ''"),
        ("1 / 0", "wrong", "ZeroDivisionError"),
        ("def f(:", "wrong", "SyntaxError"),
        ("print(sum(map(int, input().split())))\nimport sys\nsys.exit(3)", "wrong", "exit 3"),
        ("import numpy", "wrong", "numpy"),
        ("input(); input(); input()", "wrong", "EOFError"),
        ("x = " + "(" * 300 + ")" * 300, "wrong", "SyntaxError"),
        ("x = " + "-" * 10**5 + "1", None, ""),
        ("\0", "wrong", ""),
        ("x = '\ud800'", "wrong", ""),
    ],
)
def test_programs_that_are_not_correct(source, kind, reason):
    verdict = judge(source, SUM)
    assert verdict.kind == (kind or verdict.kind) != "correct"
    assert reason in verdict.reason


ADD = code_judge.Calls("add", (((1, 2), 3), (([1], [2]), [1, 2])))


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def add(a, b): return a + b", "correct"),
        ("add = lambda a, b: a + b", "correct"),
        ("class Solution:\n    def add(self, a, b): return a + b", "correct"),
        ("class Solution:\n    def add(self, a, b): return a + b\ndef add(a, b): return None", "correct"),
        ("class Solution:\n    @staticmethod\n    def add(a, b): return a + b", "correct"),
        ("def add(a, b):\n    print('debugging')\n    return a + b", "correct"),
        ("from typing import *\ndef add(a: int, b: int) -> int: return a + b", "correct"),
        ("def add(a, b): return a + b\nif __name__ == '__main__': print(input())", "correct"),
        ("def add(a, b): return tuple(a + b) if isinstance(a, list) else a + b", "correct"),
        ("def add(a, b): return float(a + b) if isinstance(a, int) else a + b", "correct"),
        ("def sub(a, b): return a - b", "wrong"),
        ("async def add(a, b): return a + b", "wrong"),
        ("def add(a, b): yield a + b", "wrong"),
        ("def add(a): return a", "wrong"),
        ("add = 3", "wrong"),
        ("class Solution:\n    def __init__(self, x): pass\n    def add(self, a, b): return a + b", "wrong"),
        ("def add(a, b): print(a + b)", "wrong"),
        ("def add(a, b): return str(a + b)", "wrong"),
        ("def add(a, b): raise ValueError('no')", "wrong"),
        ("raise ValueError('no')", "wrong"),
    ],
)
def test_functions_and_solutions(source, kind):
    verdict = judge(source, ADD)
    assert verdict.kind == kind, verdict.reason


@needs_sandbox
def test_a_solution_starts_anew_with_every_call():
    tests = code_judge.Calls("push", (((1,), [1]), ((2,), [2])))
    source = (
        "class Solution:\n    def __init__(self): self.seen = []\n    def push(self, x):\n        self.seen.append(x)\n"
    )
    assert judge(source + "        return self.seen", tests).kind == "correct"


@needs_sandbox
def test_expected_values_wrapped_in_a_list_may_come_bare():
    tests = code_judge.tests({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[2], [3]]})
    assert judge("def f(x): return x + 1", tests).kind == "correct"
    assert judge("def f(x): return [x + 1]", tests).kind == "correct"
    assert judge("def f(x): return [[x + 1]]", tests).kind == "wrong"
    assert judge("def f(x): return 2", tests).kind == "wrong"


MBPP = {
    "test_list": [
        "assert set(common((3, 4, 5, 6), (5, 7, 4, 10))) == {4, 5}",
        "assert math.isclose(half(3), 1.5)",
        "assert kinds({1: (2, b'x')}, key={'a'}) == [1, (2, b'x'), {'a'}]",
    ],
    "test_imports": ["import math"],
}
MBPP_SOLUTION = """
def common(a, b): return tuple(set(a) & set(b))
def half(x): return x / 2
def kinds(d, key): return [*d, *d.values(), key]
"""


@needs_sandbox
def test_asserts_see_built_in_values_of_every_type():
    assert judge(MBPP_SOLUTION, code_judge.tests(MBPP)).kind == "correct"
    assert judge(MBPP_SOLUTION.replace("x / 2", "x // 2"), code_judge.tests(MBPP)).kind == "wrong"
    assert judge(MBPP_SOLUTION.replace("(set(a) & set(b))", "(set(a))"), code_judge.tests(MBPP)).kind == "wrong"
    verdict = judge("def common(a, b): return a & b", code_judge.tests(MBPP))
    assert verdict.kind == "wrong"
    assert "TypeError" in verdict.reason
    assert "line 1 of the tests" in verdict.reason


@needs_sandbox
def test_asserts_may_expect_an_exception():
    statement = "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert 'below' in str(error)"
    tests = code_judge.tests({"test_list": [statement]})
    assert judge("def f(x): raise ValueError('below 0')", tests).kind == "correct"
    assert judge("class Own(ValueError): pass\ndef f(x): raise Own('below 0')", tests).kind == "wrong"
    assert judge("def f(x): raise KeyError('below 0')", tests).kind == "wrong"
    assert judge("def f(x): return 0", tests).kind == "wrong"


@needs_sandbox
@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["import numpy", "assert f(1)"], "numpy"),
        (["assert undefined_before[0]", "assert f(1)"], "subscriptable"),
        (["1 / 0", "assert f(1)"], "ZeroDivisionError"),
        (["assert f(lambda x: x)"], "function"),
        (["if False: f(1)"], "never call"),
        (["def later(): return f(1)"], "never call"),
    ],
)
def test_tests_that_fail_by_themselves_are_bad_gold(statements, reason):
    verdict = judge("def f(x): return True", code_judge.tests({"test_list": statements}))
    assert verdict.kind == "bad_gold"
    assert reason in verdict.reason


@needs_sandbox
def test_a_response_cannot_make_the_tests_bad_gold():
    tests = code_judge.tests({"test_list": ["assert f(f(1)) == 2", "assert [x for x in f(1)]"]})
    for source in ("def f(x): return open", "def f(x): return {}[x]", "def f(x): return 'x' * 10 ** 6", "f = print"):
        assert judge(source, tests).kind == "wrong"


HUMANEVAL = code_judge.tests(
    {
        "prompt": "from typing import List\n\ndef one():\n    return 1\n\n"
        "def plus(xs: List[int]) -> List[int]:\n    '''Add 1.'''\n",
        "test": "def check(candidate):\n    assert candidate([1, 2]) == [1 + one(), 2 + one()]\n",
        "entry_point": "plus",
    }
)


@needs_sandbox
@pytest.mark.parametrize(
    ("response", "kind"),
    [
        ("    return [x + 1 for x in xs]\n", "correct"),
        ("\n    return [x + one() for x in xs]\n", "correct"),
        ("```python\n    return [x + 1 for x in xs]\n```", "correct"),
        ("```python\ndef plus(xs: List[int]) -> List[int]:\n    return [x + one() for x in xs]\n```", "correct"),
        ("def plus(xs):\n    return [x + 1 for x in xs]", "correct"),
        (
            "```python\nfrom __future__ import annotations\ndef plus(xs: Nope):\n    return [x + 1 for x in xs]\n```",
            "correct",
        ),
        ("```python\nplus = lambda xs: [x + 1 for x in xs]\n```", "correct"),
        ("```python\ndef one(): return 0\ndef plus(xs): return [x + one() for x in xs]\n```", "wrong"),
        ("```python\ndef one(): return 0\ndef plus(xs): return xs\n```", "wrong"),
        ("    pass\n", "wrong"),
        ("```python\ndef minus(xs): return xs\n```", "wrong"),
        ("I would add one to each of them.", "unparsed"),
        ("<think>\n```python\ndef plus(xs): return xs\n```\n</think>I would add one.", "unparsed"),
        ("", "unparsed"),
    ],
)
def test_humaneval_responses_continue_the_prompt_or_define_the_function(response, kind):
    verdict = code_judge.judge(response, HUMANEVAL)
    assert verdict.kind == kind, verdict.reason


@needs_sandbox
def test_a_row_whose_own_reference_fails_says_nothing_about_responses():
    """MBPP's 601 makes objects of the response's class in its tests: nobody can pass."""
    solution = "class Pair:\n    def __init__(self, a): self.a = a\ndef first(pairs): return pairs[0].a\n"
    row = {"test_list": ["assert first([Pair(5)]) == 5"], "code": solution}
    limits = dataclasses.asdict(sandbox.Limits())
    for response in (solution, "def first(pairs): return 5"):
        verdict = grade.code_job(f"```python\n{response}\n```", json.dumps(row), limits)
        assert verdict.kind == "bad_gold"
        assert "its own reference solution is wrong" in verdict.reason
    sound = {"test_list": ["assert first([5]) == 5"], "code": "def first(x): return x[0]"}
    assert grade.code_job("```python\ndef first(x): return 4\n```", json.dumps(sound), limits).kind == "wrong"
