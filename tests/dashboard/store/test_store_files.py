from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from store_reference import RUN, begin, make_frame, stream_key

from dashboard.errors import DashboardError
from dashboard.store import mending
from dashboard.store.damage import is_suspicious
from dashboard.store.duck import DuckStore
from dashboard.store.mending import MAX_RENEWALS
from dashboard.store.protocol import RunMark, StepNote
from dashboard.store.schema import FILE_NAME, SCHEMA_VERSION, TABLES


def write_run(folder: Path) -> Path:
    store = DuckStore(folder)
    key = begin(store)
    store.append(key, 0, [make_frame(step, scalars={"loss": 1.0}) for step in range(500)])
    store.close()
    return folder / FILE_NAME


def reopen_empty(folder: Path) -> str:
    """Open a folder whose file cannot be used; return the notice."""
    store = DuckStore(folder)
    assert store.runs() == []
    begin(store)
    store.commit()
    notice = store.notice
    store.close()
    store = DuckStore(folder)
    assert store.notice is None and len(store.runs()) == 1
    store.close()
    return notice


def test_new_folder_is_private_and_has_no_notice(tmp_path):
    path = write_run(tmp_path / "deep" / "data")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    store = DuckStore(path.parent)
    assert store.notice is None
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"hello " * 1000,
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:4096] + os.urandom(8192) + content[12288:],
    ],
    ids=["text", "empty", "truncated", "header"],
)
def test_damaged_file_is_set_aside_and_said(tmp_path, damage):
    path = write_run(tmp_path)
    content = damage(path.read_bytes())
    path.write_bytes(content)
    notice = reopen_empty(tmp_path)
    assert "nanscope.duckdb.damaged-1" in notice
    assert (tmp_path / "nanscope.duckdb.damaged-1").read_bytes() == content


def test_second_damaged_file_gets_the_next_number(tmp_path):
    for number in (1, 2):
        (tmp_path / FILE_NAME).write_bytes(b"nothing")
        assert f"damaged-{number}" in reopen_empty(tmp_path)


def test_other_schema_version_is_set_aside(tmp_path):
    path = write_run(tmp_path)
    with duckdb.connect(str(path)) as database:
        database.execute("UPDATE meta SET version = 99")
    assert "schema 99" in reopen_empty(tmp_path)
    with duckdb.connect(str(tmp_path / "nanscope.duckdb.schema-99")) as database:
        assert database.execute("SELECT count(*) FROM scalar_raw").fetchone() == (500,)


def test_somebody_elses_database_is_set_aside(tmp_path):
    with duckdb.connect(str(tmp_path / FILE_NAME)) as database:
        database.execute("CREATE TABLE mine (x INTEGER)")
    assert "nanscope.duckdb.schema-0" in reopen_empty(tmp_path)


def test_file_in_use_by_another_process_names_it_and_the_way_out(tmp_path):
    path = write_run(tmp_path)
    code = (
        f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(DashboardError, match=rf"process {holder.pid}.*--data"):
            DuckStore(tmp_path)
        holder.stdin.close()
        assert holder.wait(timeout=30) == 0
    store = DuckStore(tmp_path)
    assert len(store.runs()) == 1
    store.close()


def test_folder_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "data").write_text("x")
    with pytest.raises(DashboardError, match="--data"):
        DuckStore(tmp_path / "data")


