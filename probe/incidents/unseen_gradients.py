"""The event of a training whose gradients are taken in a way that shows none of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..detectors.base import Finding
from ..threads.stacks import RawFrame
from .incidents import IncidentReporter


def report_unseen_gradients(reporter: IncidentReporter, stack: Sequence[RawFrame]) -> None:
    """Tell, which is wanted once, that no step is seen.

    Args:
        reporter: of the session.
        stack: of the training loop.
    """
    finding = Finding(
        kind="data_gap",
        severity="info",
        subject="steps",
        message="No step is recorded: torch.func takes the gradients, and what it returns cannot be seen",
        value=None,
        threshold=None,
    )
    with reporter.lock:
        reporter.report_sampled([finding], 0, time.time(), stack=stack, is_whole=False)
