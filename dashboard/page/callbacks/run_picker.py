"""The callback that says of the runs in view of the picker how far they are. Runs on callback threads."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from dash import Dash, Input, Output, no_update

from ... import ids
from ...store.protocol import Store
from ..run_picker import picker_rows

MOST_ROWS: Final = 128
"""Rows of one asking; also in `assets/ns_62_run_picker.js`."""


class PickerScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are in view; `mark` only makes two askings differ."""

    runs: Annotated[list[Annotated[str, msgspec.Meta(max_length=128)]], msgspec.Meta(max_length=MOST_ROWS)]
    mark: float = 0


def register_run_picker(app: Dash, store: Store) -> None:
    """Register the callback."""

    def show(data: Any) -> Any:
        return picker_view(store, data)

    app.callback(Output(ids.PICKER_ROWS, "data"), Input(ids.PICKER_SCOPE, "data"), prevent_initial_call=True)(
        show
    )


def picker_view(store: Store, data: Any) -> Any:
    """Return a row a run that is asked for; a malformed asking changes nothing."""
    try:
        scope = msgspec.convert(data, PickerScope)
    except msgspec.ValidationError:
        return no_update
    return picker_rows(store, set(scope.runs))
