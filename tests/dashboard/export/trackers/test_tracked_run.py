"""What trackers are given of a run, every step once; and what is said without the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import page_runs
import pytest
from tracked_journal import RUN, write_tracked_run

from dashboard.cli import main
from dashboard.export.trackers import tracked_run as tracked_run_module
from dashboard.export.trackers.tracked_run import events_by_kind, tracked_run
from dashboard.store.duck import DuckStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path / "data")
    yield opened
    opened.close()


def test_steps_come_once_and_in_order_over_holes_and_pieces(
    store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracked_run_module, "STEPS_AT_ONCE", 8)
    page_runs.fill(store, steps=range(5, 20))
    page_runs.fill(store, steps=range(300, 303))
    page_runs.fill(store, steps=range(10, 12))
    found = list(tracked_run(store, "demo-run", rank=0).steps())
    assert [numbers.step for numbers in found] == [*range(5, 20), *range(300, 303)]
    for numbers in found:
        assert numbers.values == page_runs.frame(numbers.step, page_runs.layout(), time=0).scalars


def test_steps_keep_nan_and_infinity(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(3), bad={1: "nan", 2: "inf"})
    losses = [numbers.values["loss"] for numbers in tracked_run(store, "demo-run", rank=0).steps()]
    np.testing.assert_array_equal(losses[1:], [np.nan, np.inf])


def test_steps_of_a_run_without_numbers_are_none(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(3), is_bare=True)
    assert list(tracked_run(store, "demo-run", rank=0).steps()) == []


def test_events_by_kind_count_and_name_the_first() -> None:
    events = (page_runs.event(3, message="first"), page_runs.event(9, message="second"))
    assert events_by_kind(events) == {"nonfinite_loss": "2, first at step 3: first"}


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "mlflow"])
def test_export_without_the_package_names_the_extra(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    folder = write_tracked_run(tmp_path / "spool")
    assert main(["export", str(folder), "--format", tracker, "-o", str(tmp_path / "out")]) == 2
    assert f"pip install 'nanscope[{tracker}]'" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["tensorboard", "wandb"])
def test_export_without_a_place_asks_for_one(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tracked_run(tmp_path / "spool")
    assert main(["export", RUN, "--format", form]) == 2
    assert "needs a f" in capsys.readouterr().err


def test_export_to_a_tracker_refuses_a_file_as_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tracked_run(tmp_path / "spool")
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert main(["export", str(folder), "--format", "tensorboard", "-o", str(taken)]) == 2
    assert "writes a folder" in capsys.readouterr().err
    assert taken.read_text() == "mine"
