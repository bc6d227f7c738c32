"""What `POST /runs/RUN/control` takes, as the JSON Schema of its body: every request, with its own values."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from probe.delivery.control.control_messages import Request
from probe.settings.levels import FEATURES, MAX_PERIOD, PRESETS

_REF: Final = "#/components/schemas/{name}"
MAX_COOLDOWN: Final = 10**9


def request_body() -> dict[str, Any]:
    """Return the description of the route's body; one schema for each request, told apart by `do`."""
    _, schemas = msgspec.json.schema_components([Request], ref_template=_REF)
    for name, values in _VALUES.items():
        schemas[name]["properties"] |= values
    return {
        "required": True,
        "description": "one request; docs/http-api.md lists them",
        "content": {"application/json": {"schema": {"anyOf": list(schemas.values())}}},
    }


_VALUES: Final[dict[str, dict[str, Any]]] = {
    "ChangePreset": {"preset": {"enum": [*PRESETS, None]}},
    "ChangeFeatures": {
        "features": {
            "type": "object",
            "propertyNames": {"enum": [*FEATURES]},
            "additionalProperties": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_PERIOD},
            "maxProperties": 64,
        }
    },
    "ChangeLimit": {"overhead_limit": {"type": ["number", "null"], "minimum": 0, "maximum": 1}},
    "AddWatchpoint": {
        "cooldown_steps": {"type": "integer", "minimum": 0, "maximum": MAX_COOLDOWN, "default": 0}
    },
}
"""What the types of the requests leave open, and `check_request` refuses."""
