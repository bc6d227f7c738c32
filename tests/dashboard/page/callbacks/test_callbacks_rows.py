"""The callbacks of the row panel as functions: what they return, and that odd input changes nothing."""

from __future__ import annotations

import page_runs
import pytest
from dash import no_update
from page_store import PageStore

from dashboard.page.callbacks.rows import row_names, row_view


@pytest.fixture
def store() -> PageStore:
    filled = PageStore()
    page_runs.fill(filled, steps=range(60), is_full=True)
    return filled


def shown(figure: dict) -> dict[str, int]:
    """Kind -> elements in its bars."""
    totals: dict[str, int] = {}
    for trace in figure["data"]:
        if "customdata" in trace:
            totals[trace["name"]] = totals.get(trace["name"], 0) + sum(
                each[1] for each in trace["customdata"]
            )
    return totals


def test_row_view_of_a_layer_counts_all_its_parameters_and_its_output(store: PageStore) -> None:
    figure, head, tables = row_view(store, {"run": "demo-run", "row": "head"})
    assert shown(figure) == {"gradient": 400, "parameter": 400, "activation": 200}
    assert "2 parameters, counted together" in repr(head)
    assert "step 40" in repr(tables)


def test_row_view_of_a_range_is_the_newest_in_it(store: PageStore) -> None:
    figure, _, tables = row_view(store, {"run": "demo-run", "row": "head.weight", "first": 0, "end": 39})
    assert shown(figure) == {"gradient": 200, "parameter": 200}
    assert "step 20" in repr(tables)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"row": "nobody"}, "no such name"),
        ({"row": "head", "first": 1, "end": 3}, "Nothing of it was counted"),
    ],
)
def test_row_view_without_histograms_says_so(store: PageStore, asked: dict[str, object], said: str) -> None:
    figure, head, tables = row_view(store, {"run": "demo-run", **asked})
    assert figure == {} and tables == []
    assert said in repr(head)


MALFORMED = [None, 3, {}, {"run": "demo-run"}, {"run": "demo-run", "row": 5}]
RANGES = [
    {"run": "demo-run", "row": "head", "end": 1e300},
    {"run": "demo-run", "row": "head", "theme": "pink"},
]


@pytest.mark.parametrize("data", MALFORMED + RANGES)
def test_row_view_malformed_scope_changes_nothing(store: PageStore, data: object) -> None:
    assert row_view(store, data) == (no_update, no_update, no_update)


def test_row_names_list_everything_that_can_be_chosen_once(store: PageStore) -> None:
    names = row_names(store, {"run": "demo-run", "rank": 0, "mark": 1})
    assert {"(root)", "head", "head.weight", "blocks.0"} <= set(names)
    assert len(names) == len(set(names)) and "" not in names
    assert row_names(store, {"run": "other"}) == []
    assert row_names(store, {"rank": 0}) is no_update
