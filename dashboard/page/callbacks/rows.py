"""Callbacks of the panel that shows one parameter, layer or module. Run on the server's callback threads.

Histograms and texts are asked for when the panel opens and when new histograms arrive; tracks and newest
values every few seconds while the training goes on.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from dash import Dash, Input, Output, State, no_update

from ... import ids
from ...ingest.control_desk import ControlDesk
from ...store.protocol import HistogramColumns, StepRange, Store
from ..views.magnitude_facts import TITLES
from ..views.magnitude_panel import kinds_of, row_head, row_tables, watch_condition
from ..views.tensor_statistics import MAX_COLUMNS, NEWEST_STEPS, not_recorded, tracks_data
from ..views.visible_text import visible_text
from .watchpoints import section_view

ROOT: Final = "(root)"
"""What the selector calls the root, whose name is empty; also in `assets/ns_72_rows.js`."""
Name = Annotated[str, msgspec.Meta(max_length=4096)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Step = Annotated[float, msgspec.Meta(ge=0, le=2**53)]


class RowScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripts ask to see; `mark` only makes two askings differ."""

    run: Name
    row: Name
    rank: Rank = 0
    first: Step | None = None
    end: Step | None = None
    mark: float = 0

    @property
    def steps(self) -> StepRange:
        """Return the steps in view."""
        return StepRange(
            first=None if self.first is None else int(self.first),
            end=None if self.end is None else int(self.end),
        )


class RowNames(msgspec.Struct, frozen=True, kw_only=True):
    """Whose names the selector wants; `mark` only makes two askings differ."""

    run: Name
    rank: Rank = 0
    mark: float = 0


def register_rows(app: Dash, store: Store, desk: ControlDesk) -> None:
    """Register the callbacks of histograms, tracks, texts and selector, and of the watchpoint."""

    def show_row(data: Any) -> tuple[Any, Any, Any]:
        return row_view(store, data)

    def show_tracks(data: Any) -> tuple[Any, Any]:
        return tracks_view(store, data)

    def list_rows(data: Any) -> Any:
        return row_names(store, data)

    def watch(_: Any, __: Any, data: Any, condition: Any) -> tuple[Any, Any, Any, Any]:
        return watch_row(desk, data, condition)

    app.callback(
        Output(ids.ROW_HISTOGRAMS, "data"),
        Output(ids.ROW_HEAD, "children"),
        Output(ids.ROW_TABLES, "children"),
        Input(ids.ROW_SCOPE, "data"),
        prevent_initial_call=True,
    )(show_row)
    app.callback(
        Output(ids.ROW_TRACKS, "data"),
        Output(ids.ROW_ABSENT, "children"),
        Input(ids.ROW_TRACKS_SCOPE, "data"),
        prevent_initial_call=True,
    )(show_tracks)
    app.callback(Output(ids.ROW_SELECT, "data"), Input(ids.ROW_NAMES, "data"), prevent_initial_call=True)(
        list_rows
    )
    app.callback(
        Output(ids.ROW_WATCH_SAID, "children"),
        Output(ids.ROW_CONDITION, "error"),
        Output(ids.WATCHPOINT_LIST, "children", allow_duplicate=True),
        Output(ids.WATCHPOINT_COUNT, "children", allow_duplicate=True),
        Input(ids.ROW_WATCH, "n_clicks"),
        Input(ids.ROW_CONDITION, "n_submit"),
        State(ids.ROW_SCOPE, "data"),
        State(ids.ROW_CONDITION, "value"),
        prevent_initial_call=True,
    )(watch)


