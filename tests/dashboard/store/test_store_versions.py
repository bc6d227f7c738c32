"""Files of other versions: an older one is upgraded, or set aside and read in again as a newer one is."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from sample_runs import RUN, write_run

from dashboard.errors import DashboardError
from dashboard.ingest.spool import SpoolIngest
from dashboard.store import schema
from dashboard.store.duck import DuckStore
from dashboard.store.schema import FILE_NAME
from probe.wire import RunStart, encode

FIRST_VERSION = """
CREATE TABLE meta (version INTEGER, epoch BIGINT);
CREATE TABLE streams (run VARCHAR, writer VARCHAR, stream VARCHAR, next_seq BIGINT, stored BIGINT,
    gaps BIGINT, dropped BIGINT);
CREATE TABLE incarnations (run VARCHAR, rank BIGINT, incarnation BIGINT, start BLOB, state BLOB);
CREATE TABLE layouts (run VARCHAR, rank BIGINT, incarnation BIGINT, number BIGINT,
    timeline INTEGER, data BLOB);
CREATE TABLE timelines (timeline INTEGER, run VARCHAR, rank BIGINT, digest BLOB);
CREATE TABLE progress (timeline INTEGER, first_step BIGINT, max_step BIGINT, raw_floor BIGINT);
CREATE TABLE kept (timeline INTEGER, first_step BIGINT, end_step BIGINT, rewritten BOOLEAN);
CREATE TABLE series (series INTEGER, timeline INTEGER, kind VARCHAR, name VARCHAR);
CREATE TABLE events (run VARCHAR, id VARCHAR, rank BIGINT, incarnation BIGINT, step BIGINT, severity VARCHAR,
    data BLOB);
CREATE TABLE gaps (run VARCHAR, writer VARCHAR, source VARCHAR, first_seq BIGINT, end_seq BIGINT,
    reason VARCHAR, first_step BIGINT, last_step BIGINT);
CREATE TABLE marks (run VARCHAR, note VARCHAR, starred BOOLEAN);
CREATE TABLE scalar_raw (timeline INTEGER, series INTEGER, step BIGINT, incarnation BIGINT, seq BIGINT,
    superseded BOOLEAN, time DOUBLE, value DOUBLE);
CREATE TABLE scalar_pooled (timeline INTEGER, series INTEGER, level BIGINT, step BIGINT, time DOUBLE,
    min DOUBLE, mean DOUBLE, max DOUBLE, finite BIGINT, nan BIGINT, inf BIGINT, pooled BIGINT);
INSERT INTO meta VALUES (1, 7);
INSERT INTO streams VALUES ('{run}', '0-1', 'events', 1, 1, 0, 0), ('{run}', '0-1', 'metrics', 5, 5, 0, 0);
INSERT INTO timelines VALUES (0, '{run}', 0, ''::BLOB);
INSERT INTO series VALUES (0, 0, 'scalar', 'loss');
INSERT INTO progress VALUES (0, 0, 4, 0);
INSERT INTO marks VALUES ('{run}', 'mine', true);
INSERT INTO scalar_raw SELECT 0, 0, i, 1, i, false, i, i / 2 FROM range(5) t(i);
"""
"""What the first release wrote, in plain SQL; tables that came later are not there."""
COLUMN = "ALTER TABLE marks ADD COLUMN colour VARCHAR DEFAULT 'red'"


def first_file(folder: Path) -> Path:
    path = folder / FILE_NAME
    with duckdb.connect(str(path)) as database:
        database.execute(FIRST_VERSION.format(run=RUN))
        start = encode(RunStart(run=RUN, rank=0, incarnation=1, name="old.py", time=1.0))
        database.execute("INSERT INTO incarnations VALUES (?, 0, 1, ?, ?)", [RUN, start, b"\x80"])
    return path


def set_version(path: Path, version: int) -> None:
    with duckdb.connect(str(path)) as database:
        database.execute("UPDATE meta SET version = ?", [version])


def losses(store: DuckStore) -> list[float]:
    return store.scalars(RUN, 0, ["loss"])["mean"].tolist()


def test_file_of_the_first_release_shows_its_numbers(tmp_path: Path) -> None:
    first_file(tmp_path)
    store = DuckStore(tmp_path)
    assert (store.notice, losses(store), store.runs()[0].name) == (None, [0.0, 0.5, 1.0, 1.5, 2.0], "old.py")
    assert store.marks()[RUN].note == "mine"
    store.close()


def test_older_file_is_upgraded_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = first_file(tmp_path)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: (COLUMN,), 2: ("UPDATE marks SET colour = 'blue'",)})
    store = DuckStore(tmp_path)
    assert (store.notice, len(losses(store)), store.marks()[RUN].note) == (None, 5, "mine")
    store.close()
    assert [each.name for each in tmp_path.glob("*.schema-*")] == []
    with duckdb.connect(str(path)) as database:
        assert database.execute("SELECT version, colour FROM meta, marks").fetchall() == [(3, "blue")]


def test_upgrade_that_fails_changes_nothing_and_sets_the_file_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_file(tmp_path)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: (COLUMN, "ALTER TABLE nothing ADD COLUMN x INTEGER")})
    store = DuckStore(tmp_path)
    assert "kept as nanscope.duckdb.schema-1" in (store.notice or "")
    store.close()
    with duckdb.connect(str(tmp_path / "nanscope.duckdb.schema-1")) as database:
        assert database.execute("SELECT * FROM marks").fetchall() == [(RUN, "mine", True)]


def test_upgrade_on_a_full_disk_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = first_file(tmp_path)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 2)

    def upgraded(*_: object) -> bool:
        raise duckdb.IOException("Could not write file: No space left on device")

    monkeypatch.setattr(schema, "_upgraded", upgraded)
    with pytest.raises(DashboardError, match="No space left"):
        DuckStore(tmp_path)
    assert path.exists()
    assert list(tmp_path.glob("*.schema-*")) == []


@pytest.mark.parametrize("version", [0, 99])
def test_file_that_cannot_be_upgraded_is_set_aside_and_read_in_again(tmp_path: Path, version: int) -> None:
    set_version(first_file(tmp_path), version)
    write_run(tmp_path / "spool", steps=20)
    store = DuckStore(tmp_path)
    assert f"(schema {version}, not 1). It was kept as nanscope.duckdb.schema-{version}" in (
        store.notice or ""
    )
    assert "were kept" in (store.notice or "")
    store.note_journals(SpoolIngest(store, tmp_path / "spool").run().seen)
    assert (len(losses(store)), store.marks()[RUN].note) == (20, "mine")
    store.close()
    store = DuckStore(tmp_path)
    assert (store.notice, len(losses(store))) == (None, 20)
    store.close()
