"""What a learner sees in JupyterLab, in a real browser: a wrong answer, its diagnosis, a hint, the right answer,
the explorer, the map of the course; and Run All on half-solved notebooks.

Screenshots go to the folder named by COURSE_LIB_SCREENSHOTS, or to pytest's temporary folder.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from course_lib import exercises
from tests.answers import definition
from tests.notebooks import (
    BROWSER,
    NAMES,
    errors,
    half_solved,
    kernel_environment,
    untouched,
    verdicts_of_the_command_line,
    verdicts_shown,
)

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(
        BROWSER is None, reason="no Chromium found; install the package chromium to run these tests"
    ),
]

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
KERNEL_READY = """() => {
    const panel = window.jupyterapp?.shell.currentWidget, session = panel?.sessionContext;
    const kernel = session?.session?.kernel;
    return session?.isReady && kernel?.connectionStatus == "connected" && kernel?.status == "idle"; }"""
NEW_KERNEL = "void window.jupyterapp?.shell.currentWidget?.sessionContext.changeKernel({name: 'python3'})"
CONTENT = "() => JSON.stringify(window.jupyterapp.shell.currentWidget.content.model.toJSON())"
RUN_TO_THE_END = """() => {  // or to an error, where Run All stops
    const cells = [...window.jupyterapp.shell.currentWidget.content.model.cells].map(cell => cell.toJSON());
    const plain = cells.filter(cell => !(cell.metadata.tags || []).includes("raises-exception"));
    const stopped = plain.some(cell => (cell.outputs || []).some(output => output.output_type == "error"));
    return stopped || cells.every(cell => cell.cell_type != "code" || cell.execution_count); }"""


def _settings(folder: Path) -> Path:
    """No news, and every cell in the page, so that tests can find it."""
    written = {
        "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    }
    for name, values in written.items():
        path = folder / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    return folder


class Lab:
    """A running JupyterLab over a folder of notebooks."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder = folder
        environment = kernel_environment(
            scratch,
            JUPYTERLAB_SETTINGS_DIR=str(_settings(scratch / "settings")),
            JUPYTER_RUNTIME_DIR=str(scratch / "runtime"),
        )
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            "--LabApp.expose_app_in_browser=True",
        ]
        self.process = subprocess.Popen(
            [*command, f"--ServerApp.root_dir={folder}"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.url, self.token = self._address()
        self.reader = threading.Thread(target=self.process.stderr.read)  # a full pipe would stop the server
        self.reader.start()

    def _address(self) -> tuple[str, str]:
        for line in self.process.stderr:
            if match := re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)", line):
                return match[1], match[2]
        raise AssertionError("JupyterLab did not start")

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    folder, scratch = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("lab")
    server = Lab(folder, scratch)
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    folder = Path(os.environ.get("COURSE_LIB_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Notebook:
    """A notebook open in a page, used with mouse and keyboard."""

    def __init__(self, browser, lab: Lab, name: str, pictures: Path | None = None) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 1000})
        self.page.set_default_timeout(120_000)  # on a machine that is busy, and cold
        self.elsewhere: list[str] = []
        self.page.on("request", self._note_request)
        self.page.goto(f"{lab.url}/lab/tree/{name}?token={lab.token}&reset")
        self._wait_for_kernel()
        self.pictures, self.prefix = pictures, ""

    def _wait_for_kernel(self) -> None:
        """Now and then a kernel does not come up, as when another program takes its port: then one more is started."""
        try:
            self.page.wait_for_function(KERNEL_READY, polling=100, timeout=60_000)
        except playwright.TimeoutError:
            self.page.evaluate(NEW_KERNEL)
            self.page.wait_for_function(KERNEL_READY, polling=100)

    def _note_request(self, request) -> None:
        if not re.match(r"(https?|wss?)://127\.0\.0\.1|data:|blob:", request.url):
            self.elsewhere.append(request.url)

    def command(self, name: str, arguments: str = "{}") -> None:
        self.page.evaluate(f"void window.jupyterapp.commands.execute('{name}', {arguments})")

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", json.dumps({"theme": f"JupyterLab {name}"}))
        self.page.wait_for_function(f"document.body.dataset.jpThemeName == 'JupyterLab {name}'")

    def cell(self, text: str):
        """The last cell whose source holds `text`."""
        return self.page.locator(".jp-CodeCell", has=self.page.locator(".jp-InputArea", has_text=text)).last

    def rewrite(self, cell, source: str) -> None:
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)

    def run(self, cell, expecting: str):
        """Shift+Enter, and the cell's output once it holds `expecting`."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")
        output = cell.locator(".jp-OutputArea")
        playwright.expect(output).to_contain_text(expecting, timeout=120_000)
        return output

    def add_below(self, cell, source: str):
        """A new cell under `cell`, made by the keyboard."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("b")
        self.page.keyboard.press("Enter")
        self.page.keyboard.insert_text(source)
        return self.cell(source)

    def run_all(self) -> nbformat.NotebookNode:
        """Run All, and the notebook with its outputs."""
        self.command("notebook:run-all-cells")
        self.page.wait_for_function(RUN_TO_THE_END, polling=500, timeout=600_000)
        self.page.wait_for_function(KERNEL_READY, polling=100, timeout=120_000)
        return nbformat.reads(self.page.evaluate(CONTENT), as_version=4)

    def picture(self, name: str, what) -> None:
        what.scroll_into_view_if_needed()
        self.page.screenshot(path=self.pictures / f"{self.prefix}{name}.png")

    def close(self) -> None:
        """The kernel ends too. Nothing was asked of another host."""
        self.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        self.page.close()
        assert self.elsewhere == []


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_a_learner_solves_an_exercise(theme, browser, lab, pictures):
    copy = lab.folder / f"learner_{theme}.ipynb"
    nbformat.write(untouched("01_tensors"), copy)
    notebook = Notebook(browser, lab, copy.name, pictures)
    notebook.prefix = f"{theme.lower()}_"
    notebook.theme(theme)
    exercise = exercises.exercise("same_storage")
    mistake = exercise.misconceptions[1]

    imports, answer, check = (
        notebook.cell("from course_lib import"),
        notebook.cell("def same_storage"),
        notebook.cell("check(same_storage)"),
    )
    notebook.run(imports, "")
    notebook.run(notebook.cell("batch = torch.arange(24)"), "tensor")
    notebook.picture("storage", notebook.run(notebook.cell('names=["batch"]'), "storage A"))
    notebook.run(check, "NameError")  # nothing defines it yet: Python's own words
    notebook.run(answer, "")
    notebook.run(check, "not attempted")
    notebook.picture("not_attempted", check)

    notebook.rewrite(answer, definition(mistake.answer, "same_storage"))
    notebook.run(answer, "")
    report = notebook.run(check, "failed")
    playwright.expect(report).to_contain_text(re.sub(r"`", "", mistake.sentence)[:40])
    playwright.expect(report).to_contain_text(re.compile(r"hint \d of 3"))
    notebook.picture("diagnosis", report)

    hint = notebook.add_below(check, "hint(same_storage)")
    notebook.picture("hint", notebook.run(hint, "of 3"))

    notebook.rewrite(answer, definition(exercise.reference, "same_storage"))
    notebook.run(answer, "")
    notebook.picture("passed", notebook.run(check, "passed"))
    notebook.picture("progress", notebook.run(notebook.add_below(hint, "progress()"), "same_storage"))
    notebook.close()


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_the_explorer_answers_its_sliders(theme, browser, lab, pictures):
    copy = lab.folder / f"explorer_{theme}.ipynb"
    nbformat.write(untouched("01_tensors"), copy)
    notebook = Notebook(browser, lab, copy.name, pictures)
    notebook.prefix = f"{theme.lower()}_"
    notebook.theme(theme)
    notebook.run(notebook.cell("from course_lib import"), "")
    notebook.run(notebook.cell("batch = torch.arange(24)"), "tensor")
    explorer = notebook.run(notebook.cell("explore(batch)"), "storage")
    explorer.get_by_label("operation").select_option("as_strided")
    playwright.expect(explorer).to_contain_text("x.as_strided(")
    notebook.picture("explorer", explorer)
    sliders = explorer.locator(".noUi-handle:visible")
    for slider, key in (
        (sliders.first, "ArrowLeft"),
        (sliders.last, "ArrowRight"),
    ):  # size[0] down, offset up
        before = code_line(explorer)
        slider.focus()
        notebook.page.keyboard.press(key)
        playwright.expect(explorer).not_to_contain_text(before)
    notebook.picture("explorer_moved", explorer)
    notebook.close()


def code_line(explorer) -> str:
    """The line of code that the explorer shows."""
    return re.search(r"y = (x.*)", explorer.inner_text())[1].strip()


@pytest.mark.parametrize("name", NAMES[::-1])
def test_run_all_meets_no_traceback_and_agrees_with_the_command_line(name, browser, lab):
    nbformat.write(half_solved(name), lab.folder / f"{name}.ipynb")
    notebook = Notebook(browser, lab, f"{name}.ipynb")
    done = notebook.run_all()
    assert errors(done) == []
    assert verdicts_shown(done) == verdicts_of_the_command_line(done, name)
    notebook.close()
