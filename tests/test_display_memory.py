"""Pictures of a memory timeline and of a trace: true to the data, the same every time, readable without color."""

from __future__ import annotations

import json
import re

import pytest

from course_lib.display import show_memory, show_trace
from course_lib.display.memory import size_text
from course_lib.display.timeline import spans_of
from course_lib.simulation import CATEGORIES, Allocation, GPTConfig, Timeline, track_training


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return track_training(GPTConfig(), batch=2, seq=8, steps=2)


def made_of(*allocations: Allocation, n_events: int, phases=(("forward", 0),)) -> Timeline:
    return Timeline(allocations, phases, n_events)


def heights(html: str, kind: str) -> list[float]:
    """The lowest y (the highest point) of each area of one category."""
    paths = re.findall(rf'<path class="{kind}" d="M([^"]+)Z"', html)
    return [min(float(point.split()[1]) for point in path.split("L")) for path in paths]


# ---- memory ------------------------------------------------------------------------------------------------------


def test_the_same_timeline_gives_the_same_picture(timeline):
    again = track_training(GPTConfig(), batch=2, seq=8, steps=2)
    assert show_memory(timeline).html == show_memory(again).html
    assert repr(show_memory(timeline)) == repr(show_memory(again))


def test_the_highest_point_is_the_peak():
    top = made_of(Allocation(100, "op", "forward", 0, 2, "activations"), n_events=3)
    low = made_of(Allocation(50, "op", "forward", 0, 2, "activations"), n_events=3)
    html = show_memory(top, low, names=["top", "low"]).html
    kind = f"c{CATEGORIES.index('activations')}"
    assert heights(html, kind) == [34.0, 34 + 190 / 2]  # on one scale: the second is half as high


def test_areas_are_stacked():
    both = made_of(
        Allocation(60, "op", "forward", 0, None, "parameters"),
        Allocation(40, "op", "forward", 1, None, "temporary"),
        n_events=2,
    )
    html = show_memory(both).html
    assert heights(html, "c0") == [pytest.approx(34 + 190 * 0.4)]
    assert heights(html, f"c{CATEGORIES.index('temporary')}") == [34.0]


def test_each_category_at_the_peak_is_named_with_its_size(timeline):
    face = show_memory(timeline, names=["two steps"])
    for category, series in timeline.by_category().items():
        if series[timeline.peak_event]:
            said = f"{category} {size_text(series[timeline.peak_event])}"
            assert said in face.html and said in repr(face)


def test_every_phase_is_in_the_picture_and_in_the_text(timeline):
    face = show_memory(timeline)
    for name, nbytes in timeline.peaks().items():
        assert f"<title>{name}</title>" in face.html
        assert re.search(rf"{name}\s+{size_text(nbytes)}", repr(face))


def test_a_short_peak_is_not_lost_among_many_events():
    steady = [Allocation(10, "op", "forward", 2 * i, 2 * i + 1) for i in range(2000)]
    steady[777] = Allocation(1000, "op", "forward", 1554, 1555)
    html = show_memory(made_of(*steady, n_events=4000)).html
    assert min(heights(html, f"c{CATEGORIES.index('temporary')}")) == 34.0
    assert len(html) < 40_000


def test_captions_are_escaped_and_counted(timeline):
    assert "<b>" not in show_memory(timeline, names=["<b>"]).html.split("</style>")[1]
    with pytest.raises(TypeError, match="a name for each"):
        show_memory(timeline, names=["one", "two"])
    with pytest.raises(TypeError, match="timelines"):
        show_memory()


def test_an_empty_timeline_has_a_picture():
    assert "peak 0 B" in repr(show_memory(made_of(n_events=0, phases=())))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (96, "96 B"), (1024, "1.0 KiB"), (823_410_688, "785.3 MiB"), (2**30, "1.0 GiB")],
)
def test_sizes_in_words(nbytes, text):
    assert size_text(nbytes) == text


# ---- trace -------------------------------------------------------------------------------------------------------


def call(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op") -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid}


TRACE = [
    call("aten::addmm", 20, 30),
    call("step", 0, 100, cat="user_annotation"),
    call("aten::linear", 10, 50),
    call("aten::copy_", 70, 20),
    call("backward <thread>", 5, 60, tid=2),
    {"ph": "M", "name": "thread_name", "tid": 1},
    call("python", 0, 500, cat="python_function"),
]


def test_calls_nest_by_time_within_their_thread():
    threads = spans_of(TRACE)
    (step,) = threads[1]
    assert [child.name for child in step.children] == ["aten::linear", "aten::copy_"]
    assert [child.name for child in step.children[0].children] == ["aten::addmm"]
    assert [span.name for span in threads[2]] == ["backward <thread>"]


def test_boxes_are_as_wide_as_their_calls_and_lie_under_their_callers():
    html = show_trace(TRACE).html
    boxes = {
        title: (float(x), int(y), float(width))
        for x, y, width, title in re.findall(
            r'<rect class="c\d" x="([\d.]+)" y="(\d+)" width="([\d.]+)" height="\d+"><title>([^:<]+(?:::\w+)?):',
            html,
        )
    }
    assert boxes["step"] == (0, 1, 900)
    assert boxes["aten::linear"] == (90, 20, 450)
    assert boxes["aten::addmm"] == (180, 39, 270)


def test_names_are_escaped_and_other_events_left_out():
    html = show_trace(TRACE).html.split("</style>")[1]
    assert "backward &lt;thread&gt;" in html and "<thread>" not in html and "python" not in html


def test_the_same_trace_gives_the_same_picture_whatever_its_order():
    assert show_trace(TRACE).html == show_trace([*TRACE[4::-1], *TRACE[5:]]).html


def test_a_part_of_a_trace():
    face = show_trace(TRACE, within="aten::linear")
    assert "aten::addmm" in repr(face) and "step" not in repr(face)
    with pytest.raises(LookupError, match="no call named 'elsewhere'"):
        show_trace(TRACE, within="elsewhere")
    with pytest.raises(LookupError, match="no calls"):
        show_trace([])


def test_a_trace_is_read_from_its_file(tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": TRACE}))
    assert show_trace(tmp_path / "trace.json").html == show_trace(TRACE).html


def test_calls_too_short_to_see_are_left_out_and_it_is_said():
    face = show_trace([call("long", 0, 10_000), call("short", 5, 1)])
    assert "short:" not in face.html and "left out" in face.html
