"""Pictures tell the truth about live tensors, stay the same, and show a learner's text literally."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser

import pytest
import torch

from course_lib.checking import Facet, Question, Report, Verdict
from course_lib.display import (
    course_map_html,
    course_map_text,
    explore,
    hint_face,
    question_html,
    question_text,
    report_html,
    report_text,
    show_storage,
    solution_face,
)
from course_lib.display.explorer import OPERATIONS, sizes, starts
from course_lib.display.strips import strips_of
from course_lib.display.theme import STATE_COLORS, STATE_SYMBOLS, TENSOR_COLORS, inline, prose

VOID = {"br"}


def arange(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(size).numel(), dtype=dtype).reshape(size)


TENSORS = {
    "0-d": lambda: torch.tensor(3.5),
    "1-d": lambda: arange(5),
    "2-d": lambda: arange(3, 4),
    "transposed": lambda: arange(3, 4).t(),
    "3-d": lambda: arange(2, 3, 4),
    "4-d permuted": lambda: arange(2, 3, 2, 2).permute(3, 1, 0, 2),
    "a slice in the middle": lambda: arange(4, 5)[1:3, 1::2],
    "expanded": lambda: arange(3).expand(4, 3),
    "expanded scalar": lambda: torch.tensor(1.0).expand(2, 2),
    "overlapping windows": lambda: arange(8).unfold(0, 3, 1),
    "bfloat16": lambda: arange(2, 2, dtype=torch.bfloat16),
    "bool": lambda: torch.tensor([[True, False], [False, True]]),
    "int8": lambda: arange(2, 2, dtype=torch.int8),
    "large integers": lambda: torch.tensor([2**40, -(2**62)]),
    "not finite": lambda: torch.tensor([float("nan"), float("inf"), -0.0]),
    "complex": lambda: torch.tensor([1 + 2j, 3 - 4j]),
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "empty": lambda: torch.empty(0, 3),
    "an empty slice": lambda: arange(4)[2:2],
    "meta": lambda: torch.empty(2, 3, device="meta"),
    "requires grad": lambda: arange(2, 2).requires_grad_(),
    "a result with a graph": lambda: arange(2, 2).requires_grad_() * 2,
    "a Parameter": lambda: torch.nn.Parameter(arange(2, 2)),
    "more than is drawn": lambda: arange(40, 50),
    "the end of a long storage": lambda: arange(1000)[990:],
    "more blocks than are drawn": lambda: arange(3, 4, 2, 2),
}


@pytest.fixture(params=TENSORS)
def x(request) -> torch.Tensor:
    return TENSORS[request.param]()


class Boxes(HTMLParser):
    """The boxes of a picture as (slots, number, value), of strips and of grids. Refuses tags left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.strip: list[tuple[set[int], str, str]] = []
        self.grid: list[tuple[set[int], str, str]] = []
        self.in_grid = False
        self.box: tuple[set[int], list[str]] | None = None
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        classes = (dict(attrs).get("class") or "").split()
        if tag not in VOID:
            self.open.append(tag)
        if tag == "div" and "t" in classes:
            self.in_grid = True
        if tag == "h4":
            self.in_grid = False
        if tag == "td" and "b" in classes:
            self.box = {int(c.split("-")[1]) for c in classes if "-" in c}, []

    def handle_data(self, data):
        if self.box is not None:
            self.box[1].append(data)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "td" and self.box is not None:
            slots, texts = self.box
            (self.grid if self.in_grid else self.strip).append((slots, texts[0], "".join(texts[1:])))
            self.box = None


def slots_by_arithmetic(x: torch.Tensor) -> set[int]:
    indices = itertools.product(*map(range, x.shape))
    return {
        x.storage_offset() + sum(i * s for i, s in zip(index, x.stride(), strict=True)) for index in indices
    }


