from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from store_reference import RUN, begin, make_frame

from dashboard.errors import DashboardError
from dashboard.store.duck import DuckStore
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


def test_damage_inside_the_data_is_an_error_and_never_a_wrong_number(tmp_path):
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
            assert "move nanscope.duckdb out of its data folder" in str(error)
            found += 1
        store.close()
    assert found > 0
