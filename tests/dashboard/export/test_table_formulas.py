"""A spreadsheet computes nothing of an exported CSV, whichever separator it takes; numbers stay numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import page_runs
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.export.table import COLUMNS, export_table, no_formula, write_table
from dashboard.store.duck import DuckStore
from probe.wire import Frame, LayerInfo, Layout, ParameterInfo, encode
from probe.wire.columns import pack_column

RUN = "=cmd|calc"
HOSTILE = (
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    "\u00a0=1",
    "\u200b=1",
    "\ufeff@x",
    "\x00=1",
    "\uff1d1",
    "a;=1",
    "a; -1",
    "a\t+1",
    "a\n@x",
    'a";=1',
    "\tplain",
    '=HYPERLINK("http://evil.example";"here")',
    "=cmd|' /C calc'!A0",
)
PLAIN = ("blocks.0", "a-b", "x=1", "user@host", "1e-3", "a, -b", "log p(x|y)", "", "'=1")
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
BLANKS = ("\t", "\r", "\n")
HIDDEN = ' \u00a0\u200b\ufeff\x00"'


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def computed(text: str) -> list[str]:
    """Cells of a CSV file that a spreadsheet might compute, with every separator that one takes."""
    return [
        cell
        for separator in ",;\t"
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        for cell in row
        if (cell.lstrip(HIDDEN).startswith(FORMULA) and not is_number(cell))
        or (separator == "," and cell.startswith(BLANKS))
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckStore]:
    """A run whose id, layers and logged series are hostile, and whose numbers are negative."""
    opened = DuckStore(tmp_path_factory.mktemp("formulas"))
    layers = [LayerInfo(name=name, type="Linear") for name in HOSTILE]
    parameters = [
        ParameterInfo(name=f"{name}.weight", shape=[2], dtype="float32", layer=index)
        for index, name in enumerate(HOSTILE)
    ]
    described = Layout(layout=0, model="M", parameters=parameters, layers=layers, modules=[])
    start = msgspec.structs.replace(page_runs.run_start(run=RUN, name="=1+1"), argv=["=1"])
    opened.append(page_runs.key("events", run=RUN), 0, [encode(start), encode(described)])
    scalars = {"loss": -1.5, **{f"log/{name}": -2.0 for name in HOSTILE}, **dict.fromkeys(HOSTILE, -3.0)}
    frames = [
        Frame(
            step=step,
            time=1.7e9,
            scalars=scalars,
            columns=[pack_column("grad_norm", np.arange(1.0, len(layers) + 1))],
        )
        for step in range(3)
    ]
    opened.append(page_runs.key("metrics", run=RUN), 0, [encode(frame) for frame in frames])
    opened.commit()
    yield opened
    opened.close()


def test_exported_csv_has_no_cell_that_is_computed(store: DuckStore) -> None:
    text = export_table(store, RUN, "csv").decode()
    assert computed(text) == []
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {row["run"] for row in rows} == {f"'{RUN}"}
    assert len({row["layer"] for row in rows}) >= len(HOSTILE)
    assert {row["mean"] for row in rows if row["name"] == "loss"} == {"-1.5"}


def test_exported_parquet_has_the_names_as_they_are(store: DuckStore, tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    path.write_bytes(export_table(store, RUN, "parquet"))
    import duckdb

    with duckdb.connect() as database:
        names = database.execute("SELECT DISTINCT layer FROM read_parquet(?)", [str(path)]).fetchall()
    assert {name for (name,) in names} >= set(HOSTILE)


@pytest.mark.parametrize("text", PLAIN)
def test_name_that_no_spreadsheet_computes_stays(text: str) -> None:
    assert no_formula(text) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_name_that_a_spreadsheet_computes_begins_with_an_apostrophe(text: str) -> None:
    made = no_formula(text)
    assert made != text
    assert made.replace("'", "") == text.replace("'", "")


def table(name: str) -> pd.DataFrame:
    values: dict[str, Any] = dict.fromkeys(COLUMNS, -1.0)
    values |= {
        "run": name,
        "rank": 0,
        "name": name,
        "layer": name,
        "step": 1,
        "nan": 0,
        "inf": 0,
        "pooled": 1,
    }
    return pd.DataFrame([values])


PIECES = st.sampled_from([*HOSTILE, *PLAIN, ";", ",", "\t", "\r\n", '"', "'", "=", "-", "\u200b", " ", "é"])


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(PIECES, max_size=6).map("".join))
def test_no_name_makes_a_cell_that_is_computed(name: str) -> None:
    text = write_table(table(name), "csv").decode()
    assert computed(text) == []
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["name"] == no_formula(name)
