"""Records, messages, columns and events: all that others read, and the only description of it.

Nothing here does I/O and nothing imports torch. The records stand in `records` and are exported here, lazily:
the self-check takes `findings` where msgspec is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .records import (
        BATCH_BYTES,
        COLUMNS,
        KINDS,
        MAX_MESSAGE_BYTES,
        MAX_RECORD_BYTES,
        PARAMETER_COLUMNS,
        SCALARS,
        SEVERITIES,
        VERSION,
        Ack,
        Answered,
        Batch,
        Challenge,
        Column,
        Control,
        Count,
        Event,
        Evidence,
        Frame,
        Frames,
        Gap,
        Hello,
        Histogram,
        HostSample,
        LayerInfo,
        Layout,
        Message,
        ModuleColumn,
        ModuleInfo,
        Origin,
        ParameterInfo,
        Position,
        Proof,
        Record,
        Refused,
        RequestId,
        RunEnd,
        RunId,
        RunStart,
        Severity,
        Skip,
        SourceText,
        StackFrame,
        Stacks,
        StreamKey,
        StreamName,
        Text,
        WriterId,
        decode_message,
        decode_record,
        encode,
        event_id,
        handshake_proof,
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
    "Event",
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
    "MAX_MESSAGE_BYTES",
    "MAX_RECORD_BYTES",
    "Message",
    "ModuleColumn",
    "ModuleInfo",
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
    "Severity",
    "Skip",
    "SourceText",
    "StackFrame",
    "Stacks",
    "StreamKey",
    "StreamName",
    "Text",
    "VERSION",
    "WriterId",
    "decode_message",
    "decode_record",
    "encode",
    "event_id",
    "handshake_proof",
    "is_in_derivative",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(".records", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
