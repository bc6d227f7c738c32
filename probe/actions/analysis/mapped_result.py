"""A result that is a dictionary too: `result["name"]`, `dict(result)` and `json.dumps(result)` work. Pure."""

from __future__ import annotations

from typing import Any

from .call_results import Result


class MappedResult(Result, dict[str, Any]):
    """Base of frozen dataclasses whose items are those of `to_dict`, filled when one is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        dict.update(self, self.to_dict())
