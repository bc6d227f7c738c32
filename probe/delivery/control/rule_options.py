"""What a watchpoint is asked for: its condition and what it does. Checked when it is made; light imports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from ...wire import SEVERITIES, Severity
from .grammar import MAX_LENGTH
from .parser import parse, without_when

Action: TypeAlias = Literal["event", "snapshot", "bundle", "pause", "profile"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
MAX_WATCHPOINTS: Final = 50
MAX_NAME: Final = 200
_MAX_COOLDOWN: Final = 10**9
_SEVERITY_OF: Final[dict[Action, Severity]] = {
    "event": "warning",
    "snapshot": "info",
    "bundle": "warning",
    "pause": "warning",
    "profile": "info",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchpointOptions:
    """A watchpoint as it was asked for.

    Raises:
        ValueError: the condition cannot be read, or an option is out of range; says what is allowed.
    """

    condition: str
    action: Action = "event"
    name: str = ""
    """What events call it; its condition by default."""
    severity: Severity | None = None
    """Of its events; "info" for a snapshot or a profile, else "warning", by default."""
    once: bool = False
    """Whether it is over after its first event."""
    cooldown_steps: int = 0
    """For so many steps after the beginning of an event it begins no other."""

    def __post_init__(self) -> None:
        if not isinstance(self.condition, str):
            raise ValueError(f"condition={self.condition!r} must be a text")
        try:
            parse(self.condition)
        except ValueError as error:
            raise ValueError(f"watchpoint {self.condition[:80]!r}: {error}") from None
        if self.action not in ACTIONS:
            raise ValueError(f"action={self.action!r} is not available; choose one of {', '.join(ACTIONS)}")
        name = self.name
        # Names stand in the log, on whatever terminal that is.
        if not isinstance(name, str) or len(name) > MAX_NAME or not name.isprintable():
            raise ValueError(f"name={name!r} must be one line of at most {MAX_NAME} printable characters")
        if self.severity is not None and self.severity not in SEVERITIES:
            raise ValueError(
                f"severity={self.severity!r} is not available; choose one of {', '.join(SEVERITIES)}"
            )
        if not isinstance(self.once, bool):
            raise ValueError(f"once={self.once!r} must be True or False")
        cooldown = self.cooldown_steps
        if isinstance(cooldown, bool) or not isinstance(cooldown, int) or not 0 <= cooldown <= _MAX_COOLDOWN:
            raise ValueError(
                f"cooldown_steps={cooldown!r} must be a whole number of steps, 0 to {_MAX_COOLDOWN}"
            )
        if not self.name:
            object.__setattr__(self, "name", without_when(self.condition)[:MAX_NAME])

    @property
    def chosen_severity(self) -> Severity:
        """Severity of its events."""
        return self.severity or _SEVERITY_OF[self.action]


assert MAX_NAME < MAX_LENGTH
