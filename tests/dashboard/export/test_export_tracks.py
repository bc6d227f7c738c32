"""One track of a run as a file: read back, and compared with the numbers of the store."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import page_runs
import pandas as pd
import pytest
from sample_runs import write_run

from dashboard.cli import main
from dashboard.errors import UnknownTrackError
from dashboard.export.html import export_html
from dashboard.export.json import export_json
from dashboard.export.table import COLUMNS, export_table, no_formula, write_table
from dashboard.export.tracks import tracks_of
from dashboard.page.views.theme import ALL_STEPS
from dashboard.page.views.throughput import SAMPLES_PER_S, STEPS_PER_S
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange

RUN = "demo-run"
STEPS = range(100)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path_factory.mktemp("tracks"))
    page_runs.fill(opened, steps=STEPS, is_full=True, bad={7: "nan"})
    yield opened
    opened.close()


def read_table(store: DuckStore, form: Any, track: str | None, folder: Path, **asked: Any) -> pd.DataFrame:
    path = folder / f"table.{form}"
    path.write_bytes(export_table(store, RUN, form, track=track, **asked))
    if form == "csv":
        return pd.read_csv(path)
    return duckdb.sql(f"SELECT * FROM '{path}'").df()


def of_store(store: DuckStore, *names: str, steps: StepRange = ALL_STEPS) -> pd.DataFrame:
    return store.scalars(RUN, 0, list(names), steps, 10_000)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(("track", "names"), [("loss", ["loss"]), ("log/accuracy", ["log/accuracy"])])
def test_table_of_a_track_has_the_stores_numbers_and_no_others(
    store: DuckStore, tmp_path: Path, form: str, track: str, names: list[str]
) -> None:
    found = read_table(store, form, track, tmp_path, steps=StepRange(first=3, end=40))
    kept = of_store(store, *names, steps=StepRange(first=3, end=40))
    assert list(found.columns) == list(COLUMNS)
    assert list(found["step"]) == list(kept["step"]) == list(range(3, 40))
    for column in ("min", "mean", "max", "nan", "inf", "pooled"):
        np.testing.assert_array_equal(found[column].to_numpy(float), kept[column].to_numpy(float))
    assert set(found["name"]) == set(names)
    assert found.loc[found["step"] == 7, "nan"].tolist() == [1 if track == "loss" else 0]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_table_of_the_heatmap_has_its_cells(store: DuckStore, tmp_path: Path, form: str) -> None:
    found = read_table(store, form, "heatmap", tmp_path)
    kept = store.heatmap(RUN, 0, "grad_norm", ALL_STEPS, 1000)
    assert kept is not None and set(found["name"]) == {"grad_norm"}
    for row, layer in enumerate(kept.rows):
        own = found[found["layer"] == layer].set_index("step")["max"]
        expected = pd.Series(kept.values[row].astype(float), index=kept.steps)
        np.testing.assert_array_equal(own.to_numpy(), expected.loc[own.index].to_numpy())
        assert len(own) == len(STEPS)


def test_table_of_throughput_is_one_over_the_stores_step_times(store: DuckStore, tmp_path: Path) -> None:
    found = read_table(store, "csv", "steps_per_s", tmp_path)
    times = of_store(store, "step_time_s")
    assert set(found["name"]) == {STEPS_PER_S}
    np.testing.assert_allclose(found["mean"], 1 / times["mean"].to_numpy(), rtol=1e-12)


def test_json_of_a_track_has_its_series_and_says_which_it_is(store: DuckStore) -> None:
    document = json.loads(json.dumps(export_json(store, RUN, track="grad_norm"), allow_nan=False))
    series = document["series"]["grad_norm"]
    assert document["track"] == "grad_norm" and document["heatmap"] is None
    assert set(document["series"]) <= {"grad_norm", "grad_norm_clipped", "clip_fired"}
    assert series["mean"][7] == "NaN"
    kept = of_store(store, "grad_norm")["mean"].to_numpy()
    np.testing.assert_array_equal([v for v in series["mean"] if v != "NaN"], kept[np.isfinite(kept)])
    assert document["range"]["covered"] == {"first": 0, "end": 100}
    assert export_json(store, RUN)["track"] is None
    assert export_json(store, RUN, track="heatmap")["series"] == {}


def test_html_of_a_track_has_its_chart_and_the_events_alone(store: DuckStore) -> None:
    for track, chart in (("loss", "loss"), ("heatmap", "heatmap"), ("log/accuracy", "logged-0")):
        text = export_html(store, RUN, track=track)
        assert [
            name for name in ("loss", "grad_norm", "heatmap", "logged-0") if f'id="chart-{name}"' in text
        ] == [chart]
        assert 'id="chart-timeline"' in text and "alone</dd>" in text
        assert "Covers steps 0 to 99." in text


def test_down_sampled_track_says_so_in_rows_and_metadata(
    store: DuckStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.export.table.TABLE_POINTS", 20)
    found = read_table(store, "parquet", "loss", tmp_path)
    assert 1 < len(found) <= 20 and found["pooled"].sum() == 100
    query = f"SELECT value FROM parquet_kv_metadata('{tmp_path / 'table.parquet'}') WHERE key = 'nanscope'"
    ((raw,),) = duckdb.sql(query).fetchall()
    facts = json.loads(raw)
    assert (facts["run"], facts["rank"], facts["track"]) == (RUN, 0, "loss")
    assert (facts["first"], facts["end"]) == (0, 100)
    assert facts["steps_per_point"] == found["pooled"].max() > 1


def test_unknown_track_lists_those_that_there_are(store: DuckStore) -> None:
    with pytest.raises(
        UnknownTrackError, match=r"no track 'nosuch'; choose one of loss, .*grad_norm.*heatmap"
    ):
        export_json(store, RUN, track="nosuch")


def test_tracks_are_the_charts_with_data_the_heatmap_and_the_users_own() -> None:
    stored = ["loss", "step_time_s", "samples", "grad_norm", "clip_fired", "log/b", "log/a", "unknown"]
    found = {track.id: track.series for track in tracks_of(stored, has_heatmap=True)}
    assert found == {
        "loss": ("loss",),
        "grad_norm": ("grad_norm", "clip_fired"),
        "step_time": ("step_time_s",),
        "steps_per_s": (STEPS_PER_S,),
        "samples_per_s": (SAMPLES_PER_S,),
        "heatmap": (),
        "log/a": ("log/a",),
        "log/b": ("log/b",),
    }
    assert tracks_of([], has_heatmap=False) == []


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\r=1", "=cmd|' /C calc'!A0", "\uff1d1")


def test_csv_has_no_cell_that_a_spreadsheet_computes_and_parquet_has_names_as_they_are(
    tmp_path: Path,
) -> None:
    rows = [
        {"run": "-r", "rank": 0, "name": name, "layer": name, "step": step}
        | {"time": 1.0, "min": -1.0, "mean": -1.0, "max": -1.0, "nan": 0, "inf": 0, "pooled": 1}
        for step, name in enumerate((*FORMULAS, "blocks.0", "a=b", ""))
    ]
    table = pd.DataFrame(rows)
    cells = list(csv.reader(io.StringIO(write_table(table, "csv").decode(), newline="")))[1:]
    texts = [cell for row in cells for cell in (row[0], row[2], row[3])]
    assert not [text for text in texts if text.lstrip()[:1] in ("=", "+", "-", "@", "\uff1d")]
    assert [row[2] for row in cells] == [*map(no_formula, FORMULAS), "blocks.0", "a=b", ""]
    assert {float(row[6]) for row in cells} == {-1.0}, "numbers stay numbers"
    path = tmp_path / "names.parquet"
    path.write_bytes(write_table(table, "parquet"))
    assert duckdb.sql(f"SELECT name FROM '{path}' ORDER BY step").df()["name"].tolist() == list(table["name"])


def test_command_exports_one_track_from_journals_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "spool", steps=20)
    target = tmp_path / "loss.csv"
    command = ["export", str(tmp_path / "spool"), "--format", "csv", "-o", str(target), "--track"]
    assert main([*command, "loss"]) == 0
    found = pd.read_csv(target)
    np.testing.assert_allclose(found["mean"], [3.0 / (1 + step / 100) for step in range(20)])
    assert main([*command, "nosuch"]) == 2
    named = "loss, grad_norm, memory, memory_growth, machine_memory, heatmap"
    assert f"choose one of {named}" in capsys.readouterr().err
