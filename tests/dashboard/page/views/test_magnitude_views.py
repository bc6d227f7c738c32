"""Histograms in words, for the canvas and as a panel: against counts by hand and real casts' limits."""

from __future__ import annotations

import ast
import fnmatch
import json
import math

import msgspec
import numpy as np
import page_runs
import pytest
from dash import html

from dashboard.page.views.magnitude_facts import (
    bin_text,
    edge_text,
    format_facts,
    magnitude_axis,
    power,
    special_texts,
)
from dashboard.page.views.magnitude_panel import kinds_of, row_head, row_tables, watch_condition
from dashboard.page.views.quantities import share_text
from dashboard.store.protocol import MagnitudeHistogram
from probe.delivery.control.rule_options import WatchpointOptions
from probe.wire import ParameterInfo
from probe.wire.magnitude_bins import BIN_EDGES, BINS, FORMATS, NAN_BIN


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


def test_axis_has_a_text_for_every_bin_and_formats_between_bins() -> None:
    axis = magnitude_axis()
    assert len(axis["bins"]) == BINS
    assert [axis["bins"][axis[name]] for name in ("zero", "inf", "nan")] == ["exactly 0", "Inf", "NaN"]
    for shown, chosen in zip(axis["formats"], FORMATS.values(), strict=True):
        for name, edge in (
            ("low", chosen.underflow),
            ("normal", chosen.smallest_normal),
            ("high", chosen.overflow),
        ):
            (above,) = np.flatnonzero(histogram([edge]).counts)
            (below,) = np.flatnonzero(histogram([edge * 0.9999]).counts)
            assert below + 1 == above == shown[name]
    assert ("2\u207b\u2078", np.flatnonzero(histogram([2.0**-8]).counts)[0]) in map(tuple, axis["ticks"])
    assert json.loads(json.dumps(axis)) == axis


def test_row_head_says_what_it_is() -> None:
    layout = page_runs.layout()
    found = [histogram([1.0])]
    assert "parameter \u00b7 float32 \u00b7 8 \u00d7 8" in repr(row_head("embed.weight", layout, found))
    assert "module Block" in repr(row_head("blocks.2", layout, found))
    assert "(root)" in repr(row_head("", layout, found))
    assert "No histogram of it" in repr(row_head("embed", layout, []))
    assert "No histogram of it" not in repr(row_head("embed", layout, [], has_histograms=False))
    assert "no such name" in repr(row_head("nobody", layout, []))
    assert "before clipping" in repr(row_head("embed.weight", layout, found))
    assert "before clipping" not in repr(row_head("blocks.2", layout, found))
    unscaled = repr(row_head("embed.weight", layout, found, stage="unscaled"))
    assert "unscaled (the GradScaler's scale taken out), before clipping." in unscaled
    assert "clipped (after clipping)." in repr(row_head("embed.weight", layout, found, stage="clipped"))
    assert "<b>" not in repr(row_head("embed.weight", layout, found, stage="<b>"))


def test_row_head_of_a_layer_lists_its_parameters_with_shape_and_dtype() -> None:
    said = repr(row_head("embed", page_runs.layout(), []))
    for needed in ("embed.weight", "embed.bias", "float32", "8 \u00d7 8"):
        assert needed in said
    many = msgspec.structs.replace(
        page_runs.layout(),
        parameters=[
            ParameterInfo(name=f"embed.p{number}", shape=[], dtype="bfloat16", layer=0)
            for number in range(40)
        ],
    )
    said = repr(row_head("embed", many, []))
    assert "embed.p11" in said and "embed.p12" not in said and "and 28 more" in said and "scalar" in said


@pytest.mark.parametrize(
    ("name", "kinds", "quantity"),
    [
        ("blocks.0.weight", ("parameter",), "grad_norm"),
        ("blocks.0", ("layer", "module"), "grad_norm"),
        ("relu", ("module",), "activation_max"),
        ('a"b\\c[0]*?', ("parameter",), "grad_norm"),
        ("line\nfeed\u202e", ("parameter",), "grad_norm"),
    ],
)
def test_watch_condition_matches_this_name_alone(name: str, kinds: tuple[str, ...], quantity: str) -> None:
    text = watch_condition(name, kinds)
    WatchpointOptions(condition=text, action="event")
    call = ast.parse(text, mode="eval").body.left
    assert call.func.id == quantity
    (pattern,) = [argument.value for argument in call.args]
    assert fnmatch.fnmatchcase(name, pattern)
    assert not fnmatch.fnmatchcase(name + "x", pattern) and not fnmatch.fnmatchcase("a" + name, pattern)


def test_kinds_of_a_name() -> None:
    layout = page_runs.layout()
    assert kinds_of("embed.weight", layout) == ("parameter",)
    assert kinds_of("embed", layout) == ("layer", "module")
    assert kinds_of("blocks.2", layout) == ("module",)
    assert kinds_of("nobody", layout) == kinds_of("embed", None) == ()


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
