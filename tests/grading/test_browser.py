"""The two pages in a real browser, light and dark, wide and narrow, with a large room, by mouse and by keyboard.

Screenshots go to the folder named by COURSE_LIB_SCREENSHOTS, or to pytest's temporary folder.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from course_lib import exercises
from course_lib.checking import find_answer, judge
from course_lib.grading.feedback import write_feedback
from course_lib.grading.gradebook import Graded, Row
from course_lib.grading.room import write_room
from course_lib.selfcheck import judge_cells
from tests.answers import definition
from tests.grading.rooms import room, submission

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        BROWSER is None, reason="no Chromium found; install the package chromium to run these tests"
    ),
]
NOTEBOOK = "01_tensors"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 800}

# The least contrast of any text on the page against what is painted behind it, tints blended; with the text.
LEAST_CONTRAST = """() => {
    const parse = color => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const over = ([r, g, b, a = 1], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
    const light = c => c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const chain = e => e ? [...chain(e.parentElement), e] : [];
    const tint = style => (style.backgroundImage.match(/rgba?\\([^)]*\\)/) || []).slice(0, 1);
    const paints = e => [getComputedStyle(e)].flatMap(style => [style.backgroundColor, ...tint(style)]);
    const behind = e => chain(e).flatMap(paints).map(parse).reduce((u, c) => over(c, u), [255, 255, 255]);
    const opacity = e => chain(e).reduce((all, x) => all * getComputedStyle(x).opacity, 1);
    let least = [99, ""];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let seen = 0; walker.nextNode() && seen < 3000; seen++) {
        const node = walker.currentNode, e = node.parentElement;
        if (!node.data.trim() || e.closest("style, i") || !e.getClientRects().length) continue;
        const under = behind(e), [r, g, b, a = 1] = parse(getComputedStyle(e).color);
        const [x, y] = [light(over([r, g, b, a * opacity(e)], under)), light(under)];
        const contrast = (Math.max(x, y) + .05) / (Math.min(x, y) + .05);
        if (contrast < least[0]) least = [contrast, node.data.trim().slice(0, 40)];
    }
    return least; }"""
ON_TOP = """e => { const box = e.getBoundingClientRect();
    return e.contains(document.elementFromPoint(box.x + 20, box.bottom - 8)); }"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    folder = Path(os.environ.get("COURSE_LIB_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def feedback(tmp_path_factory) -> Path:
    """A page with every kind of result."""
    asked = exercises.exercises_of(NOTEBOOK)
    answers = ["import torch"] + [
        definition(item.misconceptions[0].answer if place % 2 else item.reference, item.name)
        for place, item in enumerate(asked[:6])
    ]
    answers += [f"def {asked[6].name}(x, n_heads):\n    print('shapes', x.shape)\n    return undefined"]
    cells = (*answers, 'predict("view_write", "a")', 'predict("slice_offset", "b")')
    found = submission('דנה כהן & "Zoë" <b>', cells=cells, notes=("nbformat 3", "renamed"))
    rows = tuple(
        Row(found.student, NOTEBOOK, x.name, x.kind, x.verdict, x.points, x.max_points, x.summary)
        for x in judge_cells(list(cells), NOTEBOOK)
    )
    reports = tuple(judge(item, find_answer(cells, item.name)) for item in asked)
    one = Graded(found, rows, reports, "time and memory limits, no network, own files", "3f2a9c")
    return write_feedback(one, tmp_path_factory.mktemp("feedback"))


@pytest.fixture(scope="module")
def large_room(tmp_path_factory) -> Path:
    return write_room(room(200, (NOTEBOOK, "02_autograd")), tmp_path_factory.mktemp("room"))


class Opened:
    """A page open in a window of its own."""

    def __init__(self, browser, path: Path, theme: str, size: dict) -> None:
        self.page = browser.new_page(viewport=size, color_scheme=theme)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.goto(path.as_uri())
        self.path = path

    def is_quiet(self) -> bool:
        """Nothing but the file itself was asked for, and the browser had nothing to say."""
        return self.requests == [self.path.as_uri()] and self.complaints == []


@pytest.fixture
def open_page(browser):
    opened = []

    def open_it(path: Path, theme: str = "light", size: dict = WIDE) -> Opened:
        opened.append(Opened(browser, path, theme, size))
        return opened[-1]

    yield open_it
    for one in opened:
        one.page.close()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["feedback", "large_room"])
def test_it_can_be_read(name, theme, size, open_page, pictures, request):
    opened = open_page(request.getfixturevalue(name), theme, size)
    assert opened.page.evaluate(OVERFLOW) == 0
    contrast, text = opened.page.evaluate(LEAST_CONTRAST)
    assert contrast >= 4.5, text
    assert opened.is_quiet()
    opened.page.screenshot(path=pictures / f"{theme}_{name}_{size['width']}.png")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_overview_leads_to_the_report(theme, feedback, open_page, pictures):
    page = open_page(feedback, theme).page
    wrong = exercises.exercises_of(NOTEBOOK)[1].name
    page.get_by_role("link", name=wrong, exact=True).click()
    card = page.get_by_role("region", name=wrong, exact=True)
    playwright.expect(card).to_be_in_viewport()
    playwright.expect(card).to_contain_text("What went wrong")
    page.screenshot(path=pictures / f"{theme}_feedback_report.png")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_names_and_exercises_stay_in_sight_while_the_grid_is_scrolled(theme, large_room, open_page, pictures):
    page = open_page(large_room, theme).page
    page.get_by_role("link", name=f"Who did what: {NOTEBOOK}").click()
    grid = page.get_by_role("region", name=f"Who did what: {NOTEBOOK}")
    grid.focus()
    page.keyboard.press("End")
    playwright.expect(grid.get_by_role("rowheader").nth(-2)).to_be_in_viewport()
    head = grid.get_by_role("columnheader", name="student")
    playwright.expect(head).to_be_in_viewport()
    playwright.expect(grid.get_by_text("passed, in %")).to_be_in_viewport()
    assert head.evaluate(ON_TOP)
    page.screenshot(path=pictures / f"{theme}_grid_end.png")


def test_a_narrow_grid_scrolls_sideways_under_its_names(large_room, open_page, pictures):
    page = open_page(large_room, size=NARROW).page
    grid = page.get_by_role("region", name=f"Who did what: {NOTEBOOK}")
    grid.scroll_into_view_if_needed()
    grid.evaluate("e => e.scrollLeft = 300")
    box = grid.get_by_role("rowheader", name="student010").bounding_box()
    assert box["x"] >= 0
    page.screenshot(path=pictures / "narrow_grid.png")


def test_a_screen_reader_hears_words_for_the_symbols(large_room, open_page):
    page = open_page(large_room).page
    line = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="student010")).first
    heard = line.get_by_role("cell").all_text_contents()[1:]
    assert heard and all(
        re.match(r".(passed|failed|not attempted|error|grader fault)", text) for text in heard
    )


def test_nothing_of_a_name_is_run(tmp_path, open_page):
    names = ["<img src=x onerror=document.title='run'>", "</title><script>document.title='run'</script>"]
    rows = [Row(name, NOTEBOOK, "a", "exercise", "passed", 1, 1, name) for name in names]
    pages = [write_room(rows, tmp_path)]
    pages += [write_feedback(Graded(submission(row.student), (row,), (), ""), tmp_path) for row in rows]
    for path in pages:
        opened = open_page(path)
        assert opened.page.title() != "run"
        assert opened.is_quiet()
