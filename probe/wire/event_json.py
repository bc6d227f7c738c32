"""Events as the JSON that other programs read: offline commands, routes and exports use it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import WireError
from .records import VERSION, Event, Evidence


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
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: jsonable(item) for name, item in fields if item is not msgspec.UNSET}
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


def read_event_json(fields: Mapping[str, Any]) -> Event:
    """Return the event of such a JSON object; what is not finite in its `data` stays text.

    Raises:
        WireError: it is none.
    """
    try:
        evidence = dict(fields["evidence"])
        evidence["neighbours"] = [(one["step"], one["value"]) for one in evidence["neighbours"]]
        # Not strict: numbers that are not finite are text.
        numbers = msgspec.convert(evidence, Evidence, strict=False)
        event = msgspec.convert(
            {name: fields[name] for name in fields if name not in ("v", "evidence")}, Event
        )
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"this is not an event: {error}") from error
    return msgspec.structs.replace(event, evidence=numbers)
