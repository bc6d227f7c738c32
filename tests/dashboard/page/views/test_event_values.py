"""Tensors and data of an event, in the panel, as text and in the export: the same rows, nothing but text."""

from __future__ import annotations

import math

import pytest
from dash import html
from dash.development.base_component import Component
from sample_events import nan_event, spike_event

from dashboard.export.event_html import event_html
from dashboard.page.views.event_panel import event_panel
from dashboard.page.views.event_report import event_report
from dashboard.page.views.event_tables import data_table, tensor_table
from dashboard.page.views.event_values import SHOWN_ROWS, data_facts, tensor_rows
from probe.wire import Event, Evidence, TensorFacts

FACTS = TensorFacts(
    role="input", name="0 (parameter fc.weight)", shape=[2, 3], dtype="float16", device="cuda:0",
    min=math.nan, max=math.nan, mean=math.nan, std=math.nan, nan=1200, inf=0, zero=3, finite_min=-0.5,
    finite_max=7.25,
)  # fmt: skip
HOSTILE = "<script>alert(1)</script>"


def with_tensors(*tensors: TensorFacts) -> Event:
    return nan_event(evidence=Evidence(tensors=list(tensors)))


def cells(table: list[Component]) -> list[list[str]]:
    (scrolling,) = table
    body = scrolling.children.children[1]
    return [[cell.children for cell in row.children] for row in body.children]


def test_tensor_is_a_row_with_its_finite_range_and_counts() -> None:
    expected = ["input 0 (parameter fc.weight)", "2×3", "float16", "1,200", "0", "3"]
    expected += ["-0.5", "7.25", "NaN", "NaN", "cuda:0"]
    assert cells(tensor_table(with_tensors(FACTS))) == [expected]


def test_tensor_that_was_not_read_has_dashes() -> None:
    facts = TensorFacts(role="local", name="x", shape=[], dtype="float32", device="meta")
    assert tensor_rows(with_tensors(facts)) == (("local x", "scalar", "float32", *["–"] * 7, "meta"),)


def test_data_have_a_row_per_value_with_the_path_to_it() -> None:
    data = {"where": "batch 3", "none": None, "context": {"rate": math.nan, "files": ["a", 1]}, "empty": {}}
    assert cells(data_table(spike_event(data=data))) == [
        ["where", "batch 3"],
        ["none", "null"],
        ["context.rate", "NaN"],
        ["context.files", '["a", 1]'],
        ["empty", "{}"],
    ]


def test_long_data_are_cut_and_many_are_counted() -> None:
    rows = data_facts(spike_event(data={"long": "x" * 900, **{f"k{n}": n for n in range(SHOWN_ROWS)}}))
    assert len(rows[0].value) == 301 and rows[0].detail == "x" * 900
    assert (len(rows), rows[-1].value) == (SHOWN_ROWS + 1, "1 values, in the JSON")


def test_event_without_tensors_or_data_has_no_such_sections() -> None:
    assert tensor_table(spike_event()) == [] and data_table(spike_event()) == []
    assert "Tensors" not in event_report(spike_event()) and "<h3>Data" not in event_html(
        spike_event(), started=None
    )


@pytest.mark.parametrize("where", ["name", "value", "tensor"])
def test_what_the_run_says_is_text_everywhere(where: str) -> None:
    data = {HOSTILE: 1} if where == "name" else {"x": HOSTILE}
    tensor = TensorFacts(
        role="local", name=HOSTILE if where == "tensor" else "x", shape=[1], dtype="a", device="b"
    )
    event = nan_event(evidence=Evidence(tensors=[tensor]), data=data)
    exported = event_html(event, started=None)
    assert HOSTILE not in exported and "&lt;script&gt;" in exported
    assert HOSTILE in event_report(event)
    panel = event_panel(event)
    assert isinstance(panel, html.Article) and HOSTILE in str(panel)
