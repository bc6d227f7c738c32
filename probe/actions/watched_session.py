"""What a running session is for those who act on it from outside: recovery, launched scripts, integrations.

`session.Probe` is one; tests pass stand-ins. The user's own calls are on `Probe` itself.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import Optimizer

from ..detectors.base import Finding


class Session(Protocol):
    """One session; where it has ended, every question has an answer and nothing is recorded."""

    @property
    def run(self) -> str:
        """Id of the run; "" where nothing is recorded."""
        ...

    @property
    def active(self) -> bool:
        """Whether anything is being recorded."""
        ...

    @property
    def watched_model(self) -> nn.Module | None:
        """The naming root; None when it is gone or the session is closed."""
        ...

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that were seen to update the watched model."""
        ...

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the model is trained on the thread that asks; also while it was never called."""
        ...

    def is_updated_by(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer updates the watched model."""
        ...

    def record_finding(self, finding: Finding) -> None:
        """Write an event of what a call found or did, at the step that is under way."""
        ...

    def record_document(self, body: Any, *, kind: str, key: str) -> None:
        """Write something that was measured as a whole: a snapshot, a profile."""
        ...

    def log(self, **values: float) -> None:
        """Record numbers with the most recent backward."""
        ...

    def end_epoch(self) -> None:
        """Say that an epoch has ended."""
        ...

    def close(self) -> None:
        """Stop recording and remove every hook; idempotent."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record the exception that ends the training, if one does, and close."""
        ...
