"""Counts the actions of one session, keeps to their limit, and writes the event of each."""

from __future__ import annotations

import time
from typing import Final

from ...detectors.base import Finding
from ...incidents.incidents import IncidentReporter
from ...settings.recovery_options import Recovery
from ...threads.stacks import capture_stack
from ...wire import Severity

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
        self._newest: int | None = None
        """The newest step that was recovered."""
        self._declined: set[str] = set()
        self._said: dict[str, tuple[int, str]] = {}
        """The newest event of each subject: its step and its text."""

    def note_good_step(self) -> None:
        """A step needed nothing: the row is broken."""
        self._in_a_row = 0

    def allows(self, step: int, cause: str) -> bool:
        """Whether one more step may be recovered; says so once, with a critical event, when none may."""
        if self.is_closed:
            return False
        if step == self._newest:
            # Another backward of the same step (adversaries): not half of it.
            return True
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
            f"Step {step} is not recovered, nor is any later one: {limit}. {cause}; from now on updates are "
            "applied unchanged."
        )
        self._write("stopped", "critical", message, step, value=float(self.count), threshold=None)
        return False

    def note_action(self, action: str, message: str, step: int) -> None:
        """An action was taken at a step."""
        if step != self._newest:
            self.count += 1
            self._in_a_row += 1
            self._newest = step
        message = f"{message} Recovered steps so far: {self.count} of at most {self._options.most}."
        self._write(
            action,
            _SEVERITY[action],
            message,
            step,
            value=float(self.count),
            threshold=float(self._options.most),
        )

    def note_declined(self, reason: str, step: int, *, what: str = "Step {step} is not recovered") -> None:
        """Nothing was done although it was asked for; said once a reason.

        Args:
            reason: why, as the rest of a sentence that `what` begins.
            step: number of the step.
            what: is not done.
        """
        if reason in self._declined:
            return
        self._declined.add(reason)
        message = f"{what.format(step=step)}: {reason}. Reported once; such updates are applied unchanged."
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
        # An id is made of step and subject: a second text replaces the first one, so it has to hold it.
        said_at, said = self._said.get(subject, (step, ""))
        text = f"{said} {message}" if said and said_at == step else message
        self._said[subject] = (step, text)
        finding = Finding(
            kind="recovery",
            severity=severity,
            subject=subject,
            message=text,
            value=value,
            threshold=threshold,
        )
        self._incidents.report(finding, step, time.time(), stack=capture_stack())