def read_counts_by_visiting(x: torch.Tensor, slots: range) -> list[int]:
    """Every element visited through a tensor of slot numbers that has the same geometry."""
    numbers = torch.arange(x.untyped_storage().nbytes() // x.element_size())
    seen = numbers.as_strided(x.size(), x.stride(), x.storage_offset()).flatten().tolist()
    return [seen.count(slot) for slot in slots]


# ---- show_storage --------------------------------------------------------------------------------------


def test_every_box_of_a_grid_names_the_slot_that_its_element_reads(x):
    numbers = torch.arange(x.untyped_storage().nbytes() // x.element_size())
    seen = numbers.as_strided(x.size(), x.stride(), x.storage_offset())
    part = seen[tuple(slice(0, n) for n in _drawn_shape(x))] if x.dim() else seen
    expected = part.flatten().tolist()[: _boxes_drawn(x)]
    boxes = Boxes(show_storage(x).html).grid
    assert [int(number) for _, number, _ in boxes] == expected
    assert [slots for slots, _, _ in boxes] == [{slot} for slot in expected]


def _drawn_shape(x: torch.Tensor) -> list[int]:
    return [*(min(n, 8) for n in x.shape[:-1]), min(x.shape[-1], 16)]


def _boxes_drawn(x: torch.Tensor) -> int:
    """At most 8 blocks of rows and columns."""
    if x.dim() <= 2:
        return x.numel()
    rows, columns = _drawn_shape(x)[-2:]
    return 8 * rows * columns


def test_lanes_count_the_readers_of_every_slot(x):
    (strip,) = strips_of(["x"], (x,))
    slots = range(strip.first, strip.first + strip.shown)
    assert strip.read_counts(x) == read_counts_by_visiting(x, slots)


def test_a_slot_that_nothing_reads_is_hatched_and_no_other(x):
    html = show_storage(x).html
    hatched = {int(slot) for slot in re.findall(r'class="b u A-(\d+)"', html)}
    shown = {slot for slots, _, _ in Boxes(html).strip for slot in slots}
    assert hatched == shown - slots_by_arithmetic(x)
    assert ("Dashed boxes" in html) == bool(hatched)


def test_the_same_tensor_gives_the_same_picture(x):
    once, twice = show_storage(x), show_storage(x)
    assert (once.html, once.text) == (twice.html, twice.text)


def test_a_new_tensor_with_the_same_content_gives_the_same_picture():
    pictures = {show_storage(make(), names=["x"]).html for make in [TENSORS["transposed"]] * 3}
    assert len(pictures) == 1


def test_a_picture_shows_no_address(x):
    picture = show_storage(x, names=["x"])
    address = x.untyped_storage().data_ptr()
    assert "0x" not in picture.html + picture.text
    assert not address or str(address) not in picture.html + picture.text


def test_looking_changes_nothing(x):
    before = (x._version, x.requires_grad, x.is_leaf, x.storage_offset(), x.size(), x.stride())
    rng = torch.get_rng_state()
    show_storage(x)
    assert (x._version, x.requires_grad, x.is_leaf, x.storage_offset(), x.size(), x.stride()) == before
    assert torch.equal(torch.get_rng_state(), rng)


def test_values_are_those_of_the_storage_now():
    x = arange(4)
    x[2] = 77
    assert [value for _, _, value in Boxes(show_storage(x).html).strip] == ["0.", "1.", "77.", "3."]


def test_a_conjugate_shows_the_raw_number_in_the_strip_and_its_conjugate_in_the_grid():
    boxes = Boxes(show_storage(torch.tensor([1 + 2j]).conj()).html)
    assert (boxes.strip[0][2], boxes.grid[0][2]) == ("1+2j", "1-2j")


def test_views_share_a_strip_and_copies_get_another():
    x = arange(3, 4)
    text = show_storage(x, x.t(), x.t().contiguous(), names=["x", "y", "z"]).text
    assert text.count("storage A:") == text.count("storage B:") == 1
    assert "y  size (4, 3)  stride (1, 4)  offset 0  view of storage A" in text
    assert "z  size (4, 3)  stride (3, 1)  offset 0  view of storage B" in text


def test_empty_and_meta_storages_are_told_apart():
    text = show_storage(torch.empty(0), torch.empty(0), torch.empty(2, device="meta")).text
    assert re.findall(r"^storage (\w):", text, re.MULTILINE) == ["A", "B", "C"]


def test_meta_tensors_say_that_there_is_no_data():
    picture = show_storage(torch.empty(2, 2, device="meta"))
    assert "no data" in picture.text
    assert all(value == "" for _, _, value in Boxes(picture.html).strip)


def test_the_same_tensor_twice_has_two_lanes():
    x = arange(2)
    text = show_storage(x, x).text
    assert len(re.findall(r"^  x +(\S) +(\S)$", text, re.MULTILINE)) == 2


def test_elements_of_different_widths_share_a_strip_in_bytes():
    x = torch.tensor([1.0, 2.0])
    picture = show_storage(x, x.view(torch.int16))
    boxes = Boxes(picture.html)
    assert [number for _, number, _ in boxes.strip] == ["0", "2", "4", "6"]
    assert [slots for slots, _, _ in boxes.grid] == [{0, 1}, {2, 3}, {0}, {1}, {2}, {3}]
    assert "numbered in bytes" in picture.text


def test_a_slot_read_more_than_once_carries_its_count():
    times = "\N{MULTIPLICATION SIGN}"
    assert f"{times}4" in show_storage(arange(3).expand(4, 3)).text
    assert times not in show_storage(arange(3)).text


def test_a_long_storage_says_which_part_is_shown():
    long = torch.arange(1_000_000)
    assert "first 64 of 1000000 slots" in show_storage(long).text
    assert "999984 to 999999" in show_storage(long[999_990:]).text
    assert "first 8 of 40 rows, 16 of 50 columns shown" in show_storage(arange(40, 50)).text


def test_a_billion_elements_are_drawn_without_visiting_them():
    picture = show_storage(torch.zeros(1).expand(1000, 1000, 1000))
    assert "1000000000 elements over 1 slot" in picture.text


def test_captions_are_the_expressions_as_typed():
    x = arange(3, 4)
    assert "\nx[1:, ::2]  size (2, 2)" in show_storage(x, x[1:, ::2]).text


def test_names_replace_the_expressions_and_are_escaped():
    picture = show_storage(arange(2), names=["<b>x</b>"])
    assert "<b>x</b>  size" in picture.text
    assert "&lt;b&gt;x&lt;/b&gt;" in picture.html
    assert "<b>x</b>" not in picture.html


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: show_storage(), "at least one tensor"),
        (lambda: show_storage([1, 2]), "of type list"),
        (lambda: show_storage(torch.eye(2).to_sparse()), "sparse_coo"),
        (lambda: show_storage(arange(2), names=["x", "y"]), "one for each tensor"),
        (lambda: show_storage(arange(2), names="x"), "one for each tensor"),
        (lambda: explore(3), "of type int"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_reason(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_picture_has_a_name_for_those_who_do_not_see_it():
    html = show_storage(arange(2, 2), names=["x"]).html
    assert re.search(r'role="img" aria-label="storage A: 4 slots[^"]*x: size \(2, 2\)', html)


# ---- explore -------------------------------------------------------------------------------------------

EXPLORED = [
    "0-d",
    "1-d",
    "2-d",
    "transposed",
    "3-d",
    "expanded",
    "empty",
    "an empty slice",
    "meta",
    "conjugated",
]


def every_setting(control) -> list:
    """All values of a dropdown, and the ends and the middle of a slider, as they are now."""
    if hasattr(control, "options"):
        return [option[1] if isinstance(option, tuple) else option for option in control.options]
    return sorted({control.min, (control.min + control.max) // 2, control.max})


def torch_says(expression: str, x: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    try:
        with torch.no_grad():
            y = eval(expression, {"x": x, "torch": torch})
    except (RuntimeError, IndexError):
        return None, False
    return y, torch._C._is_alias_of(x, y)


def assert_truth(explorer) -> None:
    current = explorer.current
    y, shares = torch_says(current.expression, explorer.x)
    if y is None:
        assert current.verdict.startswith("PyTorch refuses: ")
        return
    assert current.verdict.startswith(("a view", "x itself")) == shares
    assert current.verdict.startswith("a copy") != shares
    assert (current.result.size(), current.result.stride()) == (y.size(), y.stride())
    assert f"size {tuple(y.size())}  stride {y.stride()}" in repr(explorer)


@pytest.mark.parametrize("name", EXPLORED)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_setting_of_every_control_shows_the_truth(name, operation):
    explorer = explore(TENSORS[name]())
    for start in starts(explorer.x):
        explorer.start.value = start
        explorer.operation.value = operation
        assert_truth(explorer)
        for control in explorer.controls.values():
            for value in every_setting(control):
                control.value = value
                assert_truth(explorer)


def test_as_strided_never_leaves_the_storage():
    explorer = explore(arange(3, 4))
    explorer.operation.value = "as_strided"
    generator = torch.Generator().manual_seed(0)
    names = list(explorer.controls)
    for _ in range(300):
        control = explorer.controls[names[torch.randint(len(names), (), generator=generator)]]
        control.value = int(torch.randint(control.min, control.max + 1, (), generator=generator))
        assert explorer.current.is_view, explorer.current
    assert max(control.max for control in explorer.controls.values()) > 1


def test_the_explorer_shows_a_view_a_copy_and_a_refusal():
    explorer = explore()
    explorer.start.value = "x.transpose(0, 1)"
    explorer.operation.value = "reshape"
    assert explorer.current.verdict == "a copy: 96 bytes allocated"
    assert "y = x.transpose(0, 1).reshape(12)" in explorer.panel.value
    explorer.operation.value = "view"
    assert "PyTorch refuses" in explorer.panel.value
    explorer.start.value = "x"
    assert explorer.current.verdict == "a view: shares the storage"
    explorer.operation.value = "contiguous"
    assert explorer.current.verdict.startswith("x itself")


def test_every_control_of_the_explorer_has_a_label():
    explorer = explore()
    for operation in OPERATIONS:
        explorer.operation.value = operation
        assert all(control.description for control in explorer.controls.values())


def test_the_explorer_has_a_text_form_that_stays_the_same():
    bundle = explore()._repr_mimebundle_()
    assert bundle["text/plain"] == repr(explore())
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "y = x.view(12)\na view: shares the storage" in bundle["text/plain"]


def test_sizes_fit_except_the_last():
    *fitting, last = sizes(12)
    assert all(torch.Size(size).numel() == 12 for size in fitting)
    assert torch.Size(last).numel() == 13
    assert (2, 2, 3) in fitting


# ---- reports -------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'x'"


def report(verdict: Verdict = Verdict.FAILED, **changes) -> Report:
    known = {
        "exercise": "flat_index",
        "title": "Where does an element live?",
        "points": 0,
        "max_points": 1,
        "summary": "One case gives another number.",
        "cases_passed": 3,
        "cases_total": 14,
    }
    return Report(verdict=verdict, **{**known, **changes})


def failed_report() -> Report:
    return report(
        case="a slice in the middle",
        call="flat_index((1, 2), (4, 1), 5)",
        facets=(Facet("exception", True, "none", "none"), Facet("value", False, "11", "6")),
        misconception="no_offset",
        diagnosis="You left the storage offset out.",
        error="ValueError: no",
        printed="debug",
        next_step="`hint(flat_index)` shows hint 1 of 3",
    )


def in_order(text: str, *pieces: str) -> bool:
    return re.search(".*?".join(map(re.escape, pieces)), text, re.DOTALL) is not None


def test_a_failure_reads_from_the_diagnosis_to_the_next_step():
    shown = failed_report()
    pieces = (
        shown.summary,
        shown.diagnosis,
        shown.case,
        "flat_index((1, 2)",
        "11",
        "6",
        "ValueError: no",
        "debug",
    )
    assert in_order(report_html(shown), *pieces, "Next:")
    assert in_order(report_text(shown), *pieces, "Next:")


def test_facets_that_differ_come_first_and_are_marked_in_words():
    html = report_html(failed_report())
    assert in_order(html, "value</th>", "✗ different", "exception</th>", "✓ same")


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_is_a_word_and_a_symbol_and_not_only_a_color(verdict):
    badge = f"{STATE_SYMBOLS[verdict.value]} {verdict.value}"
    assert badge in report_html(report(verdict))
    assert report_text(report(verdict)).startswith(badge)


def test_a_passed_report_is_short():
    assert len(report_text(report(Verdict.PASSED)).splitlines()) == 2


def test_a_grader_fault_does_not_blame_the_learner():
    assert "your code raised" not in report_text(report(Verdict.GRADER_FAULT, error="KeyError: 'x'"))


def test_nothing_that_a_learner_wrote_becomes_markup():
    names = ("title", "summary", "case", "call", "diagnosis", "error", "printed", "next_step")
    shown = report(**dict.fromkeys(names, HOSTILE), facets=(Facet(HOSTILE, False, HOSTILE, HOSTILE),))
    html = report_html(shown)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= len(names) + 3
    Boxes(html)


def test_a_long_traceback_is_folded_with_its_last_line_in_sight():
    error = "\n".join([*(f"  line {i}" for i in range(20)), "ValueError: the reason"])
    html = report_html(report(Verdict.ERROR, error=error))
    assert re.search(r"<summary>[^\n]*?ValueError: the reason</code></summary>", html)
    assert "<details" not in report_html(report(Verdict.ERROR, error="ValueError: the reason"))


def test_long_values_are_cut_and_say_so():
    long = "\n".join(map(str, range(100)))
    facets = (Facet("value", False, long, "1"),)
    assert "88 more lines" in report_html(report(facets=facets))
    assert "88 more lines" in report_text(report(facets=facets))


def test_prose_of_a_text_report_fits_its_width():
    shown = report(summary="word " * 80, diagnosis="word " * 80)
    assert max(map(len, report_text(shown, width=60).splitlines()[1:])) <= 60


def test_reports_look_the_same_every_time():
    assert report_html(failed_report()) == report_html(failed_report())
    assert report_text(failed_report()) == report_text(failed_report())


# ---- predictions, hints, solutions ---------------------------------------------------------------------


def question() -> Question:
    return Question(
        "view_write",
        objective="tensors.views",
        text="What does it print?",
        choices={"a": "`0`", "b": "`99`", "c": "an error"},
        answer="b",
        replies={"a": "A view has no numbers of its own.", "b": "One storage.", "c": HOSTILE},
    )


@pytest.mark.parametrize("show", [question_html, question_text])
def test_a_wrong_prediction_gets_its_own_reply_and_never_the_answer(show):
    shown = show(question(), "a", True)
    assert "A view has no numbers of its own." in shown
    assert "Run the next cell and see." in shown
    assert "99" not in shown
    assert "One storage." not in shown


@pytest.mark.parametrize("show", [question_html, question_text])
def test_a_right_prediction_says_so(show):
    assert in_order(show(question(), "b", True), "✓ right", "One storage.")


@pytest.mark.parametrize("choice", [..., None, "z", 3, ["a"]])
@pytest.mark.parametrize("show", [question_html, question_text])
def test_what_is_no_choice_is_asked_for_again(show, choice):
    assert in_order(show(question(), choice, True), "no prediction yet", "one of")


def test_a_reply_is_escaped_and_says_when_it_is_a_repetition():
    html = question_html(question(), "c", False)
    assert "<script" not in html
    assert "before" in html
    assert "before" not in question_html(question(), "c", True)


def test_a_hint_names_the_next_one_until_the_last():
    assert "hint(flat_index)` shows hint 2 of 3" in hint_face("flat_index", 1, 3, "Look.").text
    assert "Next" not in hint_face("flat_index", 3, 3, "Look.").html


def test_a_solution_shows_its_source_literally():
    face = solution_face("f", "def f(x):\n    return x if 1 < 2 else '<b>'", "Because.")
    assert "1 &lt; 2 else &#x27;&lt;b&gt;" in face.html
    assert "        return x if 1 < 2 else '<b>'" in face.text


def test_prose_knows_code_and_strong_and_nothing_else():
    assert inline("a `x < y` **b** <i>") == "a <code>x &lt; y</code> <strong>b</strong> &lt;i&gt;"
    assert prose("one\n\n```python\nx = '`'\n```\n\ntwo") == (
        "<p>one</p><pre><code>x = &#x27;`&#x27;</code></pre><p>two</p>"
    )


# ---- the map -------------------------------------------------------------------------------------------

ROWS = [
    ("00 Start", [("count", "exercise", "passed", False)]),
    (
        "01 <Tensors>",
        [
            ("strides", "exercise", "not attempted", True),
            ("views", "exercise", "tried", False),
            ("write", "prediction", "passed", False),
        ],
    ),
]


@pytest.mark.parametrize("draw", [course_map_html, course_map_text])
def test_the_map_counts_and_names_what_is_next(draw):
    drawn = draw(ROWS)
    assert "0 of 2 exercises, 1 of 1 prediction" in drawn
    assert in_order(drawn, "✓ count", "○ strides *", "◐ views", "✓ write")
    assert "the exercise views, in 01" in drawn


def test_the_map_offers_stretch_only_when_the_core_is_done():
    rows = [("01", [("a", "exercise", "not attempted", True), ("b", "exercise", "passed", False)])]
    assert "the stretch exercise a, in 01" in course_map_text(rows)
    assert "everything" in course_map_text([("01", [("b", "exercise", "passed", False)])])


def test_the_map_is_escaped_and_says_states_in_words():
    html = course_map_html(ROWS)
    assert "01 &lt;Tensors&gt;" in html
    assert 'aria-label="exercise views: tried"' in html
    Boxes(html)


def test_a_course_without_notebooks_has_a_map():
    assert "Next" in course_map_text([])


# ---- colors --------------------------------------------------------------------------------------------


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2, of '#rrggbb'."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    dark, light = sorted(map(luminance, (a, b)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("color", sorted({*TENSOR_COLORS, *STATE_COLORS.values()}))
def test_every_color_reads_well_on_light_and_on_dark_pages(color):
    assert contrast(color, "#ffffff") >= 4.5  # also: white text on it
    assert contrast(color, "#111111") >= 3  # JupyterLab's dark page
