"""A run as one long table, in CSV, Parquet or Arrow: for pandas, polars, DuckDB, spreadsheets.

One row per point. Columns: `run`, `rank`, `name` (a series, or a statistic of layers or modules), `layer`
(empty for a series), `step` (the first of the point's), `time` (UNIX seconds; null for layers), `min`,
`mean`, `max` (over the finite values; of layers only `max`), `nan` and `inf` (how many steps were not
finite; of layers 1 for some), and `pooled` (steps in the point; 1: nothing is down-sampled). Written by
DuckDB, which needs no other library.

In CSV a text that a spreadsheet would take for a formula has an apostrophe there, for names come from the
script. Parquet has range and down-sampling of the whole file in its metadata, key `nanscope`, as JSON.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import duckdb
import numpy as np
import pandas as pd

from ..page.views.heatmap_statistics import DEFAULT_STATISTIC
from ..page.views.theme import ALL_STEPS
from ..store.protocol import Heatmap, StepRange, Store
from .snapshot import Snapshot, take_snapshot

TableForm: TypeAlias = Literal["csv", "parquet"]
TABLE_POINTS: Final = 10_000
"""Points per series, as in the JSON export."""
_NUMBERS: Final = ("step", "time", "min", "mean", "max", "nan", "inf", "pooled")
COLUMNS: Final = ("run", "rank", "name", "layer", *_NUMBERS)
_TYPES: Final = {"rank": "int64", "step": "int64", "nan": "int64", "inf": "int64", "pooled": "int64"}
_UNSEEN: Final = r"\s\x00-\x1f\x7f\xad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\""
_FORMULA: Final = re.compile(rf"((?:^|[;\t\r\n])[{_UNSEEN}]*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Where a cell may begin, blanks and what is not seen, and then what a formula begins with."""
_BLANKS: Final = ("\t", "\r", "\n")
_OPTIONS: Final = {"csv": "FORMAT csv, HEADER", "parquet": "FORMAT parquet, COMPRESSION zstd"}


def export_table(
    store: Store,
    run: str,
    form: TableForm,
    *,
    rank: int = 0,
    steps: StepRange = ALL_STEPS,
    statistic: str = DEFAULT_STATISTIC,
    track: str | None = None,
) -> bytes:
    """Return one rank of a run, or one track of it, as the file described above.

    Raises:
        UnknownRunError: the store has no such run or rank.
        UnknownTrackError: the rank has no such track.
    """
    snapshot = take_snapshot(
        store, run, rank=rank, steps=steps, max_points=TABLE_POINTS, statistic=statistic, track=track
    )
    return write_table(run_table(snapshot), form, facts=_facts(snapshot))


def run_table(snapshot: Snapshot) -> pd.DataFrame:
    """Return the rows of series, then those of the heatmap."""
    parts = [_series_rows(snapshot.series)]
    if snapshot.heatmap is not None:
        parts.append(_heatmap_rows(snapshot.heatmap, snapshot.statistic.id))
    table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    table.insert(0, "rank", snapshot.rank)
    table.insert(0, "run", snapshot.run.run)
    return table.astype(_TYPES)


def series_table(run: str, rank: int, series: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `Store.scalars` in the columns of this file."""
    table = _series_rows(series)
    table.insert(0, "rank", rank)
    table.insert(0, "run", run)
    return table.astype(_TYPES)


def write_table(table: pd.DataFrame, form: TableForm, *, facts: Mapping[str, Any] | None = None) -> bytes:
    """Return a table with the columns of this file as one of these files; NaN is a null.

    Args:
        table: Rows.
        form: Of the file.
        facts: What the metadata of a Parquet file says; CSV has no place for it.
    """
    with tempfile.TemporaryDirectory(prefix="nanscope-table-") as folder:
        path = Path(folder) / "table"
        database = duckdb.connect(
            ":memory:", config={"autoinstall_known_extensions": "false", "threads": "2"}
        )
        try:
            database.register("rows", _plain(table, is_text=form == "csv"))
            columns = ", ".join(_selected(name) for name in COLUMNS)
            options = _OPTIONS[form]
            if form == "parquet" and facts is not None:
                options += f", KV_METADATA {{nanscope: {_quoted(json.dumps(facts))}}}"
            database.execute(f"COPY (SELECT {columns} FROM rows) TO {_quoted(str(path))} ({options})")
        finally:
            database.close()
        return path.read_bytes()


def arrow_stream(table: pd.DataFrame) -> bytes:
    """Return a table as an Arrow IPC stream.

    Raises:
        ImportError: pyarrow is not installed.
    """
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    arrow = pyarrow.Table.from_pandas(table[list(COLUMNS)], preserve_index=False)
    with pyarrow.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    return bytes(sink.getvalue())


def _selected(name: str) -> str:
    """A column as DuckDB reads it: in floats pandas has NaN where there is nothing."""
    if name in ("time", "min", "mean", "max"):
        return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {name}"
    return f'"{name}"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    """What the whole file covers, and how it was down-sampled."""
    return {
        "format": "nanscope-table",
        "v": 1,
        "run": snapshot.run.run,
        "rank": snapshot.rank,
        "track": None if snapshot.track is None else snapshot.track.id,
        "first": snapshot.covered.first,
        "end": snapshot.covered.end,
        "steps_per_point": snapshot.steps_per_point,
        "steps_per_column": snapshot.steps_per_column,
        "exported": snapshot.exported,
    }


def _plain(table: pd.DataFrame, *, is_text: bool) -> pd.DataFrame:
    """Texts as Python objects: DuckDB would ask pyarrow for other ones. In a file of text, no formulas."""
    texts = {name: table[name].astype(object) for name in ("run", "name", "layer")}
    if is_text:
        texts = {name: column.map(no_formula) for name, column in texts.items()}
    return table.assign(**texts)


def no_formula(text: str) -> str:
    """Return a text of which a spreadsheet computes nothing, with an apostrophe where it would.

    What begins so is computed, also with blanks before it, and may start programs. A spreadsheet that takes
    semicolons or tabs for separators, or a line feed for the end of a row, begins a cell there, too. Source:
    OWASP, "CSV Injection".
    """
    safe = _FORMULA.sub(r"\1'", text)
    return f"'{safe}" if safe[:1] in _BLANKS or (safe != text and safe[:1] != "'") else safe


def _series_rows(series: pd.DataFrame) -> pd.DataFrame:
    return series[["name", *_NUMBERS]].assign(layer="")[["name", "layer", *_NUMBERS]]


def _heatmap_rows(heatmap: Heatmap, statistic: str) -> pd.DataFrame:
    """One row per cell in which something was measured."""
    rows = pd.DataFrame(list(_cells(heatmap)), columns=["layer", "step", "max", "nan", "inf"])
    empty = dict.fromkeys(("time", "min", "mean"), np.nan)
    rows = rows.assign(name=statistic, pooled=heatmap.steps_per_column, **empty)
    return rows[["name", "layer", *_NUMBERS]]


def _cells(heatmap: Heatmap) -> Iterator[tuple[Any, ...]]:
    for row, name in enumerate(heatmap.rows):
        for column in np.flatnonzero(heatmap.flags[row] & 1):
            flag = int(heatmap.flags[row, column])
            value = float(heatmap.values[row, column])
            yield name, int(heatmap.steps[column]), value, flag >> 1 & 1, flag >> 2 & 1
