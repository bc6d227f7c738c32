"""What a rule of the user's may return besides None, a text or True."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np

from ...guard import let_pass, outcome_of
from ...wire import Severity

_SEVERITIES: Final = get_args(Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """A rule's verdict on a step, with what an event can show besides a text.

    Raises:
        ValueError: no text, or no such severity.
    """

    message: str
    severity: Severity = "warning"
    value: float | None = None
    """The number that was found wrong, and what it was judged by."""
    threshold: float | None = None
    affected: tuple[str, ...] = ()
    """Layers or parameters that it is about."""

    def __post_init__(self) -> None:
        if not isinstance(self.message, str) or not self.message.strip():
            raise ValueError(f"message={self.message!r} must be a text")
        if self.severity not in _SEVERITIES:
            raise ValueError(f"severity={self.severity!r} is not available; choose one of {_SEVERITIES}")
        names = (self.affected,) if isinstance(self.affected, str) else self.affected
        names = tuple(names) if isinstance(names, Iterable) else names
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"affected={self.affected!r} must be names of layers or parameters")
        object.__setattr__(self, "affected", tuple(map(as_text, names)))
        object.__setattr__(self, "message", as_text(self.message).strip())
        object.__setattr__(self, "value", _as_number("value", self.value))
        object.__setattr__(self, "threshold", _as_number("threshold", self.threshold))


def as_text(value: object) -> str:
    """Return what a value says of itself, in characters that every file can hold."""
    # The user's own `__str__` runs in there.
    text, _ = outcome_of(str, value)
    return (text or "").encode("utf-8", "replace").decode()


def _as_number(name: str, value: object) -> float | None:
    """Return a number of Python's, NumPy's or torch's as Python's."""
    if value is None:
        return None
    try:
        if not isinstance(value, str | bytes):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        let_pass(error)
    raise ValueError(f"{name}={value!r} must be a number")


def as_result(returned: object, name: str) -> RuleResult | None:
    """Read what a rule has returned; None where it found nothing.

    Raises:
        TypeError: it is nothing that a rule may return.
    """
    if returned is None or (isinstance(returned, bool | np.bool_) and not returned):
        return None
    if isinstance(returned, bool | np.bool_):
        return RuleResult(message=f"Rule {name} holds")
    if isinstance(returned, str):
        return RuleResult(message=returned) if returned.strip() else None
    if isinstance(returned, RuleResult):
        return returned
    raise TypeError(
        f"it returned {type(returned).__name__}; a rule returns None, a text, True, False or a "
        "probe.RuleResult"
    )
