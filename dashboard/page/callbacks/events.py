"""Callbacks of the events: their rows, and the panel. Run on the server's callback threads."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from dash import Dash, Input, Output, no_update

from ... import ids
from ...store.protocol import Store
from ..event_feed import EventFeed
from ..views.event_panel import event_panel, panel_state
from ..views.event_table import consequences, event_rows

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class RowsScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the page has of the table's rows; `mark` only makes two askings differ."""

    run: str
    epoch: str | None = None
    low: Number = 0
    high: Number = 0
    mark: float = 0


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The open event; None closes the panel. `seen` is the `data-state` of the panel on screen."""

    run: str | None = None
    event: str | None = None
    seen: str | None = None
    mark: float = 0


def register_events(app: Dash, store: Store) -> None:
    """Register the callbacks of rows and panel."""
    feed = EventFeed()

    def send_rows(data: Any) -> Any:
        return rows_part(store, feed, data)

    def show_event(data: Any) -> Any:
        return selected_panel(store, data)

    app.callback(
        Output(ids.EVENT_ROWS, "data"), Input(ids.EVENT_ROWS_SCOPE, "data"), prevent_initial_call=True
    )(send_rows)
    app.callback(
        Output(ids.EVENT_PANEL, "children"), Input(ids.SELECTION, "data"), prevent_initial_call=True
    )(show_event)


def rows_part(store: Store, feed: EventFeed, data: Any) -> Any:
    """Return the rows that the page does not have, a bounded part of them; a malformed scope changes nothing.

    The page asks again until `low` is 0 and `high` is `newest`; `clear` says that all it has is void.
    """
    try:
        scope = msgspec.convert(data, RowsScope)
    except msgspec.ValidationError:
        return no_update
    read = partial(store.events, scope.run)
    part = feed.part(scope.run, read, epoch=scope.epoch, low=scope.low, high=scope.high)
    return {
        "run": scope.run,
        "clear": part.epoch != scope.epoch,
        "rows": event_rows(part.events),
        "epoch": part.epoch,
        "low": part.low,
        "high": part.high,
        "newest": part.newest,
        "total": part.total,
        "causes": consequences(read()),
    }


def selected_panel(store: Store, data: Any) -> Any:
    """Return the panel of the selected event; of an unknown one the panel that says so.

    Other events come and go while one is read: a panel that says it all already stays as it is.
    """
    try:
        selection = msgspec.convert(data, Selection)
    except msgspec.ValidationError:
        return no_update
    if selection.run is None or selection.event is None:
        return event_panel(None)
    event = store.event(selection.run, selection.event)
    if event is None:
        return event_panel(None, missing=selection.event)
    if selection.seen == panel_state(event):
        return no_update
    run = next((run for run in store.runs() if run.run == selection.run), None)
    return event_panel(event, run=run)
