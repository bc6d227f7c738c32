"""What others ask of a session: its model and optimizers, how far it is; and what they have it write.

Part of `session.Probe`, beside the user's own calls. Where it has ended, every question has an answer.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from ..actions.profiling.profile_desk import ProfileDesk
from ..actions.rules.rule_book import RuleBook
from ..delivery.recorder.recorder import Recorder
from ..detectors.base import Finding
from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..threads.stacks import capture_stack
from .step_tracker import StepTracker


class SessionFacts:
    """The answers of one session; `Probe` sets what they are read off."""

    active: bool
    _tracker: StepTracker | None
    _recorder: Recorder | None
    _incidents: IncidentReporter | None
    _guard: Guard
    _model_reference: weakref.ref[nn.Module] | None
    _last_step: int | None
    _first_step: int

    def _steps(self) -> tuple[int, int] | None:
        tracker = self._tracker
        if tracker is None:
            return None
        last = tracker.last_step
        return self._first_step if last is None else last, tracker.next_step

    def _rule_book(self) -> RuleBook | None:
        tracker = self._tracker
        return None if tracker is None else tracker.rules

    def _profile_desk(self) -> ProfileDesk | None:
        tracker = self._tracker
        return None if tracker is None else tracker.profiles

    # -- `Session`, for those who act on a run from outside; the user has the model and the optimizer

    @property
    def watched_model(self) -> nn.Module | None:
        """The naming root; None when it is gone or the session is closed."""
        reference = self._model_reference
        return None if reference is None else reference()

    def _watched_model(self) -> nn.Module | None:
        return self.watched_model

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that were seen to update the watched model."""
        tracker = self._tracker
        return [] if tracker is None else tracker.optimizers

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the model is trained on the thread that asks; also while it was never called."""
        tracker = self._tracker
        return tracker is not None and tracker.is_of_this_thread

    @property
    def steps_made(self) -> int:
        """Steps that were finished so far; those before a resumed start are none of them."""
        last_step = self._last_step if self._tracker is None else self._tracker.last_step
        return 0 if last_step is None else last_step + 1 - self._first_step

    @property
    def steps_counted(self) -> int:
        """Steps that the numbers of this session's count: those made, and those before its `first_step`."""
        return self._first_step + self.steps_made

    def is_updated_by(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer updates the watched model."""
        tracker = self._tracker
        return tracker is not None and tracker.owns(optimizer)

    def record_finding(self, finding: Finding) -> None:
        """Write an event of what a call found or did, at the step that is under way."""
        tracker, incidents = self._tracker, self._incidents
        if incidents is not None and tracker is not None:
            step, stack = tracker.next_step, capture_stack()
            self._guard.run("finding", incidents.report, finding, step, time.time(), stack=stack)

    def record_document(self, body: Any, *, kind: str, key: str) -> None:
        """Write something that was measured as a whole; see `wire.documents.make_document`."""
        if (recorder := self._recorder) is not None:
            self._guard.run("document", self._write_document, recorder, body, kind, key)

    def _write_document(self, recorder: Recorder, body: Any, kind: str, key: str) -> None:
        from ..wire.documents import make_document

        tracker = self._tracker
        step = None if tracker is None else tracker.last_step
        recorder.document(make_document(body, kind=kind, key=key, step=step, time=time.time()))

    @property
    def may_step(self) -> bool:
        """Whether the model and an optimizer that has updated it are still there."""
        return self.active and self.watched_model is not None and bool(self.optimizers)
