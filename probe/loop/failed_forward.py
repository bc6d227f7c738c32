"""What the newest training forward raised, if it did: its inputs go into the bundle of the exception.

Used by the step tracker, and by what C follows, on the training thread; by the session to find the model that
an exception is about.
"""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import TYPE_CHECKING

from ..forensics.capture import RootCapture
from ..incidents.failure_texts import is_out_of_memory

if TYPE_CHECKING:
    from .training_loop import TrainingLoop


class Share(IntEnum):
    """What a model's training has to do with an exception, the closest first."""

    FORWARD = 0
    """Its forward has raised it."""
    BACKWARD = 1
    """Its backward has begun on this thread and has not returned."""
    THREAD = 2
    """It is trained on this thread."""
    NONE = 3


class FailedForward:
    """One session's, until the next forward begins."""

    def __init__(self) -> None:
        self._failed: tuple[BaseException, RootCapture] | None = None

    def note(self, error: BaseException, capture: RootCapture) -> None:
        """A forward has raised."""
        # Who goes on after a lack of memory needs what the exception holds to be gone.
        self._failed = None if is_out_of_memory(error) else (error, capture)

    def forget(self) -> None:
        """Another one begins, or none will."""
        self._failed = None

    def share_in(self, error: BaseException, loop: TrainingLoop, *, trains_here: bool) -> Share:
        """What the training that `loop` follows has to do with an exception of the calling thread."""
        if self._failed is not None and self._failed[0] is error:
            return Share.FORWARD
        if loop.backward is not None and loop.backward.thread == threading.get_ident():
            return Share.BACKWARD
        return Share.THREAD if trains_here else Share.NONE

    def take(self, error: BaseException) -> RootCapture | None:
        """Return the forward that has raised `error`, once; None where another one, or nothing, did."""
        failed, self._failed = self._failed, None
        return None if failed is None or failed[0] is not error else failed[1]
