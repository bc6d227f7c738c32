"""Bodies of `Document` records: how a struct becomes one, and how a reader gets it back, checked.

A kind has one struct, which stands beside what makes it (`memory_snapshot`, `profile`, ...) and is registered
nowhere: who reads a kind names the struct that it expects. Nothing here does I/O, and nothing imports torch.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ..errors import WireError
from .records import MAX_DOCUMENT_BYTES, Document

Body = TypeVar("Body")


def make_document(body: Any, *, kind: str, key: str, step: int | None, time: float) -> Document:
    """Return the record of a struct.

    NaN and Inf become null in JSON: a struct that may hold them has them as text (`findings.json_number`).

    Args:
        body: a `msgspec.Struct` of plain fields.
        kind: lower-case words, joined by underscores.
        key: which one of its kind; cut off after 512 characters.
        step: under way; None before the first.
        time: UNIX seconds.

    Raises:
        WireError: the body takes more than `MAX_DOCUMENT_BYTES`.
    """
    data = msgspec.json.encode(body)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise WireError(f"a {kind} of {len(data)} bytes; at most {MAX_DOCUMENT_BYTES} are allowed")
    return Document(kind=kind, key=key[:512], step=step, time=time, body=data)


def read_body(document: Document, type: type[Body]) -> Body:
    """Return the body of a document as the struct that its kind has.

    Raises:
        WireError: it is no JSON, or breaks a type or limit.
    """
    try:
        return msgspec.json.decode(document.body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a {document.kind} does not decode: {error}") from error
