"""Events as the JSON that other programs read: offline commands, routes and exports use it. Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from .records import VERSION, Event


def jsonable(value: Any) -> Any:
    """Turn a record or builtin into what any JSON encoder can write: non-finite floats become strings.

    ``NaN`` -> ``"NaN"``, ``inf`` -> ``"Infinity"``, ``-inf`` -> ``"-Infinity"`` (docs/interfaces.md: plain
    encoders turn them into null or into invalid JSON). Bytes are not expected here.
    """
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, msgspec.Struct):
        return {name: jsonable(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def event_json(event: Event) -> dict[str, Any]:
    """Return the event as the JSON object that docs/interfaces.md fixes (``v`` is 1)."""
    fields = jsonable(event)
    fields["evidence"]["neighbours"] = [
        {"step": step, "value": jsonable(value)} for step, value in event.evidence.neighbours
    ]
    return {"v": VERSION, **fields}
