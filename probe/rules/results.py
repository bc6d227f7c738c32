"""What a rule of the user's may return besides None, a text or True."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from ..wire import Severity

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


def as_result(returned: object, name: str) -> RuleResult | None:
    """Read what a rule has returned; None where it found nothing.

    Raises:
        TypeError: it is nothing that a rule may return.
    """
    if returned is None or returned is False:
        return None
    if returned is True:
        return RuleResult(message=f"Rule {name} holds")
    if isinstance(returned, str):
        return RuleResult(message=returned) if returned.strip() else None
    if isinstance(returned, RuleResult):
        return returned
    raise TypeError(
        f"it returned {type(returned).__name__}; a rule returns None, a text, True, False or a "
        "probe.RuleResult"
    )
