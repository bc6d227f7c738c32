"""The callbacks of the row panel as functions: what they return, and that odd input changes nothing."""

from __future__ import annotations

import json

import page_runs
import pytest
from dash import no_update
from page_store import PageStore

from dashboard.ingest.control_desk import ControlDesk
from dashboard.page.callbacks.rows import row_names, row_view, tracks_view, watch_row


@pytest.fixture
def store() -> PageStore:
    filled = PageStore()
    page_runs.fill(filled, steps=range(60), is_full=True)
    return filled


def shown(data: dict) -> dict[str, int]:
    """Kind -> elements in the newest column."""
    return {each["name"]: sum(each["counts"][-1]) for each in data["kinds"]}


def test_row_view_of_a_layer_counts_all_its_parameters_and_its_output(store: PageStore) -> None:
    data, head, tables = row_view(store, {"run": "demo-run", "row": "head"})
    assert shown(data) == {"gradient": 400, "parameter": 400, "activation": 200}
    assert [each["steps"] for each in data["kinds"]] == [[0, 20, 40]] * 3
    assert "2 parameters, counted together" in repr(head)
    assert "step 40" in repr(tables)
    assert (data["run"], data["rank"], data["row"]) == ("demo-run", 0, "head") and data[
        "watch"
    ] == 'grad_norm("head") > 8 * median'
    assert json.loads(json.dumps(data)) == data


def test_row_view_of_a_range_has_the_histograms_in_it(store: PageStore) -> None:
    data, _, tables = row_view(store, {"run": "demo-run", "row": "head.weight", "first": 0, "end": 39})
    assert shown(data) == {"gradient": 200, "parameter": 200}
    assert data["kinds"][0]["steps"] == [0, 20]
    assert "step 20" in repr(tables)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"row": "nobody"}, "no such name"),
        ({"row": "head", "first": 1, "end": 3}, "No histogram of it was recorded"),
    ],
)
def test_row_view_without_histograms_says_so(store: PageStore, asked: dict[str, object], said: str) -> None:
    data, head, tables = row_view(store, {"run": "demo-run", **asked})
    assert data["kinds"] == [] and tables == []
    assert said in repr(head)


def test_tracks_view_has_the_steps_in_view_and_the_last_values(store: PageStore) -> None:
    data, absent = tracks_view(store, {"run": "demo-run", "row": "head.weight", "first": 10, "end": 50})
    (norm,) = [each for each in data["tracks"] if each["name"] == "grad_norm"]
    assert norm["steps"] == list(range(10, 50))
    assert (data["run"], data["rank"], data["row"]) == ("demo-run", 0, "head.weight")
    assert [step for step, _ in data["newest"]["rows"]] == list(range(49, 29, -1))
    assert "Histograms" not in repr(absent) and "Parameter norms" in repr(absent)


def test_tracks_view_of_a_run_without_histograms_says_which_level_has_them() -> None:
    bare = PageStore()
    page_runs.fill(bare, steps=range(10))
    data, absent = tracks_view(bare, {"run": "demo-run", "row": "head"})
    assert len(data["tracks"]) == 1
    assert "Histograms: none in these steps. They are recorded from level advanced on" in repr(absent)
    nobody, nothing = tracks_view(bare, {"run": "demo-run", "row": "nobody"})
    assert nobody["tracks"] == [] and nothing == []


def test_watch_row_says_why_a_condition_is_refused_and_when_nobody_is_there() -> None:
    desk = ControlDesk()
    scope = {"run": "demo-run", "row": "head"}
    said, error, _, _ = watch_row(desk, scope, "grad_norm(")
    assert said == "" and error
    assert watch_row(desk, {"row": 3}, "step > 1") == (no_update,) * 4


MALFORMED = [None, 3, {}, {"run": "demo-run"}, {"run": "demo-run", "row": 5}]
RANGES = [
    {"run": "demo-run", "row": "head", "end": 1e300},
    {"run": "demo-run", "row": "head", "first": -1},
]


@pytest.mark.parametrize("data", MALFORMED + RANGES)
def test_row_view_malformed_scope_changes_nothing(store: PageStore, data: object) -> None:
    assert row_view(store, data) == (no_update, no_update, no_update)
    assert tracks_view(store, data) == (no_update, no_update)


def test_row_names_list_everything_that_can_be_chosen_once(store: PageStore) -> None:
    names = row_names(store, {"run": "demo-run", "rank": 0, "mark": 1})
    assert {"(root)", "head", "head.weight", "blocks.0"} <= set(names)
    assert len(names) == len(set(names)) and "" not in names
    bare = PageStore()
    page_runs.fill(bare, steps=range(3))
    own = row_names(bare, {"run": "demo-run"})
    assert own.index("embed") < own.index("embed.weight") < own.index("head")
    assert row_names(store, {"run": "other"}) == []
    assert row_names(store, {"rank": 0}) is no_update
