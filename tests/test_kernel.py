"""check, hint, passing and the rest in a real Jupyter kernel: what a learner sees, cell by cell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).parents[1]
IMPORTS = "import torch\nfrom course_lib import check, hint, passing, predict, progress, solution"
RIGHT = "def count_elements(shape):\n    n = 1\n    for size in shape:\n        n *= size\n    return n"
WRONG = "def count_elements(shape):\n    return sum(shape)"
STUB = "def count_elements(shape):\n    raise NotImplementedError('your turn')"


class Kernel:
    """A kernel whose cells have ids, as JupyterLab sends them."""

    def __init__(self, client) -> None:
        self.client = client

    def run(self, code: str, cell: str = "", deleted: tuple[str, ...] = (), history: bool = True) -> str:
        """Execute a cell; its output as text, or the name of the error."""
        content = {
            "code": code,
            "silent": False,
            "store_history": history,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        message = self.client.session.msg("execute_request", content)
        message["metadata"] = {"cellId": cell or None, "deletedCells": list(deleted)}
        self.client.shell_channel.send(message)
        return self.collect(message["header"]["msg_id"])

    def collect(self, request: str) -> str:
        output = []
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                output.append(content["text"])
            elif kind in ("display_data", "execute_result"):
                output.append(content["data"]["text/plain"])
            elif kind == "error":
                output.append(f"{content['ename']}: {content['evalue']}")
            elif kind == "status" and content["execution_state"] == "idle":
                return "\n".join(output)


def start(tmp_path: Path, **environment: str) -> tuple:
    env = {
        **os.environ,
        "COURSE_LIB_PROGRESS": str(tmp_path / "progress.sqlite"),
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    return start_new_kernel(kernel_name="python3", env=env, cwd=str(tmp_path))


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Kernel]:
    manager, client = start(tmp_path_factory.mktemp("kernel"))
    kernel = Kernel(client)
    kernel.run(IMPORTS, "imports")
    yield kernel
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(shared) -> Kernel:
    """The shared kernel with an empty notebook and fresh progress."""
    shared.run("from course_lib import kernel as _k, session as _s\n_k._cells.clear()")
    shared.run("_s.store().record_reset('count_elements')")
    shared.run(IMPORTS, "imports")
    return shared


def test_a_wrong_answer_is_diagnosed_and_a_right_one_passes(kernel):
    kernel.run(WRONG, "answer")
    report = kernel.run("check(count_elements)")
    assert "failed" in report and "shows hint 1 of 3" in report
    kernel.run(RIGHT, "answer")
    assert "passed" in kernel.run("check(count_elements)")


def test_a_stub_is_not_attempted_and_no_traceback(kernel):
    kernel.run(STUB, "answer")
    assert "not attempted" in kernel.run("check(count_elements)")


def test_hints_come_one_by_one_and_then_the_solution(kernel):
    kernel.run(WRONG, "answer")
    assert "opens after" in kernel.run("solution(count_elements)")
    for level in (1, 2, 3):
        assert f"{level} of 3" in kernel.run("hint(count_elements)")
    assert "def count_elements" in kernel.run("solution(count_elements)")


def test_the_solution_opens_after_three_different_attempts(kernel):
    for number in range(3):
        assert "opens after" in kernel.run("solution(count_elements)")
        kernel.run(f"def count_elements(shape):\n    return {number} - 5", "answer")
        kernel.run("check(count_elements)\ncheck(count_elements)")
    assert "def count_elements" in kernel.run("solution(count_elements)")


def test_passing_hands_out_the_reference_until_the_answer_passes(kernel):
    kernel.run(WRONG, "answer")
    assert "Using the course's count_elements" in kernel.run("f = passing(count_elements)")
    assert kernel.run("f((2, 3))") == "6"
    kernel.run(RIGHT, "answer")
    assert kernel.run("passing(count_elements) is count_elements") == "True"


def test_a_stale_helper_in_the_kernel_does_not_count(kernel):
    kernel.run("def helper(shape):\n    n = 1\n    for s in shape: n *= s\n    return n", "helper")
    kernel.run("def count_elements(shape):\n    return helper(shape)", "answer")
    assert "passed" in kernel.run("check(count_elements)")
    report = kernel.run("check(count_elements)", deleted=("helper",))
    assert "NameError" in report and "error" in report


def test_running_a_cell_again_replaces_it(kernel):
    kernel.run("helper = lambda shape: 0", "helper")
    kernel.run("import math\nhelper = math.prod", "helper")
    kernel.run("def count_elements(shape):\n    return helper(shape)", "answer")
    assert "passed" in kernel.run("check(count_elements)")


def test_a_patched_global_does_not_reach_the_answer(kernel):
    kernel.run("import builtins\nreal_sum, builtins.sum = sum, lambda *a: 6", "patch")
    kernel.run("torch.set_default_dtype(torch.float64)", "dtype")
    try:
        kernel.run(RIGHT, "answer")
        assert "passed" in kernel.run("check(count_elements)")
        assert "float64" in kernel.run("torch.get_default_dtype()")
    finally:
        kernel.run("builtins.sum = real_sum; torch.set_default_dtype(torch.float32)")


def test_a_name_a_lambda_and_an_unknown_name(kernel):
    kernel.run("import math\ncount_elements = lambda shape: math.prod(shape)", "answer")
    assert "passed" in kernel.run("check(count_elements)")
    assert "passed" in kernel.run("check('count_elements')")
    assert "LookupError" in kernel.run("check(len)")


def test_predictions(kernel):
    assert "replace the dots" in kernel.run("predict('first_prediction', ...)")
    assert "ValueError" in kernel.run("predict('first_prediction', 'z')")
    assert "LookupError" in kernel.run("predict('nothing', 'a')")
    replies = {kernel.run(f"predict('first_prediction', '{letter}')") for letter in "abc"}
    assert len(replies) == 3 and sum("not what happens" in reply for reply in replies) == 2


def test_the_map_of_the_course(kernel):
    kernel.run(RIGHT, "answer")
    kernel.run("check(count_elements)")
    assert "count_elements" in kernel.run("progress()")


def test_an_endless_answer_can_be_interrupted(kernel, shared):
    kernel.run("def count_elements(shape):\n    print('started', flush=True)\n    while True: pass", "answer")
    code = "import _thread, threading\nthreading.Timer(0.5, _thread.interrupt_main).start()\ncheck(count_elements)"
    report = kernel.run(code)
    assert "interrupted" in report
    assert kernel.run("1 + 1") == "2"


def test_cells_without_history_are_known_too(tmp_path):
    """nbval runs every cell with store_history=False."""
    manager, client = start(tmp_path, COURSE_LIB_STRICT="1")
    try:
        kernel = Kernel(client)
        kernel.run("import math\n" + IMPORTS, history=False)
        kernel.run("def count_elements(shape):\n    return math.prod(shape)", history=False)
        assert "passed" in kernel.run("check(count_elements)", history=False)
        kernel.run(WRONG, history=False)
        assert "CheckFailed" in kernel.run("check(count_elements)", history=False)
        kernel.run(STUB, history=False)
        assert "CheckFailed" in kernel.run("check(count_elements)", history=False)
        assert "CheckFailed" in kernel.run("predict('first_prediction', ...)", history=False)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_importing_the_library_is_cheap_and_needs_no_torch():
    import subprocess

    code = "import sys, course_lib; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
