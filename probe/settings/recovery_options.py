"""What `watch(recovery=...)` takes: which action follows on what, and how often at most. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

Strategy: TypeAlias = Callable[[Exception, Mapping[str, Any]], bool]
"""`recovery_strategy(error, context) -> bool`: whether the run can go on without this step."""
NonfiniteAction: TypeAlias = Literal["skip", "zero", "replace", "clip", "rollback"]
ExplosionAction: TypeAlias = Literal["skip", "clip", "rollback"]
KeepOn: TypeAlias = Literal["host", "device"]

_MOST: Final = 100
_MOST_IN_A_ROW: Final = 10
_KEEP_EVERY: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What is done before an update that would harm the run. Nothing is, unless it is named here.

    Raises:
        ValueError: an option is out of its range, or none switches anything on.
    """

    nonfinite: NonfiniteAction | Strategy | None = None
    """On a loss or gradient that is NaN or Inf: `skip` leaves the update out; `zero` makes it with gradients
    of 0; `replace` puts `replacement` in the place of what is not finite; `clip` puts 0 there and clips the
    rest to `max_norm`; `rollback` goes back to the last good state and leaves the update out. A function is
    asked, and the update left out where it returns True."""
    explosion: ExplosionAction | Strategy | None = None
    """On a `gradient_explosion`: `clip` to `max_norm`, `skip`, `rollback`, or a function."""
    max_norm: float | None = None
    """Global L2 norm that clipping leaves."""
    replacement: float = 0.0
    """What `replace` puts in the place of NaN and Inf."""
    most: int = _MOST
    """Steps that are recovered in a run; at the next one a critical event says that it is over."""
    most_in_a_row: int = _MOST_IN_A_ROW
    """Of them, successive ones."""
    keep_state_every: int = _KEEP_EVERY
    """`rollback`: good steps between two copies of parameters, buffers and optimizer state."""
    keep_state_on: KeepOn = "host"
    """`rollback`: where the copies are."""
    keep_random_state: bool = False
    """`rollback`: go back to the state of the random generators, too."""

    def __post_init__(self) -> None:
        _require_action("nonfinite", self.nonfinite, get_args(NonfiniteAction))
        _require_action("explosion", self.explosion, get_args(ExplosionAction))
        if self.nonfinite is None and self.explosion is None:
            raise ValueError("Recovery() switches nothing on: give nonfinite=..., explosion=... or both")
        if self.max_norm is not None:
            require_above_zero("max_norm", self.max_norm)
        elif "clip" in (self.nonfinite, self.explosion):
            raise ValueError('"clip" needs the norm to clip to: Recovery(explosion="clip", max_norm=1.0)')
        if not is_number(self.replacement) or not math.isfinite(self.replacement):
            raise ValueError(f"replacement={self.replacement!r} must be a finite number")
        for option in ("most", "most_in_a_row", "keep_state_every"):
            value = getattr(self, option)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{option}={value!r} must be a whole number of at least 1")
        if self.keep_state_on not in get_args(KeepOn):
            raise ValueError(f'keep_state_on={self.keep_state_on!r} must be "host" or "device"')
        if not isinstance(self.keep_random_state, bool):
            raise ValueError(f"keep_random_state={self.keep_random_state!r} must be True or False")

    @property
    def keeps_state(self) -> bool:
        """Whether a good state has to be kept."""
        return "rollback" in (self.nonfinite, self.explosion)


def as_recovery(value: object) -> Recovery | None:
    """Return what `watch(recovery=...)` was given as a `Recovery`; None where it is to do nothing.

    Args:
        value: a `Recovery`; the name of an action, or a function, for what is not finite; None.

    Raises:
        ValueError: it is none of these.
    """
    if value is None or isinstance(value, Recovery):
        return value
    if isinstance(value, str) or callable(value):
        return Recovery(nonfinite=value)  # type: ignore[arg-type]
    choices = ", ".join(map(repr, get_args(NonfiniteAction)))
    raise ValueError(f"recovery={value!r} must be one of {choices}, a function, or a probe.Recovery")


def _require_action(option: str, value: object, allowed: tuple[str, ...]) -> None:
    if value is None or callable(value) or (isinstance(value, str) and value in allowed):
        return
    choices = ", ".join(map(repr, allowed))
    raise ValueError(f"{option}={value!r} is not available; choose one of {choices}, or give a function")


def is_number(value: object) -> bool:
    """Whether a value is a number and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_above_zero(option: str, value: object) -> None:
    """Raise `ValueError` unless a value is a finite number above 0."""
    if not is_number(value) or not 0 < value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{option}={value!r} must be a number above 0")
