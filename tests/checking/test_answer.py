"""Finding a learner's answer: the last definition of the name, with what it needs and nothing else."""

from __future__ import annotations

import ast

import pytest

from course_lib.checking import find_answer, is_stub
from course_lib.checking.answer import NotDefined


def load(*cells: str):
    return find_answer(list(cells), "f").load()


def test_the_last_definition_wins():
    assert load("def f(): return 1", "def f(): return 2")() == 2
    assert load("def f(): return 1", "f = lambda: 3")() == 3


def test_imports_helpers_and_constants_come_along():
    f = load(
        "import math as m, os",
        "SCALE = 2\nSCALE += 1",
        "def g(x): return h(x)",
        "def h(x): return m.floor(x) * SCALE",
        "def f(x): return g(x)",
    )
    assert f(2.5) == 6


def test_a_helper_may_be_redefined_after_the_answer():
    assert load("def h(): return 1", "def f(): return h()", "def h(): return 2")() == 2


def test_what_a_statement_reads_at_once_stands_before_it():
    cells = ["x = 1", "x = x + 1", "def f(y=x): return y", "x = 100"]
    assert load(*cells)() == 2


def test_a_wrapped_definition_keeps_what_it_wraps():
    cells = ["def f(): return 1", "import functools", "f = functools.cache(f)"]
    assert load(*cells)() == 1


def test_nothing_else_of_the_notebook_runs():
    answer = find_answer(
        ["raise SystemExit", "print('side effect')", "def f(): return 1", "check(f)", "f()"], "f"
    )
    assert answer.source == "def f(): return 1"


def test_decorators_and_classes_belong_to_the_definition():
    assert load("def twice(g): return lambda: 2 * g()", "@twice\ndef f(): return 4")() == 8
    assert load("class Base:\n    n = 5", "class f(Base):\n    m = 1")().n == 5


def test_names_bound_inside_a_class_or_function_are_not_definitions():
    assert find_answer(["class A:\n    def f(self): pass", "def g():\n    f = 1"], "f") is None


def test_magics_do_not_hide_a_cell():
    cell = "%matplotlib inline\n!pip list\ndef f(): return 7\nf?"
    assert load(cell)() == 7


def test_a_cell_magic_does_not_hide_the_definition():
    assert load("%%time\ndef f(): return 7")() == 7


def test_two_statements_on_one_line_are_told_apart():
    assert find_answer(["a = 1; b = print('no')", "def f(): return a"], "f").source.splitlines()[0] == "a = 1"


def test_parameters_and_local_names_are_not_the_notebooks():
    cells = ["import torch", "a = torch.ones(3)", "total = print('no')"]
    cells += ["def f(a, *, b=2):\n    total = a + b\n    return [a for a in (total,)][0]"]
    answer = find_answer(cells, "f")
    assert answer.source == cells[-1]
    assert answer.load()(1) == 3


def test_what_a_comprehension_or_a_class_body_reads_comes_along():
    assert load("k = 3", "table = [k * i for i in range(3)]", "def f(): return table[2]")() == 6
    assert load("k = 3", "class A:\n    n = k", "def f(): return A.n")() == 3
    assert load("k = 3", "def f():\n    def g(): return lambda: k\n    return g()()")() == 3


def test_a_definition_behind_a_false_condition_is_none():
    with pytest.raises(NotDefined):
        load("if False:\n    def f(): return 1")


def test_star_imports_come_along():
    assert load("from math import *", "def f(): return floor(2.5)")() == 2


def test_a_conditional_import_comes_along():
    assert (
        load(
            "try:\n    import nowhere as np\nexcept ImportError:\n    import math as np",
            "def f(): return np.pi",
        )()
        > 3
    )


def test_a_cell_that_python_cannot_read_is_the_answer_when_it_comes_last():
    answer = find_answer(["def f(): return 1", "def f(:\n    return 2"], "f")
    assert "SyntaxError" in answer.problem and "line 1" in answer.problem
    assert find_answer(["def f(:", "def f(): return 2"], "f").problem == ""
    assert find_answer(["def g(:", "def f(): return 2"], "f").problem == ""


def test_a_cell_that_only_the_symbol_table_refuses_costs_itself_alone():
    assert load("nonlocal x", "def f(): return 1")() == 1


def test_formatting_and_comments_do_not_change_the_digest():
    one = find_answer(["def f(x):\n    return x + 1"], "f")
    two = find_answer(["def f(x):  # add\n\n    return (x+1)"], "f")
    other = find_answer(["def f(x):\n    return x + 2"], "f")
    assert one.digest == two.digest != other.digest


STUBS = [
    "def f(): pass",
    "def f(): ...",
    "def f():\n    'doc'\n    return None",
    "def f(): raise NotImplementedError",
    "def f():\n    'doc'\n    raise NotImplementedError('your turn: f')",
    "class f:\n    def __init__(self): self.x = 1\n    def forward(self, x): raise NotImplementedError('your turn')",
    "class f: pass",
    "class f:\n    def __init__(self): ...\n    def forward(self, x):\n        'doc'\n        return None",
]
ATTEMPTS = [
    "def f(): return 0",
    "def f(x):\n    x += 1",
    "class f:\n    def forward(self): return 1",
    "class f:\n    def forward(self): ...\n    forward = len",
    "f = len",
]


@pytest.mark.parametrize("source", STUBS)
def test_stubs_are_recognized(source):
    assert is_stub(ast.parse(source).body[0])


@pytest.mark.parametrize("source", ATTEMPTS)
def test_attempts_are_not_stubs(source):
    assert not is_stub(ast.parse(source).body[0])


@pytest.mark.parametrize("odd", ["s = 'a\u2028b'", "import math\x0c", 's = """a\x0bb\nc"""', "x = '\x1c'"])
def test_characters_that_end_no_line_of_python_shift_nothing(odd):
    assert find_answer([f"{odd}\ndef f():\n    return 1"], "f").definition == "def f():\n    return 1"


@pytest.mark.parametrize("cell", ["-" * 20_000 + "1", "(" * 300 + ")" * 300], ids=["signs", "brackets"])
def test_a_cell_that_the_parser_gives_up_on_costs_only_itself(cell):
    assert find_answer([cell, "def f():\n    return 1"], "f").load()() == 1
    assert find_answer([cell], "f") is None
    assert find_answer([f"def f(x={cell}): pass"], "f").problem
