"""What every result of an analysis call can do: become JSON. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Final

from ...wire.event_json import jsonable

NOT_IN_JSON: Final = {"json": False}
"""`metadata` of a dataclass field that a result carries for the caller alone, such as a model's output."""


class Result:
    """Base of the frozen dataclasses that the analysis calls return.

    `str(result)` is a table for a person, `to_dict()` the same for a program.
    """

    __slots__ = ()
    _derived: ClassVar[tuple[str, ...]] = ()
    """Properties that `to_dict` adds to the fields."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as builtins that any JSON encoder writes.

        Missing is None; the numbers NaN, Inf and -Inf are the strings "NaN", "Infinity" and "-Infinity".
        """
        shown = [field.name for field in fields(self) if field.metadata.get("json", True)]  # type: ignore[arg-type]
        return {name: _plain(getattr(self, name)) for name in (*self._derived, *shown)}


class MappingResult(Result, dict[str, Any]):
    """A result that is also a dictionary of what `to_dict` returns: `summary["anomaly_rate"]`, `json.dumps`.

    Its dataclasses are made with `eq=False, repr=False`. A change of the dictionary changes no attribute.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        self.update(self.to_dict())


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return jsonable(value)
