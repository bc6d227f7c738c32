"""The callback that fills the sections of snapshots, profiles and regions. Runs on callback threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from dash import Dash, Input, Output, no_update

from ... import ids
from ...store.protocol import Store
from ..views.document_sections import PLACES, SECTIONS, Section, section_frame


class DocumentsScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripts ask to see; `mark` only makes two askings differ."""

    run: Annotated[str, msgspec.Meta(max_length=4096)]
    rank: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    mark: float = 0


def register_documents(app: Dash, store: Store) -> None:
    """Register the callback."""

    def show(data: Any) -> list[Any]:
        return [
            documents_view(store, data, [section for section in SECTIONS if section.place == place])
            for place in PLACES
        ]

    app.callback(
        *(Output(place, "children") for place in PLACES),
        Input(ids.DOCUMENTS_SCOPE, "data"),
        prevent_initial_call=True,
    )(show)


def documents_view(store: Store, data: Any, sections: Sequence[Section] = SECTIONS) -> Any:
    """Return the sections for which the rank has documents; a malformed asking changes nothing."""
    try:
        scope = msgspec.convert(data, DocumentsScope)
    except msgspec.ValidationError:
        return no_update
    found = [(section, store.documents(scope.run, section.kind, scope.rank)) for section in sections]
    return [section_frame(section, documents) for section, documents in found if documents]
