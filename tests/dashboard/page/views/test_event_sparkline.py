"""The course of an event's number: only what is recorded, where it lies, and what is said of it in words."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from dash import html
from sample_events import nan_event, spike_event
from test_event_panel import of_type, text_of, with_class

from dashboard.export.event_html import event_html
from dashboard.page.views.event_panel import event_panel
from dashboard.page.views.event_sparkline import HEIGHT, PAD, WIDTH, sparkline
from probe.wire import Event, Evidence

SVG = "{http://www.w3.org/2000/svg}"


def rise(*values: float, kind: str = "loss_spike", value: float | None = 9.5, **changes: Any) -> Event:
    """An event at step 120 with these numbers at the steps before it."""
    first = 120 - len(values)
    neighbours = [(first + at, number) for at, number in enumerate(values)]
    return spike_event(
        kind=kind, evidence=Evidence(value=value, threshold=3.0, neighbours=neighbours), **changes
    )


def drawn(event: Event) -> ElementTree.Element:
    shown = sparkline(event)
    assert shown is not None and shown.address.startswith("data:image/svg+xml,")
    return ElementTree.fromstring(unquote(shown.address.removeprefix("data:image/svg+xml,")))


def lines_of(picture: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]  # type: ignore[misc]
        for line in picture.iter(f"{SVG}polyline")
    ]


def test_sparkline_has_the_steps_before_and_the_event_at_their_places() -> None:
    picture = drawn(rise(2.0, 3.0, 2.0, value=4.0))
    ((first, second, third, last),) = lines_of(picture)
    width, height = WIDTH - 2 * PAD, HEIGHT - 2 * PAD
    for point, (x, share) in zip(
        (first, second, third, last), [(0, 0), (1 / 3, 0.5), (2 / 3, 0), (1, 1)], strict=True
    ):
        assert point == pytest.approx((PAD + x * width, PAD + (1 - share) * height), abs=0.01)
    (dot,) = picture.iter(f"{SVG}circle")
    assert (float(dot.attrib["cx"]), float(dot.attrib["cy"])) == pytest.approx(last, abs=0.01)


def test_sparkline_of_decades_is_logarithmic_and_says_so() -> None:
    event = rise(0.01, 0.1, value=10.0)
    ((_, second, _),) = lines_of(drawn(event))
    assert second[1] == pytest.approx(PAD + (1 - 1 / 3) * (HEIGHT - 2 * PAD), abs=0.01)
    shown = sparkline(event)
    assert shown is not None and shown.caption == "steps 118\u2013120, 100 times the value before, log scale"
    assert (
        shown.words == "loss over steps 118 to 120: 0.01 at first, 0.1 at step 119, 10 at this event, "
        "100 times the value before; log scale"
    )


def test_sparkline_of_what_falls_says_by_what_part() -> None:
    shown = sparkline(rise(8.0, 8.0, value=2.0, kind="gradient_vanishing"))
    assert shown is not None and shown.caption == "steps 118\u2013120, 1/4 of the value before"
    assert "gradient L2 norm" in shown.words
    assert shown.words.endswith("2 at this event, 1/4 of the value before")


def test_sparkline_gaps_nan_before_and_marks_nan_at_the_event() -> None:
    event = rise(1.0, math.nan, 2.0, 3.0, kind="nonfinite_loss", value=math.nan)
    picture = drawn(event)
    assert [len(line) for line in lines_of(picture)] == [1, 2]
    bars = [float(bar.attrib["x1"]) for bar in picture.iter(f"{SVG}line")]
    width = WIDTH - 2 * PAD
    assert bars == pytest.approx([PAD + width / 4, PAD + width], abs=0.01)
    assert not list(picture.iter(f"{SVG}circle"))
    shown = sparkline(event)
    assert shown is not None and shown.words.endswith("3 at step 119, NaN at this event")
    assert shown.caption == "steps 116\u2013120, then NaN"


def test_sparkline_of_what_is_measured_now_and_then_has_the_event_once() -> None:
    event = spike_event(
        kind="overfitting",
        evidence=Evidence(value=2.0, neighbours=[(100, 1.0), (110, 1.5), (120, 2.0)]),
    )
    ((first, second, last),) = lines_of(drawn(event))
    assert second[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.01)
    shown = sparkline(event)
    assert shown is not None and "1.5 at step 110, 2 at this event" in shown.words


@pytest.mark.parametrize(
    "event",
    [
        rise(),
        rise(math.nan, math.nan),
        rise(2.0, value=None),
        rise(math.inf, kind="nonfinite_loss", value=math.nan),
        rise(1.0, 0.1, kind="poor_initialization", value=10.0),  # layers
        rise(1e9, 1e9, kind="memory_leak", value=1e5),  # bytes, and bytes a step
        rise(1.0, 2.0, kind="loss_divergence", value=3.0),  # a median
    ],
)
def test_sparkline_is_none_where_too_little_or_something_else_is_recorded(event: Event) -> None:
    assert sparkline(event) is None
    assert not of_type(event_panel(event), html.Img)


def test_sparkline_of_equal_and_of_huge_values_is_finite() -> None:
    for event in (rise(2.0, 2.0, value=2.0), rise(0.0, 0.0, value=0.0), rise(-1.7e308, 1.0, value=1.7e308)):
        ((*points,),) = lines_of(drawn(event))
        assert all(PAD <= y <= HEIGHT - PAD for _, y in points)
        assert sparkline(event).caption  # type: ignore[union-attr]


def test_panel_and_export_show_the_sparkline_with_its_words_before_the_table() -> None:
    event = nan_event()
    panel = event_panel(event)
    (image,) = of_type(panel, html.Img)
    (figure,) = with_class(panel, "event-spark")
    shown = sparkline(event)
    assert shown is not None
    assert (image.src, image.alt) == (shown.address, shown.words)
    assert text_of(figure) == shown.caption == "steps 398\u2013400, then NaN"
    page = event_html(event, started=None)
    assert shown.shapes in page and f'role="img" aria-label="{shown.words}"' in page
    assert page.index("event-spark") < page.index("event-evidence")
