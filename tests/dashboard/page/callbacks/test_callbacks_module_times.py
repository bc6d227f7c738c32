"""The icicle's answer: which step's times it shows, of a store as the dashboard has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_runs
import pytest
from dash import no_update

from dashboard.page.callbacks.module_times import module_times_view
from dashboard.store.duck import DuckStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path)
    page_runs.fill(opened, steps=range(3))
    yield opened
    opened.close()


def add_times(store: DuckStore, *steps: int) -> None:
    page_runs.add_frames(store, *map(page_runs.module_times, steps))


def look(store: DuckStore, step: int | None = None) -> dict[str, Any]:
    answer = module_times_view(store, {"run": "demo-run", "rank": 0, "step": step, "mark": 1})
    assert isinstance(answer, dict)
    return answer


def test_run_without_times_has_no_boxes(store: DuckStore) -> None:
    assert look(store) == {"run": "demo-run", "rank": 0, "title": "", "note": "", "boxes": [], "hidden": 0}


@pytest.mark.parametrize(("asked", "shown"), [(None, 4500), (4499, 260), (260, 260), (259, 20), (19, None)])
def test_newest_step_with_times_at_or_before_the_crosshair_is_shown(
    store: DuckStore, asked: int | None, shown: int | None
) -> None:
    add_times(store, 20, 260, 4500)
    answer = look(store, asked)
    assert answer["title"] == ("" if shown is None else f"Step {shown:,}")
    if shown is not None:
        root = answer["boxes"][0]
        times = [pytest.approx(1e-3 * shown), pytest.approx(2e-3 * shown)]
        assert (root["name"], [root["forward_s"], root["backward_s"]]) == ("", times)
        assert "Measured" in answer["note"]


def test_newer_one_of_times_and_profile_is_shown(store: DuckStore) -> None:
    add_times(store, 20, 60)
    page_runs.add_records(store, page_runs.profile(30, 5))
    assert look(store, 29)["title"] == "Step 20"
    answer = look(store, 34)
    assert answer["title"] == "Steps 30 to 34" and "profile" in answer["note"]
    boxes = {box["name"]: box for box in answer["boxes"]}
    assert list(boxes) == ["", "blocks", "blocks.0", "blocks.1"]
    assert boxes[""]["total_s"] == pytest.approx(1.5) and boxes["blocks.0"]["total_s"] == pytest.approx(0.5)
    assert look(store, 33)["title"] == "Step 20", "it has not ended"
    assert look(store)["title"] == "Step 60"


@pytest.mark.parametrize("asked", [None, {}, {"run": 3}, {"run": "demo-run", "step": -1}])
def test_malformed_asking_changes_nothing(store: DuckStore, asked: Any) -> None:
    assert module_times_view(store, asked) is no_update
