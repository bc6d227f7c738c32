"""The calls of a session with which a script records events and exceptions of its own: a part of `Probe`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..incidents.seen_errors import SeenErrors
from ..wire import Severity

if TYPE_CHECKING:
    from torch import nn
    from torch.optim.optimizer import Optimizer


class EventCalls:
    """What `Probe` offers for events of the user's own; nothing here raises. An inert handle does nothing."""

    if TYPE_CHECKING:
        run: str
        _guard: Guard
        _incidents: IncidentReporter | None
        _errors: SeenErrors

        def _complain(self, name: str, problem: str) -> None:
            """Log a misuse inside the training loop, once a name."""
            ...

        def _watched_model(self) -> nn.Module | None:
            """The naming root; None when it is gone or the session is closed."""
            ...

        @property
        def optimizers(self) -> list[Optimizer]:
            """Those that were seen to update the watched model."""
            ...

    def _steps(self) -> tuple[int, int] | None:
        """Number of the newest finished step (0 before it), and of the one under way; None when closed."""
        raise NotImplementedError

    def record_event(self, message: str, /, *, severity: str = "info", **data: Any) -> None:
        """Put an event of your own on the timeline (kind `custom`), and into Python's logging.

        Works from any thread. Two events with the same message are two events, also in one step.

        Args:
            message: what happened; the first line is the heading. At most 4,000 characters are kept.
            severity: "info", "warning" or "critical", or a word of Python's logging: "error" is critical,
                "debug" is info. Another one is complained about in the log, and taken for info.
            **data: numbers, texts, None, lists, nested dictionaries, numbers of numpy and tensors with one
                element (which waits for their device) arrive as they are, anything else as its `repr`. At
                most 16 KiB as JSON and five levels deep; the rest is cut.
        """
        incidents, steps = self._incidents, self._steps()
        if incidents is None or steps is None:
            return
        self._guard.run(
            "event", self._write_own, incidents, message, self._severity(severity), data, steps[0]
        )

    def _write_own(
        self,
        incidents: IncidentReporter,
        message: object,
        severity: Severity,
        data: Mapping[str, Any],
        step: int,
    ) -> None:
        from ..incidents.event_data import plain_data

        text = message if isinstance(message, str) else str(message)
        incidents.custom(text, plain_data(data), severity=severity, step=step, time=time.time())

    def track_error(
        self,
        error: BaseException,
        *,
        severity: str = "warning",
        category: Any = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an exception that the script catches, with its stack and what its functions worked on.

        The event has the kind `exception` (`out_of_memory` where memory ran out). The same exception is one
        event, however often it is caught and recorded; if it leaves the script later, its event becomes
        critical. Nothing is raised or swallowed here. Called in the `except` block, the stack is whole.

        Args:
            error: what was caught.
            severity: see `record_event`.
            category: any word of yours, or a member of an enum; `data["category"]` of the event.
            context: values like the data of `record_event`; `data["context"]` of the event.
        """
        if not isinstance(error, BaseException):
            kind = type(error).__name__
            self._complain("track_error", f"track_error() takes an exception, got {kind}")
            return
        data: dict[str, Any] = {}
        if category is not None:
            data["category"] = getattr(category, "value", category)
        if context is not None:
            data["context"] = context
        self.note_error(error, error.__traceback__, severity=self._severity(severity), data=data)

    def note_error(
        self,
        error: BaseException,
        trace: TracebackType | None,
        *,
        severity: Severity = "warning",
        data: Mapping[str, Any],
    ) -> None:
        """Write an exception that may be caught further out; once, and with all that is said of it."""
        incidents, steps = self._incidents, self._steps()
        if incidents is None or steps is None:
            return
        self._guard.run("tracked_error", self._note_error, incidents, error, trace, severity, data, steps[1])

    def _note_error(
        self,
        incidents: IncidentReporter,
        error: BaseException,
        trace: TracebackType | None,
        severity: Severity,
        data: Mapping[str, Any],
        step: int,
    ) -> None:
        from ..incidents.event_data import plain_data

        plain = plain_data(data)
        if self._errors.is_known(error):
            if (known := self._errors.event_of(error)) is not None:
                self._errors.keep(error, incidents.add_to_caught(known, severity, plain))
            return
        event = incidents.caught(
            error,
            trace,
            step=step,
            time=time.time(),
            severity=severity,
            data=plain,
            model=self._watched_model(),
            optimizers=self.optimizers,
        )
        self._errors.keep(error, event)

    def _severity(self, severity: object) -> Severity:
        from ..incidents.event_data import severity_of

        found = severity_of(severity)
        if found is None:
            allowed = "info, warning and critical"
            told = f"severity {severity!r:.100} does not exist; choose from {allowed}. Recorded as info"
            self._complain(f"severity {severity!r:.100}", told)
        return found or "info"
