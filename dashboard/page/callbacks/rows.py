"""Callbacks of the panel that shows one parameter, layer or module. Run on the server's callback threads."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import msgspec
from dash import Dash, Input, Output, no_update

from ... import ids
from ...store.protocol import StepRange, Store
from ..views.magnitude_figure import magnitude_figure
from ..views.magnitude_panel import row_head, row_tables
from ..views.theme import Theme
from ..views.visible_text import visible_text

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
    theme: Theme = "dark"
    first: Step | None = None
    end: Step | None = None
    mark: float = 0


class RowNames(msgspec.Struct, frozen=True, kw_only=True):
    """Whose names the selector wants; `mark` only makes two askings differ."""

    run: Name
    rank: Rank = 0
    mark: float = 0


def register_rows(app: Dash, store: Store) -> None:
    """Register the callbacks of figure, texts and selector."""

    def show_row(data: Any) -> tuple[Any, Any, Any]:
        return row_view(store, data)

    def list_rows(data: Any) -> Any:
        return row_names(store, data)

    app.callback(
        Output(ids.ROW_FIGURE, "data"),
        Output(ids.ROW_HEAD, "children"),
        Output(ids.ROW_TABLES, "children"),
        Input(ids.ROW_SCOPE, "data"),
        prevent_initial_call=True,
    )(show_row)
    app.callback(Output(ids.ROW_SELECT, "data"), Input(ids.ROW_NAMES, "data"), prevent_initial_call=True)(
        list_rows
    )


def row_view(store: Store, data: Any) -> tuple[Any, Any, Any]:
    """Return the figure as plain JSON (empty where nothing was measured), head and tables of a row."""
    try:
        scope = msgspec.convert(data, RowScope)
    except msgspec.ValidationError:
        return no_update, no_update, no_update
    steps = StepRange(
        first=None if scope.first is None else int(scope.first),
        end=None if scope.end is None else int(scope.end),
    )
    found = store.histograms(scope.run, scope.rank, scope.row, steps)
    figure = json.loads(magnitude_figure(found, theme=scope.theme).to_json()) if found else {}
    head = row_head(scope.row, store.layout(scope.run, scope.rank), found)
    return figure, head, row_tables(found)


def row_names(store: Store, data: Any) -> Any:
    """Return the names that can be chosen and how each is shown; a malformed asking changes nothing."""
    try:
        scope = msgspec.convert(data, RowNames)
    except msgspec.ValidationError:
        return no_update
    names = dict.fromkeys(store.histogram_subjects(scope.run, scope.rank))
    return [_option(name or ROOT) for name in names]


def _option(name: str) -> str | dict[str, str]:
    label = visible_text(name)
    return name if label == name else {"value": name, "label": label}
