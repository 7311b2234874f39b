"""Notebook 09 where something is missing: no ONNX, and no compiler imported before it is asked for."""

from __future__ import annotations

import subprocess
import sys

import nbformat

from tests.notebooks import ROOT, errors, run, solved

NO_ONNX = "import sys; sys.modules.update(onnx=None, onnxscript=None, onnxruntime=None)"


def printed(notebook) -> str:
    streams = (o for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type == "stream")
    return "".join(stream.text for stream in streams)


def test_the_notebook_is_complete_without_onnx(tmp_path):
    notebook = solved("09_inference")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(NO_ONNX))
    done = run(notebook, tmp_path)
    assert errors(done) == []
    assert "Not installed: onnx, onnxscript, onnxruntime" in printed(done)
    assert "model.onnx" not in printed(done)


def test_the_stored_outputs_are_those_with_onnx():
    assert "model.onnx" in printed(solved("09_inference"))


def test_checking_does_not_import_the_compiler():
    """It takes seconds, and most notebooks never compile."""
    code = (
        "import sys; from course_lib.exercises import inference, tensors\n"
        "from course_lib.checking import judge_callable\n"
        "for exercise in (tensors.clear_, inference.predict_logits, inference.pad_requests):\n"
        "    assert judge_callable(exercise, exercise.reference).passed\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
