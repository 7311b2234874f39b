"""Nothing is forged and nothing is lost by what an answer returns, prints, patches or claims."""

from __future__ import annotations

import pytest

from course_lib.checking import Verdict
from tests.grading.hostile import (
    RIGHT,
    WRONG,
    assert_full_marks,
    assert_no_marks,
    calling,
    judged,
    needs,
    rightly,
    short_of_time,
    within,
)

# ---- 1 to 3: answers without content -------------------------------------------------------------------------------

UNTOUCHED = {
    "docstring": '"""Counts."""',
    "pass": "pass",
    "dots": "...",
    "returns None": "return None",
    "not implemented": 'raise NotImplementedError("your turn: count_elements")',
}


@pytest.mark.parametrize("body", UNTOUCHED.values(), ids=UNTOUCHED)
def test_an_empty_body_is_not_attempted(worker, body):
    report = judged(worker, f"def count_elements(shape):\n    {body}\n")
    assert (report.verdict, report.points) == (Verdict.NOT_ATTEMPTED, 0)


CONSTANTS = {
    "count_elements": ["0", "6", "1.0", "float('nan')", "True", "print()", "NotImplemented", "Ellipsis"],
    "time_major": ["torch.zeros_like(x.transpose(0, 1))", "torch.full_like(x.transpose(0, 1), float('nan'))"],
    "mean_squared_error": ["torch.tensor(0.0)", "torch.tensor(float('nan'))", "prediction.sum() * 0"],
}


@pytest.mark.parametrize(
    ("name", "constant"), [(name, constant) for name, found in CONSTANTS.items() for constant in found]
)
def test_a_constant_gets_nothing(worker, name, constant):
    parameters = {"count_elements": "shape", "time_major": "x", "mean_squared_error": "prediction, target"}
    source = f"import torch\ndef {name}({parameters[name]}):\n    return {constant}\n"
    assert_no_marks(judged(worker, source, name))


def test_a_table_of_the_inputs_that_were_seen_gets_nothing(worker):
    report = judged(
        worker, "def count_elements(shape):\n    return {(3,): 3, (2, 3): 6, (): 1}.get(shape, 0)\n"
    )
    assert_no_marks(report)
    assert 0 < report.cases_passed < report.cases_total


# ---- 4: what an exercise is about may not be called ----------------------------------------------------------------

CONTIGUOUS = "tuple({torch}.empty(shape, device='meta').stride())"
FORBIDDEN = {
    "by name": "import torch\ndef row_major_strides(shape):\n    return " + CONTIGUOUS.format(torch="torch"),
    "by another name": "import torch as t\ndef row_major_strides(shape):\n    return "
    + CONTIGUOUS.format(torch="t"),
    "imported late": "def row_major_strides(shape):\n    import torch\n    return "
    + CONTIGUOUS.format(torch="torch"),
    "by a text": "def row_major_strides(shape):\n    torch = __import__('to' + 'rch')\n    return "
    + CONTIGUOUS.format(torch="torch"),
    "out of sys.modules": "import sys\ndef row_major_strides(shape):\n    return "
    + CONTIGUOUS.format(torch="sys.modules['to' + 'rch']"),
    "evaluated": "def row_major_strides(shape):\n"
    "    return eval(\"tuple(__import__('to' + 'rch').empty(shape).stride())\")",
    "tracing turned off": "import sys\ndef row_major_strides(shape):\n    was = sys.getprofile()\n"
    "    sys.setprofile(None)\n    found = "
    + CONTIGUOUS.format(torch="__import__('to' + 'rch')")
    + "\n    sys.setprofile(was)\n    return found",
    "in a thread": "import threading\ndef row_major_strides(shape):\n    found = []\n    thread = threading.Thread("
    "target=lambda: found.append(" + CONTIGUOUS.format(torch="__import__('to' + 'rch')") + "))\n"
    "    thread.start()\n    thread.join()\n    return found[0]",
}