def test_tables_of_this_version_have_not_changed_unnoticed(tmp_path):
    path = write_run(tmp_path)
    with duckdb.connect(str(path), read_only=True) as database:
        names = {row[0] for row in database.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        assert names == set(TABLES)
        assert database.execute("SELECT version FROM meta").fetchone() == (SCHEMA_VERSION,)


def test_damage_inside_the_data_is_an_error_once_then_the_file_is_set_aside(tmp_path):
    path = write_run(tmp_path)
    content = bytearray(path.read_bytes())
    found = 0
    for start in range(12288, len(content), 65536):
        damaged = content.copy()
        damaged[start : start + 64] = bytes(byte ^ 0xFF for byte in damaged[start : start + 64])
        path.write_bytes(damaged)
        store = DuckStore(tmp_path)
        try:
            frame = store.scalars(RUN, 0, ["loss"])
            assert store.notice is not None or set(frame["mean"]) == {1.0}
        except DashboardError as error:
            assert "seems to be damaged" in str(error)
            assert store.generation() == 1
            assert "damaged-" in store.notice
            assert store.scalars(RUN, 0, ["loss"]).empty
            found += 1
        store.close()
    assert found > 0


def damage_rows(path: Path) -> None:
    """Overwrite all blocks but the headers and the last ones, which say where the others are."""
    content = bytearray(path.read_bytes())
    for start in range(12288 + 262144, len(content) - 2 * 262144, 4096):
        content[start : start + 8] = bytes(byte ^ 0x55 for byte in content[start : start + 8])
    path.write_bytes(content)


def test_store_that_is_gone_names_the_runs_that_it_had(tmp_path):
    write_run(tmp_path).unlink()
    store = DuckStore(tmp_path)
    store.note_journals(())
    assert "is gone" in store.notice
    assert f"1 did not, they have no journals any more: {RUN} (demo)" in store.notice
    store.remove_run(RUN)
    store.close()
    store = DuckStore(tmp_path)
    assert store.notice is None, "it was deleted on purpose"
    store.close()


def test_lost_runs_are_told_for_a_week_and_not_longer(tmp_path):
    write_run(tmp_path).unlink()
    for day, told in ((0, True), (6, True), (8, False), (9, False)):
        store = DuckStore(tmp_path, clock=lambda day=day: 1.8e9 + day * 86400)
        assert (store.notice is not None) == told, day
        store.close()


def test_odd_file_of_known_runs_is_none(tmp_path):
    path = write_run(tmp_path)
    for content in (b"", b"[" * 100_000, b"\xff", b'{"runs": {"a": 1}}', b'{"runs": {"a": {"lost": "x"}}}'):
        path.with_name("nanscope.runs.json").write_bytes(content)
        store = DuckStore(tmp_path)
        assert store.notice is None
        store.close()


@pytest.mark.parametrize(
    ("error", "suspicious"),
    [
        (duckdb.IOException("Could not write file: No space left on device"), False),
        (duckdb.OutOfMemoryException("failed to allocate, corrupt"), False),
        (duckdb.ConversionException("Could not convert string 'x' to INT32"), False),
        (duckdb.BinderException("Referenced column not found"), False),
        (duckdb.ConstraintException("NOT NULL constraint failed"), False),
        (duckdb.TransactionException("Conflict on tuple deletion!"), False),
        (duckdb.InterruptException("INTERRUPT Error: Interrupted!"), False),
        (duckdb.InternalException("INTERNAL Error: Attempted to access index 3"), True),
        (duckdb.FatalException("database has been invalidated because of a previous fatal error"), True),
        (duckdb.IOException('Could not read enough bytes from file "nanscope.duckdb"'), True),
        (duckdb.Error("Corrupt database file: computed checksum 1 does not match stored checksum 2"), True),
        (duckdb.SerializationException("Failed to deserialize: field id mismatch"), True),
    ],
)
def test_only_what_speaks_of_the_file_has_it_examined(error, suspicious):
    assert is_suspicious(error) == suspicious


def fail_reads(store: DuckStore, monkeypatch: pytest.MonkeyPatch, error: duckdb.Error) -> None:
    """Have one read fail."""

    def read_scalars(*arguments, **options):
        monkeypatch.undo()
        raise error

    monkeypatch.setattr("dashboard.store.base.read_scalars", read_scalars)
    with pytest.raises(DashboardError):
        store.scalars(RUN, 0, ["loss"])


def test_whole_file_that_gave_an_error_stays(tmp_path, monkeypatch):
    write_run(tmp_path)
    store = DuckStore(tmp_path)
    fail_reads(store, monkeypatch, duckdb.FatalException("database has been invalidated"))
    assert len(store.scalars(RUN, 0, ["loss"])) == 500
    assert (store.notice, store.generation(), len(list(tmp_path.glob("*damaged*")))) == (None, 1, 0)
    store.close()


def test_error_of_a_query_has_nothing_examined(tmp_path, monkeypatch):
    write_run(tmp_path)
    store = DuckStore(tmp_path)
    fail_reads(store, monkeypatch, duckdb.ConversionException("Could not convert string 'x' to INT32"))
    assert len(store.scalars(RUN, 0, ["loss"])) == 500
    assert store.generation() == 0
    store.close()


def test_only_a_few_files_are_set_aside(tmp_path, monkeypatch):
    write_run(tmp_path)
    store = DuckStore(tmp_path)
    corrupt = duckdb.Error("Corrupt database file: computed checksum 1 does not match")
    for _ in range(30):
        begin(store)
        store.append(stream_key(), 0, [make_frame(0, scalars={"loss": 1.0})])
        fail_reads(store, monkeypatch, corrupt)
    assert len(list(tmp_path.glob("*.damaged-?"))) == MAX_RENEWALS
    assert "see --data" in store.notice
    assert store.generation() <= MAX_RENEWALS + 1
    begin(store)
    store.commit()
    assert len(store.runs()) == 1
    store.close()


def test_file_that_cannot_be_opened_just_now_is_tried_again(tmp_path, monkeypatch):
    write_run(tmp_path)
    store = DuckStore(tmp_path)
    opened = mending.open_database

    def no_room(*arguments, **options):
        raise DashboardError("No space left on device")

    monkeypatch.setattr(mending, "open_database", no_room)
    monkeypatch.setattr(mending, "RETRY_S", 0.0)
    with store._lock:
        store._suspect(duckdb.FatalException("database has been invalidated"))
    for call in (store.runs, store.commit, lambda: store.append(stream_key(), 0, [])):
        with pytest.raises(DashboardError, match="No space left"):
            call()
    assert store.generation() == 0
    monkeypatch.setattr(mending, "open_database", opened)
    assert len(store.scalars(RUN, 0, ["loss"])) == 500
    store.close()


def test_notes_and_stars_come_along(tmp_path):
    path = write_run(tmp_path)
    store = DuckStore(tmp_path)
    store.write_note(RUN, StepNote(id="n", step=3, text="look", time=1.0))
    store.mark_run(RUN, note="mine", starred=True)
    store.close()
    damage_rows(path)
    store = DuckStore(tmp_path)
    with contextlib.suppress(DashboardError):
        store.scalars(RUN, 0, ["loss"])
    store.note_journals(())
    assert "damaged-1" in store.notice
    kept = "were kept" in store.notice
    assert kept or "could not be read" in store.notice
    assert [note.text for note in store.notes(RUN)] == (["look"] if kept else [])
    assert store.marks().get(RUN, RunMark()).starred == kept
    store.close()
