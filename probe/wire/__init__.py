"""Records, messages, columns and events: all that others read, and the only description of it.

Nothing here does I/O and nothing imports torch. `records`, `messages` and `encoding` are exported here, and
lazily: the self-check takes `findings` where msgspec is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .encoding import decode_record, encode, encode_record, sealed
    from .identities import MEMBERS_IN_FULL, event_id, member_number, member_run
    from .messages import (
        MAX_MESSAGE_BYTES,
        Ack,
        Answered,
        Batch,
        Challenge,
        Control,
        Hello,
        Message,
        Position,
        Proof,
        Refused,
        Skip,
        StreamKey,
        Watch,
        decode_message,
        handshake_proof,
    )
    from .records import (
        BATCH_BYTES,
        COLUMNS,
        KINDS,
        MAX_DATA_BYTES,
        MAX_DATA_DEPTH,
        MAX_DATA_ITEMS,
        MAX_DOCUMENT_BYTES,
        MAX_DOCUMENTS,
        MAX_RECORD_BYTES,
        MAX_TENSORS,
        PARAMETER_COLUMNS,
        SCALARS,
        SEVERITIES,
        VERSION,
        Column,
        Count,
        Document,
        Event,
        EventData,
        Evidence,
        Frame,
        Frames,
        Gap,
        Histogram,
        HostSample,
        LayerInfo,
        Layout,
        Member,
        ModuleColumn,
        ModuleInfo,
        NoticedAt,
        Origin,
        ParameterInfo,
        Record,
        RequestId,
        RunEnd,
        RunId,
        RunStart,
        SentStream,
        Severity,
        SourceText,
        StackFrame,
        Stacks,
        StreamName,
        TensorFacts,
        Text,
        WriterId,
        is_in_derivative,
    )

__all__ = [
    "Ack",
    "Answered",
    "BATCH_BYTES",
    "Batch",
    "COLUMNS",
    "Challenge",
    "Column",
    "Control",
    "Count",
    "Document",
    "Event",
    "EventData",
    "Evidence",
    "Frame",
    "Frames",
    "Gap",
    "Hello",
    "Histogram",
    "HostSample",
    "KINDS",
    "LayerInfo",
    "Layout",
    "MAX_DATA_BYTES",
    "MAX_DATA_DEPTH",
    "MAX_DATA_ITEMS",
    "MAX_DOCUMENTS",
    "MAX_DOCUMENT_BYTES",
    "MAX_MESSAGE_BYTES",
    "MAX_RECORD_BYTES",
    "MAX_TENSORS",
    "MEMBERS_IN_FULL",
    "Member",
    "Message",
    "ModuleColumn",
    "ModuleInfo",
    "NoticedAt",
    "Origin",
    "PARAMETER_COLUMNS",
    "ParameterInfo",
    "Position",
    "Proof",
    "Record",
    "Refused",
    "RequestId",
    "RunEnd",
    "RunId",
    "RunStart",
    "SCALARS",
    "SEVERITIES",
    "SentStream",
    "Severity",
    "Skip",
    "SourceText",
    "StackFrame",
    "Stacks",
    "StreamKey",
    "StreamName",
    "TensorFacts",
    "Text",
    "VERSION",
    "Watch",
    "WriterId",
    "decode_message",
    "decode_record",
    "encode",
    "encode_record",
    "event_id",
    "handshake_proof",
    "is_in_derivative",
    "member_number",
    "member_run",
    "sealed",
]

_HOMES: Final = (".records", ".encoding", ".identities", ".messages")
"""In this order: a program that needs records alone loads nothing else, a training no messages."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for home in _HOMES:
        module = import_module(home, __name__)
        if name in vars(module):
            value = globals()[name] = vars(module)[name]
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