def row_view(store: Store, data: Any) -> tuple[Any, Any, Any]:
    """Return the histograms over time, head and tables of a row; tables are of the newest."""
    scope = _scope(data)
    if scope is None:
        return no_update, no_update, no_update
    found = store.histogram_columns(scope.run, scope.rank, scope.row, scope.steps)
    layout = store.layout(scope.run, scope.rank)
    newest = [each.newest for each in found]
    has_any = store.histogram_mark(scope.run, scope.rank) is not None
    stage = store.gradient_stage(scope.run, scope.rank)
    head = row_head(scope.row, layout, newest, has_histograms=has_any, stage=stage)
    shown = {
        **_of(scope),
        "watch": watch_condition(scope.row, kinds_of(scope.row, layout)),
        "kinds": [_columns(each) for each in found],
    }
    return shown, head, row_tables(newest)


def _of(scope: RowScope) -> dict[str, Any]:
    """What an answer belongs to: the scripts draw none of another."""
    return {"run": scope.run, "rank": scope.rank, "row": scope.row}


def _columns(found: HistogramColumns) -> dict[str, Any]:
    return {
        "name": found.name,
        "title": TITLES[found.name],
        "steps": found.steps.tolist(),
        "counts": found.counts.tolist(),
    }


def tracks_view(store: Store, data: Any) -> tuple[Any, Any]:
    """Return a row's statistics over the steps in view, its newest values, and what is not recorded."""
    scope = _scope(data)
    if scope is None:
        return no_update, no_update
    tracks = store.tensor_tracks(scope.run, scope.rank, scope.row, scope.steps, MAX_COLUMNS)
    last = max((int(each.steps[-1]) + each.steps_per_column for each in tracks), default=0)
    tail = StepRange(first=max(scope.steps.first or 0, last - NEWEST_STEPS), end=scope.steps.end)
    newest = store.tensor_tracks(scope.run, scope.rank, scope.row, tail, NEWEST_STEPS) if tracks else []
    has_histograms = store.histogram_mark(scope.run, scope.rank) is not None
    layout = store.layout(scope.run, scope.rank)
    present = {each.name for each in tracks} | ({"histogram"} if has_histograms else set())
    shown = {**_of(scope), **tracks_data(tracks, newest)}
    return shown, not_recorded(present, kinds_of(scope.row, layout))


def watch_row(desk: ControlDesk, data: Any, condition: Any) -> tuple[Any, Any, Any, Any]:
    """Add a watchpoint as Controls does; return what is said, what is wrong, and Controls' new list."""
    scope = _scope(data)
    if scope is None:
        return no_update, no_update, no_update, no_update
    view = section_view(desk, scope.run, ids.WATCHPOINT_ADD, condition=condition, action="event")
    said = (
        ""
        if view.error
        else "Watching: an event is recorded when this becomes true. See Controls for the list."
    )
    return said, view.error, view.rows, view.count


def _scope(data: Any) -> RowScope | None:
    try:
        return msgspec.convert(data, RowScope)
    except msgspec.ValidationError:
        return None


def row_names(store: Store, data: Any) -> Any:
    """Return the names that can be chosen and how each is shown; a malformed asking changes nothing."""
    try:
        scope = msgspec.convert(data, RowNames)
    except msgspec.ValidationError:
        return no_update
    names = dict.fromkeys(_subjects(store, scope.run, scope.rank))
    return [_option(name or ROOT) for name in names]


def _subjects(store: Store, run: str, rank: int) -> list[str]:
    """Names in model order; of a run without histograms those of its layers and their parameters."""
    if found := store.histogram_subjects(run, rank):
        return found
    layout = store.layout(run, rank)
    if layout is None:
        return []
    own: list[list[str]] = [[] for _ in layout.layers]
    for parameter in layout.parameters:
        own[parameter.layer].append(parameter.name)
    layers = {layer.name: names for layer, names in zip(layout.layers, own, strict=True)}
    modules = dict.fromkeys([each.name for each in layout.modules] + list(layers))
    return [name for module in modules for name in (module, *layers.get(module, []))]


def _option(name: str) -> str | dict[str, str]:
    label = visible_text(name)
    return name if label == name else {"value": name, "label": label}
