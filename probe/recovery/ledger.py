"""Counts the actions of one session, keeps to their limit, and writes the event of each."""

from __future__ import annotations

import time
from typing import Final

from ..detectors.base import Finding
from ..forensics.stacks import capture_stack
from ..incidents import IncidentReporter
from ..wire import Severity
from .options import Recovery

_SEVERITY: Final[dict[str, Severity]] = {
    "skip": "info",
    "clip": "info",
    "strategy": "info",
    "zero": "warning",
    "replace": "warning",
    "rollback": "warning",
}
"""Of an action's event; a warning where it hides what happened or takes back what was learned."""


class Ledger:
    """What has been done so far.

    Attributes:
        count: steps that were recovered.
        is_closed: whether the limit is reached, so that nothing is done any more.
    """

    def __init__(self, options: Recovery, incidents: IncidentReporter) -> None:
        self.count = 0
        self.is_closed = False
        self._options, self._incidents = options, incidents
        self._in_a_row = 0
        self._declined: set[str] = set()

    def note_good_step(self) -> None:
        """A step needed nothing: the row is broken."""
        self._in_a_row = 0

    def allows(self, step: int, cause: str) -> bool:
        """Whether one more step may be recovered; says so once, with a critical event, when none may."""
        if self.is_closed:
            return False
        options = self._options
        if self.count >= options.most:
            limit = f"{options.most} steps of this run were recovered (most={options.most})"
        elif self._in_a_row >= options.most_in_a_row:
            limit = (
                f"{options.most_in_a_row} successive steps were recovered "
                f"(most_in_a_row={options.most_in_a_row})"
            )
        else:
            return True
        self.is_closed = True
        message = (
            f"Step {step} is not recovered, nor is any later one: {limit}. {cause}; from here on updates are "
            "made as they come."
        )
        self._write("stopped", "critical", message, step, value=float(self.count), threshold=None)
        return False

    def note_action(self, action: str, message: str, step: int) -> None:
        """An action was taken at a step."""
        self.count += 1
        self._in_a_row += 1
        message = f"{message} Recovered steps so far: {self.count} of at most {self._options.most}."
        self._write(
            action,
            _SEVERITY[action],
            message,
            step,
            value=float(self.count),
            threshold=float(self._options.most),
        )

    def note_declined(self, reason: str, step: int) -> None:
        """Nothing was done although it was asked for; said once a reason."""
        if reason in self._declined:
            return
        self._declined.add(reason)
        message = f"Step {step} is not recovered: {reason}. Said once; the update is made as it comes."
        self._write("declined", "warning", message, step, value=None, threshold=None)

    def _write(
        self,
        subject: str,
        severity: Severity,
        message: str,
        step: int,
        *,
        value: float | None,
        threshold: float | None,
    ) -> None:
        finding = Finding(
            kind="recovery",
            severity=severity,
            subject=subject,
            message=message,
            value=value,
            threshold=threshold,
        )
        self._incidents.report(finding, step, time.time(), stack=capture_stack())
