"""What the wrappers ask first: the C callbacks of the one training whose healthy steps are followed in C.

As long as nothing is armed they are None, and calls go the slow way. Set by the loop's fast path, on the
training thread; read by the wrappers of `__call__`, `backward` and clipping and by the optimizer's hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Follower(Protocol):
    """Takes a step over that C has begun to follow and cannot go on with. No method raises."""

    def forward_was_odd(self, output: Any) -> None:
        """The forward returned something that only the slow way can hold."""
        ...

    def forward_raised(self, error: BaseException) -> None:
        """The forward has raised."""
        ...

    def backward_was_odd(self, tensors: Any) -> None:
        """The backward has returned, and no gradient came by the output."""
        ...

    def backward_raised(self, tensors: Any) -> None:
        """The backward has raised."""
        ...


class ArmedCalls:
    """The callbacks, in the order of a step; None while nothing is armed.

    Each answers True where it has done its part, False where the call has to go the slow way, None where it
    is none of the step's.
    """

    def __init__(self) -> None:
        self.follower: Follower | None = None
        self.disarm()

    @property
    def is_armed(self) -> bool:
        """Whether C is asked."""
        return self.before_step is not None

    def disarm(self) -> None:
        """Ask no more; the follower may still be told how an open call ends."""
        self.begin_forward: Callable[..., bool | None] | None = None
        self.end_forward: Callable[..., bool] | None = None
        self.begin_backward: Callable[..., bool | None] | None = None
        self.end_backward: Callable[..., bool] | None = None
        self.after_scale: Callable[..., bool] | None = None
        self.after_scaler_step: Callable[..., bool] | None = None
        self.before_clip: Callable[..., bool | None] | None = None
        self.after_clip: Callable[..., object] | None = None
        self.before_clearing: Callable[..., bool] | None = None
        self.before_step: Callable[..., bool | None] | None = None
        self.after_step: Callable[..., bool | None] | None = None


armed_calls = ArmedCalls()
"""Of this process."""
