"""Histograms in words, as a figure and as a panel: against counts by hand and real casts' limits."""

from __future__ import annotations

import json
import math

import numpy as np
import page_runs
import pytest
from dash import html
from dashboard.page.views.magnitude_figure import edge_place, magnitude_figure, place

from dashboard.page.views.magnitude_facts import bin_text, edge_text, format_facts, power, special_texts
from dashboard.page.views.magnitude_panel import row_head, row_tables
from dashboard.page.views.quantities import share_text
from dashboard.store.protocol import MagnitudeHistogram
from probe.wire.magnitude_bins import BIN_EDGES, BINS, FORMATS, INF_BIN, NAN_BIN


def histogram(values: list[float], *, name: str = "gradient", step: int = 7) -> MagnitudeHistogram:
    counts = np.zeros(BINS, dtype=np.int64)
    for value in values:
        index = NAN_BIN if math.isnan(value) else sum(edge <= abs(value) for edge in BIN_EDGES)
        counts[index] += 1
    return MagnitudeHistogram(name=name, step=step, tensors=1, counts=counts)


MIXED = [0.0, 0.0, 2.0**-30, -0.75, 0.75, 3.0, 500.0, 1e6, math.inf, math.nan]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "exactly 0"),
        (1e-300, "below 2\u207b\u00b9\u00b3\u2074, not 0"),
        (0.75, "2\u207b\u00b9 to 2\u2070"),
        (500.0, "464 to 2\u2079"),
        (3.4e38, "3.396e+38 and more"),
        (math.inf, "Inf"),
        (math.nan, "NaN"),
    ],
)
def test_bin_text_names_the_bin_of_a_value(value: float, text: str) -> None:
    (number,) = np.flatnonzero(histogram([value]).counts)
    assert bin_text(int(number)) == text


def test_power_and_edge_of_large_numbers() -> None:
    assert (power(-12), edge_text(65520.0)) == ("2\u207b\u00b9\u00b2", "65,520")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.99999, "> 99.99 %"),
        (0.1234, "12.34 %"),
        (3e-7, "0.00003 %"),
        (1e-6, "0.0001 %"),
    ],
)
def test_share_text_says_none_and_all_only_when_true(share: float, text: str) -> None:
    assert share_text(share) == text


def test_format_facts_say_what_is_lost_and_how_much_room_there_is() -> None:
    facts = {each.format.name: each for each in format_facts(histogram([2.0**-30, 2.0**-15, 3.0, 1000.0]))}
    assert [(f.underflow, f.subnormal, f.overflow) for f in facts.values()] == [
        ("25.00 %", "25.00 %", "0 %"),
        ("0 %", "0 %", "0 %"),
        ("50.00 %", "0 %", "25.00 %"),
        ("25.00 %", "25.00 %", "0 %"),
    ]
    # 1000 < 2**10, which may grow to 2**15 in fp16 and e5m2, and to 2**127 in bf16.
    assert [f.room for f in facts.values()] == [
        f"\u00d7 {power(5)}",
        f"\u00d7 {power(117)}",
        "none",
        f"\u00d7 {power(5)}",
    ]
    assert [f.is_bad for f in facts.values()] == [False, False, True, False]


def test_format_facts_of_zeros_alone_have_no_room_to_speak_of() -> None:
    assert {each.room for each in format_facts(histogram([0.0, math.nan]))} == {"\u2013"}


@pytest.mark.parametrize("largest", [1.0, 3.0, 400.0, 470.0, 40_000.0, 1e20])
def test_format_facts_room_never_overflows(largest: float) -> None:
    for each in format_facts(histogram([largest])):
        if each.room == "none":
            assert largest >= each.format.overflow
            continue
        factor = next(k for k in range(300) if each.room == f"\u00d7 {power(k)}")
        assert largest * 2.0**factor < each.format.overflow