@pytest.mark.parametrize("source", FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_forbidden_call_is_found_by_whatever_name(worker, source):
    report = judged(worker, source, "row_major_strides")
    assert_no_marks(report)
    assert report.verdict is Verdict.FAILED


def test_an_import_that_does_not_do_the_exercise_costs_nothing(worker):
    body = "import torch\ndef row_major_strides(shape):\n    strides = []\n    step = 1\n"
    body += (
        "    for size in reversed(shape):\n        strides.insert(0, step)\n        step *= max(size, 1)\n"
    )
    assert_full_marks(judged(worker, body + "    return tuple(strides)\n", "row_major_strides"))


# ---- 10: output ----------------------------------------------------------------------------------------------------

NOISY = {  # 23 as well: right answers that make noise
    "a debug print": "print(shape)",
    "10 MB a case": "print('x' * 10_000_000)",
    "100 MB in small pieces": "for _ in range(10_000):\n    print('x' * 999)",
    "20 000 lines": "for i in range(20_000):\n    print(i)",
    "standard error": "import sys\nprint('oops', file=sys.stderr)",
    "the file numbers themselves": "import os\nos.write(1, b'x' * 10_000_000)\nos.write(2, b'x' * 10_000_000)",
    "the first streams": "import sys\nsys.__stdout__.write('x' * 1_000_000)\nsys.__stderr__.write('passed')",
    "a warning": "import warnings\nwarnings.warn('careful')",
    "a warning as an error": "import warnings\nwarnings.simplefilter('error')",
    "logging": "import logging\nlogging.warning('careful')",
    "a progress bar": "from tqdm import tqdm\nlist(tqdm(range(100)))",
    "escape sequences and garbage": "print('\\x1b[2J\\x1b[31m\\x00\\x07\\udcff\\ud800\\r\\b' * 1000)",
    "a thread that goes on": "import sys, threading, time\ndef noise():\n    while True:\n"
    "        print('noise', file=sys.stderr)\n        time.sleep(0.001)\n"
    "threading.Thread(target=noise, daemon=True).start()",
    "a thread that is no daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,)).start()",
    "another process": "import subprocess\nsubprocess.run(['echo', 'x'])",
    "print replaced": "import builtins\nbuiltins.print = lambda *a: 1 / 0",
    "streams closed": "import sys\nsys.stdout.close()\nsys.stderr.close()\nsys.stdin.close()",
    "another folder": "import os\nos.chdir('/')",
    "an environment changed": "import os\nos.environ.clear()",
}


@pytest.mark.parametrize("body", NOISY.values(), ids=NOISY)
def test_noise_costs_a_right_answer_nothing(worker, body):
    report = judged(worker, rightly(body))
    assert_full_marks(report)
    assert len(report.printed) <= 5_000


LOUD_FAILURES = {
    "a message of 10 MB": "raise ValueError('x' * 10_000_000)",
    "a name of 1 MB": "raise type('E' * 1_000_000, (Exception,), {})",
    "recursion": "return count_elements(shape)",
    "a traceback of 10 000 frames": "import sys\nsys.setrecursionlimit(20_000)\nreturn f(10_000)",
    "a chain of 1 000 causes": "error = None\nfor i in range(1000):\n    new = ValueError(i)\n"
    "    new.__cause__ = error\n"
    "    error = new\nraise error",
    "garbage": "raise ValueError('\\x1b[2J\\x00\\ud800<script>alert(1)</script>')",
    "a message that can't be made": "class E(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise E",
    "a message that is no text": "class E(Exception):\n    def __str__(self):\n        return 5\nraise E",
    "a class that lies about its bases": "class Meta(type):\n    __name__ = 5\n    __mro__ = ()\n"
    "class E(Exception, metaclass=Meta): pass\nraise E",
    "a group of 1 000": "import builtins\nerrors = [ValueError()] * 1_000\n"
    "raise getattr(builtins, 'ExceptionGroup', ValueError)('many', errors)",
}


@pytest.mark.parametrize("body", LOUD_FAILURES.values(), ids=LOUD_FAILURES)
def test_a_loud_failure_is_kept_short(worker, body):
    report = judged(worker, calling(body, "def f(n):\n    return f(n - 1) if n else 1 / 0"))
    assert_no_marks(report)
    assert len(report.summary) + len(report.error) + len(report.printed) < 40_000
    assert all(len(facet.got) + len(facet.expected) < 10_000 for facet in report.facets)


# ---- 11: results ---------------------------------------------------------------------------------------------------

RESULTS = {
    "a view of 10 TB": "return torch.zeros(1).expand(10**13)",
    "300 MB": "return torch.zeros(75_000_000)",
    "40 MB": "return torch.zeros(10_000_000)",
    "a generator without end": "import itertools\nreturn itertools.count()",
    "half a million items": "return [0] * 500_000",
    "ten thousand items": "return tuple(range(10_000))",
    "a dict of ten thousand": "return {i: i for i in range(10_000)}",
    "nested 10 000 deep": "found = []\nfor _ in range(10_000):\n    found = [found]\nreturn found",
    "wide and deep": "found = [1] * 20\nfor _ in range(10):\n    found = [found] * 20\nreturn found",
    "in itself": "found = []\nfound.append(found)\nreturn found",
    "a text of 200 MB": "return 'x' * 200_000_000",
    "a half surrogate": "return '\\ud800'",
    "an integer of 5 000 digits": "return 10**5000",
    "an integer of a million bits": "return 1 << 1_000_000",
    "slow to print": "import time\nclass Slow:\n    def __repr__(self): time.sleep(1e6)\n"
    "    __str__ = __len__ = __iter__ = __repr__\n"
    "return Slow()",
    "a module": "return torch.nn.Linear(2, 2)",
    "quantized": "return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)",
    "sparse": "return torch.eye(3).to_sparse()",
    "a dtype of a few bits": "return torch.empty(3, dtype=torch.bits8)",
    "float8": "return torch.ones(3).to(torch.float8_e4m3fn)",
    "an array of objects": "import numpy as np\nreturn np.array([object(), None])",
    "a function": "return count_elements",
    "a class": "return int",
    "the interpreter": "import sys\nreturn sys.modules",
}


@pytest.mark.parametrize("body", RESULTS.values(), ids=RESULTS)
def test_a_result_of_any_kind_is_judged_in_bounded_time(worker, body):
    with short_of_time(worker, wall=2, total=3), within(20):
        report = judged(worker, calling(body, "import torch\n"))
    assert_no_marks(report)
    assert all(len(facet.got) < 10_000 for facet in report.facets)


# ---- 12: objects that lie ------------------------------------------------------------------------------------------

LIARS = {
    "__eq__": "class L:\n    def __eq__(self, other): return True\n    def __bool__(self): return True\nreturn L()",
    "a subclass of int": "class L(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "return L(5)",
    "a subclass of str": "class L(str):\n    def __eq__(self, other): return True\nreturn L('6')",
    "__class__": "class L:\n    __class__ = int\n    def __eq__(self, other): return True\nreturn L()",
    "a metaclass": "class M(type):\n    def __eq__(self, other): return True\n    __hash__ = type.__hash__\n"
    "    def __instancecheck__(cls, x): return True\nclass L(metaclass=M):\n"
    "    def __eq__(self, other): return True\nreturn L()",
    "a class called int": "return type('int', (), {'__eq__': lambda *a: True, '__index__': lambda s: 6})()",
    "a mock": "from unittest.mock import MagicMock\nreturn MagicMock()",
    "unittest.mock.ANY": "from unittest.mock import ANY\nreturn ANY",
    "a reduction": "class L:\n    def __reduce__(self): return (print, ('passed',))\nreturn L()",
    "__index__ and __int__": "class L:\n    def __index__(self): return 6\n"
    "    __int__ = __float__ = __index__\nreturn L()",
}
TENSOR_LIARS = {
    "__torch_function__": "class L(torch.Tensor):\n    @classmethod\n"
    "    def __torch_function__(cls, f, types, args=(), kwargs=None): return True\n"
    "return torch.zeros(x.shape[1], x.shape[0], x.shape[2]).as_subclass(L)",
    "a subclass that is right": "class L(torch.Tensor): pass\nreturn x.transpose(0, 1).as_subclass(L)",
    "__array__": "class L:\n    def __init__(self): self.shape, self.dtype = x.transpose(0, 1).shape, x.dtype\n"
    "    def __array__(self, *a, **k): return x.transpose(0, 1).numpy()\nreturn L()",
    "an array": "return x.transpose(0, 1).numpy()",
    "a subclass of ndarray": "import numpy as np\nclass L(np.ndarray):\n    def __eq__(self, other): return True\n"
    "return x.transpose(0, 1).numpy().view(L)",
    "a list of the same numbers": "return x.transpose(0, 1).tolist()",
    "methods on one tensor": "y = torch.zeros(x.shape[1], x.shape[0], x.shape[2])\n"
    "y.equal = y.__dict__['eq'] = lambda *a: True\nreturn y",
}


@pytest.mark.parametrize("body", LIARS.values(), ids=LIARS)
def test_an_object_that_lies_gets_nothing(worker, body):
    assert_no_marks(judged(worker, calling(body)))


@pytest.mark.parametrize("body", TENSOR_LIARS.values(), ids=TENSOR_LIARS)
def test_a_tensor_that_lies_gets_nothing(worker, body):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    assert_no_marks(judged(worker, f"import torch\ndef time_major(x):\n{lines}", "time_major"))


# ---- 13, 14: patches -----------------------------------------------------------------------------------------------

YES = "lambda *a, **k: True"
PATCHES = {
    **{
        name: f"import torch\n{name} = {YES}"
        for name in (
            "torch.equal",
            "torch.allclose",
            "torch.Tensor.equal",
            "torch.Tensor.__eq__",
            "torch.Tensor.all",
            "torch.manual_seed",
            "torch.get_default_dtype",
        )
    },
    "torch.isclose": "import torch\ntorch.isclose = lambda a, b, *r, **k: torch.ones_like(a, dtype=torch.bool)",
    "torch.testing.assert_close": f"import torch.testing\ntorch.testing.assert_close = {YES}",
    "numpy.testing": "import numpy as np, numpy.testing\n"
    f"np.testing.assert_allclose = np.allclose = np.array_equal = {YES}",
    "math.isclose": f"import math\nmath.isclose = {YES}",
    **{
        f"builtins.{name}": f"import builtins\nbuiltins.{name} = {YES}"
        for name in ("abs", "all", "any", "len", "isinstance", "issubclass", "getattr", "sorted", "set")
    },
    "builtins.type": "import builtins\nbuiltins.type = lambda *a: int",
    "pickle": "import pickle, torch\npickle.loads = pickle.dumps = lambda *a, **k: b'passed'",
    "json.dumps": 'import json\njson.dumps = lambda *a, **k: \'{"facets": {}, "raised": [], "error": "", '
    '"your turn": false, "forbidden": []}\'',
    "json.loads": "import json\njson.loads = lambda *a, **k: {}",
    "unittest": "import unittest\nunittest.TestCase.run = lambda self, result=None: result",
    "difference": "from course_lib.checking import compare, judge\n"
    "compare.difference = judge.difference = lambda *a, **k: None",
    "freeze": "from course_lib.checking import records, observe, trial\n"
    "records.freeze = observe.freeze = trial.freeze = lambda *a, **k: True",
    "judge": f"from course_lib.checking import judge\njudge.judge = judge.same_case = judge.observe_case = {YES}",
    "verdict": "from course_lib.checking.verdict import Report, Verdict\nReport.verdict = Verdict.PASSED\n"
    "Report.points = property(lambda self: 1)",
    "an observation that equals all": "from course_lib.checking.judge import Observation\n"
    "Observation.__eq__ = lambda *a: True",
    "nothing observed": "from course_lib.checking.judge import Observation\nfrom course_lib.grading import worker\n"
    "worker.observe_case = lambda *a: Observation({})",
    "nothing sent": "from course_lib.grading import worker\nworker.send = lambda *a: None",
    "passed sent": "from course_lib.grading import worker\nsend = worker.send\n"
    "worker.send = lambda channel, message: send(channel, b'passed')",
    "the encoding": "from course_lib.grading import worker\n"
    'worker.encode_observation = lambda *a: b\'{"facets": {"value": true}, "raised": [], "error": "", '
    '"your turn": false, "forbidden": []}\'',
    "the module itself": "import sys, types\nfake = types.ModuleType('course_lib')\n"
    "fake.check = fake.grade = lambda *a: 'passed'\nsys.modules['course_lib'] = fake",
    "all modules": "import sys\nsys.modules.clear()",
    "sys.path": "import sys\nsys.path[:] = ['.']",
    "time": "import time\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0",
    "hash": "import os\nos.environ['PYTHONHASHSEED'] = '0'",
    "gc": "import gc\ngc.disable()\ngc.set_threshold(0)",
    "a trace function": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
}


@pytest.mark.parametrize("body", PATCHES.values(), ids=PATCHES)
def test_a_patch_gives_a_wrong_answer_nothing(worker, body):
    with short_of_time(worker, wall=2, total=4):
        assert_no_marks(judged(worker, calling(body)))


@pytest.mark.parametrize(
    "name", ["conftest.py", "sitecustomize.py", "usercustomize.py", "torch.py", "course_lib.py", "json.py"]
)
def test_a_file_that_python_might_load_changes_nothing(worker, name):
    body = "import os\nfor place in ('.', os.environ['HOME'], os.environ['TMPDIR']):\n"
    body += f"    with open(os.path.join(place, {name!r}), 'w') as f:\n"
    assert_no_marks(judged(worker, calling(body + "        f.write('raise SystemExit(0)')")))
    assert_no_marks(judged(worker, WRONG))


def test_the_files_of_the_worker_can_not_be_written(worker):
    needs(worker, "only its own files")
    body = "import course_lib, torch, json\nfor module in (course_lib, torch, json):\n    try:\n"
    body += "        open(module.__file__, 'a')\n    except OSError:\n        continue\n    raise RuntimeError(module)"
    assert_full_marks(judged(worker, rightly(body)))


# ---- 22: what an answer leaves changed -----------------------------------------------------------------------------

LEFT_CHANGED = {
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "default device": "torch.set_default_device('meta')",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "threads": "torch.set_num_threads(2)",
    "no grad": "torch.set_grad_enabled(False)",
    "autocast": "torch.autocast('cpu').__enter__()",
    "inference mode": "torch.inference_mode().__enter__()",
    "seed": "torch.manual_seed(0)",
    "warnings": "import warnings\nwarnings.simplefilter('ignore')",
    "a hook on all modules": "torch.nn.modules.module.register_module_forward_hook(lambda *a: torch.zeros(()))",
    "a function mode": "from torch.overrides import TorchFunctionMode\nTorchFunctionMode().__enter__()",
    "locale and umask": "import os\nos.umask(0o777)",
    "recursion limit": "import sys\nsys.setrecursionlimit(60)",
    "signal handlers": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "np": "import numpy\nnumpy.array = None",
    "builtins": "import builtins\nbuiltins.len = None",
}


@pytest.mark.parametrize("body", LEFT_CHANGED.values(), ids=LEFT_CHANGED)
def test_what_an_answer_leaves_changed_ends_with_it(worker, body):
    assert judged(worker, rightly(body, "import torch\n")).verdict is not Verdict.GRADER_FAULT
    again = "def time_major(x):\n    return x.transpose(0, 1)\n"
    assert_full_marks(judged(worker, again, "time_major"))


# ---- 24, 26: right in another way, and always ------------------------------------------------------------------------

EQUIVALENT = {
    "count_elements": [
        "import math\ndef count_elements(shape):\n    return math.prod(shape)",
        "count_elements = lambda shape: __import__('math').prod(shape)",
        "from functools import reduce\ndef count_elements(*, shape=None, **more): ...\n"
        "def count_elements(shape, start=1):\n    return reduce(lambda a, b: a * b, shape, start)",
        "class Counter:\n    def __call__(self, shape):\n"
        "        return 1 if not shape else shape[0] * self(shape[1:])\n"
        "count_elements = Counter()",
    ],
    "time_major": [
        "def time_major(x):\n    return x.permute(1, 0, 2)",
        "def time_major(x):\n    return x.movedim(1, 0)",
        "def time_major(x):\n    return x.view_as(x).transpose(1, 0)",
    ],
    "merge_heads": [
        "def merge_heads(x):\n    return x.transpose(1, 2).flatten(2)",
        "def merge_heads(x):\n    batch, heads, seq, dim = x.shape\n"
        "    return x.permute(0, 2, 1, 3).contiguous().clone().view(batch, seq, heads * dim)",
    ],
}


@pytest.mark.parametrize(
    ("name", "source"), [(n, source) for n, found in EQUIVALENT.items() for source in found]
)
def test_a_right_answer_in_other_words_gets_full_marks(worker, name, source):
    assert_full_marks(judged(worker, source, name))


def test_the_verdict_is_the_same_each_time(worker):
    tosses = "import random\ndef count_elements(shape):\n    return random.choice([sum(shape), len(shape)])\n"
    reports = [judged(worker, tosses) for _ in range(20)]
    assert len(set(reports)) == 1
    assert len({judged(worker, RIGHT) for _ in range(5)}) == 1


# ---- 27, 28: the clock and the place -------------------------------------------------------------------------------


def test_the_time_is_the_graders(worker):
    stopped = calling("import time\ntime.monotonic = time.perf_counter = lambda: 0.0\nwhile True: pass")
    with short_of_time(worker), within(10):
        report = judged(worker, stopped)
    assert_no_marks(report)
    assert "did not finish in time" in report.summary


def test_an_answer_that_looks_for_the_grader_finds_no_word_of_it(worker):
    body = "import os, sys\nwords = (*os.environ, *os.environ.values(), *sys.argv)\n"
    body += "found = [word for word in words if 'grade' in word.lower()]\n"
    assert_full_marks(judged(worker, rightly(body + "assert not found, found")))
