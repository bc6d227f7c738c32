"""Calls that tell how far a training is: methods of the session, and functions for all that are running.

Mixed into `Probe`. What is told is put on a board, and written by the recorder's thread once a second.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from ..compat.weak_tables import WeakTable
from ..detectors.base import Finding
from .progress_board import ProgressBoard

P = ParamSpec("P")


class ProgressCalls:
    """Methods of `Probe`."""

    _progress: ProgressBoard

    if TYPE_CHECKING:

        @property
        def steps_counted(self) -> int:
            """Steps that the session's numbers count."""
            ...

        def record_finding(self, finding: Finding) -> None:
            """Write an event of what a call found."""
            ...

        def record_document(self, body: Any, *, kind: str, key: str) -> None:
            """Write something that was measured as a whole."""
            ...

        def log(self, **values: Any) -> None:
            """Record numbers with the most recent backward."""
            ...

        def _complain(self, name: str, problem: str) -> None:
            """Log a misuse inside the training loop, once a name."""
            ...

    def start_training(self, total_epochs: int | None = None, total_steps: int | None = None) -> None:
        """Say how long the training will be: the page shows the percentage and the time that is left.

        Args:
            total_epochs: passes over the data; None where it is not known.
            total_steps: optimizer steps in all, those before a resumed start included; None where it is not
                known: then the steps of the newest epoch stand for each epoch that is left.

        Raises:
            ValueError: a total is no whole number above 0.
        """
        self._progress.start(total_epochs=total_epochs, total_steps=total_steps)

    def update_progress(
        self,
        epoch: float | None = None,
        step: float | None = None,
        loss: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Say how far the training is; never raises, waits for nothing.

        Args:
            epoch: under way, as the script counts; shown as it is.
            step: as the script counts, of all epochs or of each; a resumed training is known by a number
                above the session's own.
            loss, learning_rate: numbers to show, such as `loss.item()`. The charts have those that the probe
                finds, and what `log` gets.
        """
        problem = self._progress.update(
            made=self.steps_counted, epoch=epoch, step=step, loss=loss, learning_rate=learning_rate
        )
        if problem:
            self._complain("update_progress", problem)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Name what a block does: `with run.phase("validation"):`. Nests; the page shows the innermost one.

        Raises:
            ValueError: the name is no text of 1 to 200 characters.
        """
        return self._progress.phase(name)


def start_training(total_epochs: int | None = None, total_steps: int | None = None) -> None:
    """Say how long the training will be, to every running session; see `Probe.start_training`."""
    for session in list(recording):
        session.start_training(total_epochs, total_steps)


def update_progress(
    epoch: float | None = None,
    step: float | None = None,
    loss: float | None = None,
    learning_rate: float | None = None,
) -> None:
    """Say how far the training is, to every running session; see `Probe.update_progress`."""
    for session in list(recording):
        session.update_progress(epoch, step, loss, learning_rate)


def awaitable_update(update: Callable[P, None]) -> Callable[P, Awaitable[None]]:
    """Make `update_progress` awaitable; it waits for nothing, and so needs no thread."""

    @functools.wraps(update)
    async def call(*args: P.args, **kwargs: P.kwargs) -> None:
        update(*args, **kwargs)

    return call


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Name what a block does, to every running session; see `Probe.phase`."""
    sessions = [session.phase(name) for session in list(recording)]
    for entered in sessions:
        entered.__enter__()
    try:
        yield
    finally:
        for entered in reversed(sessions):
            entered.__exit__(None, None, None)


recording: Final[WeakTable[ProgressCalls, None]] = WeakTable()
"""Sessions that record; each is put here when it begins, and taken out when it ends."""
