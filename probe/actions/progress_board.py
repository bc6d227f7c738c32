"""What a script or a trainer has told of its progress: epochs, steps, phase. Plain values, no I/O.

Written on any thread by the session's calls, read by `loop/progress_watch.py` on the recorder's. Each field
is replaced whole, so that neither waits for the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

MOST: Final = 2**53
MAX_PHASE: Final = 200


class ProgressBoard:
    """Of one session.

    Attributes:
        total_epochs, total_steps: what the training will have; None is not known.
        epoch: the newest that was told, as it was told.
        step: the newest step that was told, and how many steps the session had then.
        loss, learning_rate: the newest that were told.
        phases: that are open, outermost first.
    """

    def __init__(self) -> None:
        self.total_epochs: int | None = None
        self.total_steps: int | None = None
        self.epoch: float | None = None
        self.step: tuple[float, int] | None = None
        self.loss: float | None = None
        self.learning_rate: float | None = None
        self.phases: tuple[str, ...] = ()

    def start(self, *, total_epochs: int | None, total_steps: int | None) -> None:
        """A training begins; what an earlier one has told is forgotten.

        Raises:
            ValueError: a total is no whole number above 0.
        """
        for name, total in (("total_epochs", total_epochs), ("total_steps", total_steps)):
            if total is not None and not _is_total(total):
                raise ValueError(f"{name}={total!r} must be a whole number above 0, or None: not known")
        self.total_epochs, self.total_steps = total_epochs, total_steps
        self.epoch = self.loss = self.learning_rate = None
        self.step = None

    def update(self, *, made: int, **values: float | None) -> str:
        """Take what is told of the training at this moment; None is left as it was.

        Args:
            made: steps that the session has seen.
            **values: `epoch`, `step`, `loss`, `learning_rate`.

        Returns:
            What is wrong with a value, which is then left out; empty where all are right.
        """
        problem = ""
        for name, value in values.items():
            if value is None:
                continue
            if not _is_number(value) or (name in ("epoch", "step") and not 0 <= value <= MOST):
                problem = f"update_progress({name}={value!r}): it must be a number, such as loss.item()"
                continue
            setattr(self, name, (float(value), made) if name == "step" else float(value))
        return problem

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Have the training be in a phase for a block; nests.

        Raises:
            ValueError: the name is no text of 1 to 200 characters.
        """
        if not isinstance(name, str) or not 0 < len(name) <= MAX_PHASE:
            raise ValueError(f"phase({name!r}): a phase needs a name of 1 to {MAX_PHASE} characters")
        before = self.phases
        self.phases = (*before, name)
        try:
            yield
        finally:
            self.phases = before

    def steps_before(self) -> int:
        """Steps of the training before the session's own, as far as what was told shows them.

        A script may count the batches of each epoch anew: only a number above the session's own is taken.
        """
        if self.step is None:
            return 0
        told, made = self.step
        return max(0, math.floor(told) - made)


def _is_total(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
