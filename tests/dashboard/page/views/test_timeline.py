"""The timeline figure: lanes, clusters, clickable ids and escaped hover text."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sample_events import nan_event, spike_event

from dashboard.page.views.theme import figure_layout
from dashboard.page.views.timeline import cluster, timeline_figure
from dashboard.store.protocol import StepRange


def markers(figure: Any) -> dict[str, list[Any]]:
    """Lane name -> its markers' event ids."""
    return {trace.name: list(trace.customdata) for trace in figure.data}


def test_timeline_figure_empty_has_lanes_and_says_so() -> None:
    figure = timeline_figure([], theme="dark")
    assert markers(figure) == {"critical": [], "warning": [], "info": []}
    assert "no events" in str(figure.layout.annotations)


def test_timeline_figure_severity_has_its_own_lane_shape_and_colour() -> None:
    events = [nan_event(severity=severity) for severity in ("critical", "warning", "info")]
    traces = timeline_figure(events, theme="light").data
    assert [list(trace.y) for trace in traces] == [[0], [1], [2]]
    assert len({trace.marker.symbol for trace in traces}) == 3
    assert len({trace.marker.color for trace in traces}) == 3


def test_timeline_figure_marker_click_yields_the_event_id() -> None:
    assert markers(timeline_figure([nan_event()], theme="dark"))["critical"] == [nan_event().id]


def test_timeline_figure_near_events_share_a_marker_with_a_count() -> None:
    events = [spike_event(step) for step in (10, 11, 12, 900)]
    lane = timeline_figure(events, theme="dark", steps=StepRange(first=0, end=1000)).data[1]
    assert list(lane.text) == ["3", ""]
    assert list(lane.customdata) == [spike_event(10).id, spike_event(900).id]


def test_timeline_figure_zoomed_in_shows_the_clusters_events_apart() -> None:
    events = [spike_event(step) for step in (10, 11, 12, 900)]
    lane = timeline_figure(events, theme="dark", steps=StepRange(first=5, end=20)).data[1]
    assert list(lane.x) == [10, 11, 12]


def test_timeline_figure_selected_event_has_a_ring_even_inside_a_cluster() -> None:
    events = [spike_event(step) for step in (10, 11, 900)]
    figure = timeline_figure(
        events, theme="dark", steps=StepRange(first=0, end=1000), selected=spike_event(11).id
    )
    assert list(figure.data[1].marker.line.width) == [2.5, 0]


def test_timeline_figure_hover_is_the_escaped_first_line() -> None:
    figure = timeline_figure([nan_event(message="<a href='x'>NaN</a> at 400\nmore")], theme="dark")
    assert figure.data[0].hovertext[0] == "&lt;a href=&#x27;x&#x27;&gt;NaN&lt;/a&gt; at 400"


def test_timeline_figure_margins_are_those_of_every_chart() -> None:
    figure = timeline_figure([nan_event()], theme="dark")
    assert figure.layout.margin.to_plotly_json() == figure_layout("dark")["margin"]


@given(st.lists(st.integers(0, 500), max_size=60), st.floats(0, 50))
def test_cluster_keeps_every_event_once_and_stays_within_its_width(steps: list[int], width: float) -> None:
    events = [spike_event(step) for step in sorted(steps)]
    groups = cluster(events, width=width)
    assert [event for group in groups for event in group.events] == events
    assert all(group.events[-1].step - group.first.step <= width for group in groups)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=60, unique=True), st.integers(100, 1600))
def test_timeline_figure_counts_never_lie_under_the_next_marker(steps: list[int], width: int) -> None:
    events = [spike_event(step) for step in steps]
    lane = timeline_figure(events, theme="dark", steps=StepRange(first=0, end=1000), width=width).data[1]
    pixels = [x * width / 1000 for x in lane.x]
    assert all(right - left > 26 for left, right in itertools.pairwise(pixels))


def test_timeline_figure_counts_of_a_crowd_do_not_reach_into_the_next_marker() -> None:
    """A digit of 12 px text is 7 px wide, a marker 12 px; the text begins at the marker's edge."""
    events = [spike_event(step, id=f"{5 * step + k:016x}") for step in range(1000) for k in range(5)]
    lane = timeline_figure(events, theme="dark", steps=StepRange(first=0, end=1000), width=1000).data[1]
    apart = [after - before for before, after in itertools.pairwise(lane.x)]
    assert min(apart) >= 12 + 7 * max(map(len, lane.text))
    assert sum(int(text) for text in lane.text) == 5000
