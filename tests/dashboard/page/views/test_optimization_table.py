"""The table of optimisation modes: a row for each, what is out of limits is marked, text stays text."""

from __future__ import annotations

from typing import Any

import msgspec
from dash import html

from dashboard.page.views.document_sections import SECTIONS
from dashboard.page.views.optimization_table import optimization_table
from dashboard.store.protocol import StoredDocument
from probe.wire import Document
from probe.wire.compared_modes import KIND, OptimizationBody, OptimizationRow

MEASURED: dict[str, Any] = {
    "step_s": 0.02,
    "first_step_s": 3.0,
    "speedup": 1.5,
    "speedup_low": 1.25,
    "speedup_high": 1.75,
    "peak_bytes": 3 * 2**20,
    "memory_saved": -0.25,
    "output_difference": 0.003,
    "loss_difference": 0.0,
    "gradient_difference": 0.012,
    "is_within": True,
}


def stored(*rows: OptimizationRow, at: float = 1.0, data: bytes | None = None) -> StoredDocument:
    body = OptimizationBody(
        model="<b>Net</b>", device="cpu", pairs=12, recommended="amp", why="It is fast.", rows=list(rows)
    )
    encoded = msgspec.json.encode(body) if data is None else data
    return StoredDocument(
        run="r", rank=0, incarnation=1, document=Document(kind=KIND, key="k", time=at, body=encoded)
    )


def cells(document: StoredDocument) -> list[list[str]]:
    (comparison,) = optimization_table([document]).children
    table = comparison.children[1].children
    assert isinstance(table, html.Table)
    return [[cell.children for cell in row.children] for row in table.children[1].children]


def test_mode_is_a_row_with_units_and_the_recommended_one_says_so() -> None:
    first, second = cells(
        stored(OptimizationRow(mode="none", step_s=0.03), OptimizationRow(mode="amp", **MEASURED))
    )
    assert first == ["none", "30 ms", *[""] * 9]
    assert second == [
        *("amp, recommended", "20 ms", "3.0 s", "1.50\u00d7", "1.25\u00d7 to 1.75\u00d7", "3 MiB"),
        *("-25 %", "0.3 %", "0 %", "1.2 %", "within limits"),
    ]


def test_numbers_out_of_limits_are_marked_by_words() -> None:
    (row,) = cells(stored(OptimizationRow(mode="full", **{**MEASURED, "is_within": False})))
    assert row[-1].endswith("out of limits")


def test_failed_mode_has_its_sentence_over_the_whole_row() -> None:
    (row,) = cells(stored(OptimizationRow(mode="full", error="<i>no compiler</i>")))
    assert row == ["full", "does not work here: <i>no compiler</i>"]


def test_newest_comparison_is_first_and_a_bad_body_is_named() -> None:
    bad = stored(at=1.0, data=b"[]")
    first, second = optimization_table([bad, stored(at=2.0)]).children
    assert first.children[0].children[0].children == "Recommended: amp. "
    assert first.children[2].children.startswith("<b>Net</b> on cpu, 12 pairs")
    assert second.children.startswith("Comparison k cannot be read")


def test_view_profile_has_the_section() -> None:
    assert [section.title for section in SECTIONS if section.kind == KIND] == ["Optimisations"]
