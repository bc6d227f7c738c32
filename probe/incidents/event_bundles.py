"""The bundles of a session's events: begun on the training thread, written beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..delivery.recorder.recorder import Recorder
from ..guard import Guard
from ..settings.config import ProbeConfig
from ..wire import Event, RunStart
from .evidence import StepEvidence

if TYPE_CHECKING:
    from ..forensics.bundle.writer import BundleWriter


class EventBundles:
    """Has bundles written. A healthy run has none, and loads nothing for them."""

    def __init__(self, recorder: Recorder, start: RunStart, config: ProbeConfig) -> None:
        self._recorder, self._start, self._config = recorder, start, config
        self._writer: BundleWriter | None = None
        """Made for the first bundle."""

    @property
    def begun(self) -> int:
        """How many steps took longer for one."""
        return 0 if self._writer is None else self._writer.written

    def add(
        self, event: Event, evidence: StepEvidence | None, guard: Guard, *, is_asked: bool = False
    ) -> Event:
        """Write an event and begin its bundle; return the event with a line that says where the bundle is.

        Args:
            event: what happened.
            evidence: what is at hand of the step.
            guard: the disk may be gone, or memory.
            is_asked: somebody has asked for the bundle.
        """
        # Copies may take a moment, in which the process can be killed.
        self._recorder.event(event)
        return guard.run("bundle", self._attach, event, evidence, is_asked) or event

    def _attach(self, event: Event, evidence: StepEvidence | None, is_asked: bool) -> Event:
        from ..forensics.bundle.writer import BundleWriter

        if self._writer is None:
            config = self._config
            self._writer = BundleWriter(
                self._recorder,
                self._start,
                most=config.bundles,
                with_inputs=config.bundle_inputs,
                limit_bytes=config.bundle_limit_bytes,
            )
        return self._writer.attach(event, evidence, is_asked=is_asked)
