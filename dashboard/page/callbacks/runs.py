"""Callbacks of the view of all runs: rows, star, note, deletion, comparison. On callback threads.

What a page shows may be old: what may be done is asked of the store again at each action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from dash import Dash, Input, Output, no_update

from ... import ids
from ...callers import require_control
from ...comparison.facts import compare_facts, compare_layouts
from ...comparison.parting import find_parting
from ...comparison.store_steps import read_store_steps, stored_facts
from ...errors import DashboardError
from ...ingest.run_removal import run_rows, star_run
from ...store.protocol import RunSummary, Store
from ..run_table import RunTable
from ..views.charts import line_parts
from ..views.run_comparison import ComparedRun, run_comparison
from ..views.runs_section import MOST_COMPARED
from .run_actions import delete_run

MOST_STEPS: Final = 200_000
"""Steps that the page compares, some three seconds; `dashboard diff` compares all."""
MAX_NOTE: Final = 4000
MOST_ROWS: Final = 64
"""Rows of one asking that names them; also in `assets/ns_65_runs.js`."""
_Id = Annotated[str, msgspec.Meta(max_length=128)]


class RowsScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows a page wants; `mark` only makes two askings differ."""

    runs: Annotated[list[_Id], msgspec.Meta(max_length=MOST_ROWS)] | None = None
    """Those of running runs, which change; None means all."""
    mark: float = 0


class RunAction(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants done with a run; `mark` comes back with the answer."""

    run: _Id
    act: Literal["star", "unstar", "note", "delete"]
    value: Annotated[str, msgspec.Meta(max_length=MAX_NOTE)] = ""
    mark: float = 0


class ComparedScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are ticked; `mark` only makes two askings differ."""

    runs: Annotated[list[_Id], msgspec.Meta(max_length=MOST_COMPARED)]
    mark: float = 0


def register_runs(app: Dash, store: Store, *, spool: Path | None, changed: Callable[[], None]) -> None:
    """Register the callbacks.

    Args:
        app: gets them.
        store: has the runs.
        spool: where this machine's trainings write; None where there is none.
        changed: called after a change.
    """
    table = RunTable(store)

    def show(data: Any) -> Any:
        return rows_view(table, data)

    def act(data: Any) -> Any:
        return run_action(store, data, spool=spool, changed=changed)

    def compare(data: Any) -> Any:
        return comparison_view(store, data)

    def overlay(data: Any) -> Any:
        return overlay_lines(store, data)

    for target, prop, source, call in (
        (ids.RUNS_ROWS, "data", ids.RUNS_SCOPE, show),
        (ids.RUNS_SAID, "data", ids.RUNS_ACTION, act),
        (ids.RUNS_COMPARISON, "children", ids.RUNS_COMPARED, compare),
        (ids.RUNS_OVERLAY, "data", ids.RUNS_COMPARED, overlay),
    ):
        app.callback(Output(target, prop), Input(source, "data"), prevent_initial_call=True)(call)


def rows_view(table: RunTable, data: Any) -> Any:
    """Return {rows, is_whole, total}: the rows that were asked for; a malformed asking changes nothing."""
    try:
        scope = msgspec.convert(data, RowsScope)
    except msgspec.ValidationError:
        return no_update
    return {"rows": table.rows(scope.runs), "is_whole": scope.runs is None, "total": table.total}


def run_action(store: Store, data: Any, *, spool: Path | None, changed: Callable[[], None]) -> Any:
    """Do it, and return what came of it: {run, act, problem, mark}, the problem empty where it is done.

    Args:
        store: has the run.
        data: a `RunAction`; what is none changes nothing.
        spool: see `register_runs`.
        changed: called after a change.
    """
    try:
        wanted = msgspec.convert(data, RunAction)
    except msgspec.ValidationError:
        return no_update
    try:
        problem = _done(store, wanted, spool=spool, changed=changed)
    except DashboardError as error:
        problem = str(error)
    return {"run": wanted.run, "act": wanted.act, "problem": problem, "mark": wanted.mark}


def _done(store: Store, wanted: RunAction, *, spool: Path | None, changed: Callable[[], None]) -> str:
    """Do it, and return why it was not done; empty where it was."""
    require_control()
    if wanted.act == "delete":
        return delete_run(store, wanted.run, spool=spool, changed=changed)
    if all(row.run != wanted.run for row in run_rows(store)):
        return "The run no longer exists."
    if wanted.act == "note":
        store.mark_run(wanted.run, note=wanted.value.strip())
    else:
        star_run(store, spool, wanted.run, starred=wanted.act == "star")
    changed()
    return ""


def comparison_view(store: Store, data: Any) -> Any:
    """Return what differs between the ticked runs; nothing where fewer than two of them are there."""
    scope = _scope(data)
    if scope is None:
        return no_update
    runs = _ticked(store, scope)
    if len(runs) < 2:
        return []
    ranks = [_first_rank(run) for run in runs]
    pairs = list(zip(runs, ranks, strict=True))
    facts = compare_facts([(run.start, stored_facts(store, run.run, rank)) for run, rank in pairs])
    named = [ComparedRun(run=run.run, name=run.name) for run in runs]
    if len(runs) > 2:
        return run_comparison(named, facts)
    first, second = (read_store_steps(store, run.run, rank, end=MOST_STEPS) for run, rank in pairs)
    one, other = (store.layout(run.run, rank) for run, rank in pairs)
    return run_comparison(
        named,
        facts,
        parting=find_parting(first, second),
        layout=compare_layouts(one, other),
        note=_note(runs),
    )


def overlay_lines(store: Store, data: Any) -> Any:
    """Return the losses of the ticked runs, in their order; {} where fewer than two of them are there.

    A line is {label, x: steps, y: losses or null}; a point of several pooled steps stands in their middle.
    """
    scope = _scope(data)
    if scope is None:
        return no_update
    runs = _ticked(store, scope)
    if len(runs) < 2:
        return {}
    lines = []
    for run in runs:
        line = line_parts(store.scalars(run.run, _first_rank(run), ["loss"]))["line"]
        values = [float(value) if np.isfinite(value) else None for value in line.y]
        label = ComparedRun(run=run.run, name=run.name).label
        lines.append({"label": label, "x": line.x.tolist(), "y": values})
    return {"lines": lines}


def _note(runs: Sequence[RunSummary]) -> str:
    """Say where a run is longer than what is compared here."""
    longest = max((rank.last_step or 0 for run in runs for rank in run.ranks), default=0)
    command = f"dashboard diff {runs[0].run} {runs[1].run}"
    return f"Compared up to step {MOST_STEPS:,}; {command} compares all." if longest >= MOST_STEPS else ""


def _ticked(store: Store, scope: ComparedScope) -> list[RunSummary]:
    """Return those that are there, in the order in which they were ticked."""
    known = {run.run: run for run in store.runs()}
    return [known[run] for run in dict.fromkeys(scope.runs) if run in known]


def _first_rank(run: RunSummary) -> int:
    return run.ranks[0].rank if run.ranks else 0


def _scope(data: Any) -> ComparedScope | None:
    try:
        return msgspec.convert(data, ComparedScope)
    except msgspec.ValidationError:
        return None