def test_special_texts_name_only_what_there_is() -> None:
    assert special_texts(histogram(MIXED)) == ["zero 20.00 %", "Inf 10.00 %", "NaN 10.00 %"]
    assert special_texts(histogram([1.0])) == []


def bars(figure: dict, name: str) -> dict[str, int]:
    return {
        text: count
        for trace in figure["data"]
        if trace["name"] == name
        for text, count, _ in trace["customdata"]
    }


def test_figure_has_a_bar_for_each_bin_with_elements() -> None:
    figure = json.loads(magnitude_figure([histogram(MIXED)], theme="dark").to_json())
    assert bars(figure, "gradient") == {
        "exactly 0": 2,
        "2\u207b\u00b3\u00b2 to 2\u207b\u00b2\u2078": 1,
        "2\u207b\u00b9 to 2\u2070": 2,
        "2\u00b9 to 2\u00b2": 1,
        "464 to 2\u2079": 1,
        "2\u00b9\u2076 to 2\u00b2\u2070": 1,
        "Inf": 1,
        "NaN": 1,
    }
    shares = [share for trace in figure["data"] if trace["name"] == "gradient" for share in trace["y"]]
    assert sum(shares) == pytest.approx(1.0)


def test_figure_marks_every_formats_limits_on_the_bins_edges() -> None:
    for chosen in FORMATS.values():
        for edge in (chosen.underflow, chosen.smallest_normal, chosen.overflow):
            (above,) = np.flatnonzero(histogram([edge]).counts)
            (below,) = np.flatnonzero(histogram([edge * 0.9999]).counts)
            assert place(int(below)) < edge_place(edge) < place(int(above))
    figure = magnitude_figure([histogram(MIXED), histogram([1.0], name="parameter")], theme="light")
    ends = {(shape.x0, shape.line.color) for shape in figure.layout.shapes}
    assert {x for x, _ in ends} == {
        edge_place(edge) for each in FORMATS.values() for edge in (each.underflow, each.overflow)
    }
    ruler = {trace.name: (trace.base[0], trace.base[0] + trace.x[0]) for trace in figure.data if trace.base}
    assert ruler["fp16 subnormal"] == (edge_place(2.0**-25), edge_place(2.0**-14))
    assert ruler["bf16 normal"] == (edge_place(2.0**-126), edge_place((2 - 2**-8) * 2.0**127))


def test_figure_of_several_histograms_stacks_them_over_one_axis() -> None:
    three = [histogram([1.0], name=name) for name in ("gradient", "parameter", "activation")]
    figure = magnitude_figure(three, theme="dark")
    domains = [figure.layout[f"yaxis{number}"].domain for number in ("", 2, 3, 4)]
    assert domains[1][0] > domains[2][1] > domains[2][0] > domains[3][1] > domains[3][0] > domains[0][1]
    assert figure.layout.height > magnitude_figure(three[:1], theme="dark").layout.height
    assert edge_place(BIN_EDGES[-1]) < place(INF_BIN) < place(NAN_BIN) < figure.layout.xaxis.range[1]


def test_row_head_says_what_it_is() -> None:
    layout = page_runs.layout()
    found = [histogram([1.0])]
    assert "parameter \u00b7 float32 \u00b7 8 \u00d7 8" in repr(row_head("embed.weight", layout, found))
    assert "module Block" in repr(row_head("blocks.2", layout, found))
    assert "(root)" in repr(row_head("", layout, found))
    assert "Nothing of it" in repr(row_head("embed", layout, []))
    assert "no such name" in repr(row_head("nobody", layout, []))


def test_row_tables_have_every_format_and_every_bin() -> None:
    tables = row_tables([histogram(MIXED)])
    cells = [
        part.children
        for table in tables
        for part in table._traverse()
        if isinstance(part, (html.Td, html.Th))
    ]
    for needed in ("fp16", "fp8 e4m3", "exactly 0", "NaN", "464 to 2\u2079"):
        assert needed in cells
    assert row_tables([]) == []
