"""Stored rows that cannot be read: passed over, counted and told; all else is shown."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import page_runs
import pytest

from dashboard.live.pictures import Pictures
from dashboard.live.view import Subscription
from dashboard.store.duck import DuckStore
from dashboard.store.schema import FILE_NAME
from probe.wire import encode

WHOLE, ODD = "whole", "odd"
NESTED = "repeat('\\x91', 3000)::BLOB"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in a store, to be copied."""
    folder = tmp_path_factory.mktemp("data")
    store = DuckStore(folder)
    for run in (WHOLE, ODD):
        page_runs.fill(store, steps=range(30), bad={7: "nan"}, run=run, is_full=True)
        page_runs.add_event(store, page_runs.event(7, run=run, kind="nonfinite_loss"))
        store.skip(page_runs.key("metrics", run=run), 30, 35, "evicted")
        store.commit()
    store.close()
    return folder


def look(store: DuckStore, run: str) -> dict[str, Any]:
    """All that pages read of a run, as text."""
    picture = Pictures(store).look(Subscription(id=1, run=run), with_data=True)
    subjects = store.histogram_subjects(run)[:2]
    heatmap = store.heatmap(run, 0)
    return {
        "events": repr(store.events(run)),
        "scalars": store.scalars(run, 0, store.scalar_names(run)).to_csv(),
        "heatmap": None if heatmap is None else heatmap.values.tobytes(),
        "tracks": [(track.name, track.values.tobytes()) for track in store.tensor_tracks(run, 0, "embed")],
        "histograms": [repr(store.histograms(run, 0, subject)) for subject in subjects],
        "gaps": store.gaps(run),
        "layout": store.layout(run),
        "heads": sorted(picture.fields),
    }


def change(path: Path, table: str, column: str, value: str) -> None:
    """Put a value into all rows that the odd run has in a table."""
    with duckdb.connect(str(path)) as database:
        of_run = f"timeline IN (SELECT timeline FROM timelines WHERE run = '{ODD}')"
        names = [
            name for (name,) in database.execute(f"SELECT column_name FROM (DESCRIBE {table})").fetchall()
        ]
        where = f"run = '{ODD}'" if "run" in names else of_run
        changed = database.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}").fetchone()
        assert changed is not None and changed[0] > 0


def test_statistics_of_another_length_do_not_stop_commits(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    change(folder / FILE_NAME, "layer_raw", "data", "'abc'::BLOB")
    store = DuckStore(folder)
    try:
        for run in (ODD, WHOLE):
            key, description = page_runs.key("metrics", run=run), page_runs.layout()
            frames = [encode(page_runs.frame(step, description, time=float(step))) for step in range(35, 70)]
            assert store.append(key, 35, frames) == 70
        store.commit()
        assert store.scalars(ODD, 0, ["loss"])["step"].max() == 69
        look(store, ODD)
    finally:
        store.close()


@pytest.mark.parametrize(
    ("table", "column", "value", "told"),
    [
        ("events", "data", "'\\xC1'::BLOB", "of events"),
        ("events", "data", NESTED, "of events"),
        ("layouts", "data", NESTED, "of layouts"),
        ("layouts", "timeline", "NULL", "of layouts"),
        ("incarnations", "start", NESTED, "of starts"),
        ("incarnations", "state", NESTED, "of states"),
        ("incarnations", "run", "NULL", "of incarnations"),
        ("streams", "next_seq", "NULL", "of streams"),
        ("streams", "next_seq", "9223372036854775807", "of streams"),
        ("series", "name", "NULL", "of series"),
        ("gaps", "end_seq", "NULL", "of gaps"),
        ("progress", "first_step", "NULL", ""),
        ("module_raw", "data", "''::BLOB", "of statistics"),
        ("layer_raw", "flags", "'abc'::BLOB", "of statistics"),
        ("parameter_raw", "data", NESTED, ""),
        ("histograms", "data", "'abc'::BLOB", "of histograms"),
    ],
)
def test_odd_row_is_passed_over_and_told(
    data: Path, tmp_path: Path, table: str, column: str, value: str, told: str
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    store = DuckStore(folder)
    right = look(store, WHOLE)
    assert store.notice is None
    assert len(right["tracks"]) > 2
    store.close()
    change(folder / FILE_NAME, table, column, value)
    store = DuckStore(folder)
    try:
        assert look(store, WHOLE) == right
        look(store, ODD)
        notice = store.notice or ""
        assert told in notice
        assert ("passed over" in notice) == bool(told)
        assert notice == (store.notice or "")
        assert not list(folder.glob("*damaged*"))
    finally:
        store.close()
