"""What the newest training forward raised, if it did: its inputs go into the bundle of the exception.

Used by the step tracker, and by what C follows, on the training thread.
"""

from __future__ import annotations

from ..forensics.capture import RootCapture
from ..incidents.failure_texts import is_out_of_memory


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

    def take(self, error: BaseException) -> RootCapture | None:
        """Return the forward that has raised `error`, once; None where another one, or nothing, did."""
        failed, self._failed = self._failed, None
        return None if failed is None or failed[0] is not error else failed[1]
