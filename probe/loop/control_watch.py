"""Follows what is asked of a training from outside: the page, the HTTP API, `dashboard resume`.

A `Watch` of the recorder, on its thread. What changes what is measured goes into the mailbox and is followed
at the next step; watchpoints and `resume` at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..delivery.control.control_files import put_answer, request_folder, take_requests
from ..delivery.journal.folder_changes import FolderChanges
from ..delivery.recorder.recorder import Recorder
from ..detectors.base import Finding
from ..errors import WireError
from ..guard import Guard, let_pass
from ..incidents.event_writer import EventWriter
from ..memory.run_snapshots import RunSnapshots
from ..wire import Event
from .control import Command, SetFeatures, SetLevel, SetLimit, SetPreset
from .control import Source as CommandSource
from .step_tracker import StepTracker

if TYPE_CHECKING:
    from ..delivery.control.control_messages import (
        AddWatchpoint,
        ChangeFeatures,
        ChangeLevel,
        ChangeLimit,
        ChangePreset,
        KeepSnapshot,
        Pause,
        Source,
        TrainerState,
        WriteBundle,
    )
    from ..delivery.control.rule_options import Action, WatchpointOptions

_logger = logging.getLogger(__name__)
_PERIOD_S: Final = 0.25
_LISTENED_S: Final = 0.1
_SHOWN: Final = 1000
"""Characters of a request in the event of it."""
_WHO: Final[dict[Source, str]] = {
    "browser": "the page",
    "api": "the HTTP API",
    "command": "`dashboard resume`",
}


class ControlWatch:
    """Requests to one session.

    Args:
        recorder: asks this watch; its folder takes the requests.
        tracker: of the session.
        events: makes the events that say what was asked.
        snapshots: takes those of memory.
    """

    def __init__(
        self, recorder: Recorder, tracker: StepTracker, events: EventWriter, snapshots: RunSnapshots
    ) -> None:
        self._recorder, self._tracker, self._events = recorder, tracker, events
        self._snapshots = snapshots
        self._folder = recorder.folder
        self._guard = Guard()
        self._requests = FolderChanges(request_folder(recorder.folder))
        self._asked = 0
        self.clear: Callable[[], None] | None = None
        """Forgets what was found: the session's own call, on the recorder's thread."""

    @property
    def period_s(self) -> float:
        """Requests come through a dashboard; without one only `dashboard resume` leaves any."""
        return _LISTENED_S if self._recorder.is_listened_to else _PERIOD_S

    def look(self) -> list[Event]:
        """Follow what waits; return events of what was changed."""
        if not self._requests.look():
            return []
        return self._guard.run("control", self._look) or []

    def close(self) -> list[Event]:
        """Nothing is left open."""
        return []

    def _look(self) -> list[Event]:
        events = []
        for request_id, data in take_requests(self._folder):
            from ..delivery.control.control_messages import Answer, encode_answer

            event, error = self._guard.attempt(self._follow, data)
            events += [] if event is None else [event]
            audit = self._audit(data, error)
            events += [] if audit is None else [audit]
            if error is not None and not isinstance(error, ValueError | WireError):
                # The model's modules may change under us. Who asks next is answered all the same.
                _logger.warning("nanscope: a request from outside could not be followed", exc_info=error)
            problem = None if error is None else (str(error) or type(error).__name__)[:4000]
            answer = Answer(problem=problem, state=self._state())
            try:
                put_answer(self._folder, request_id, encode_answer(answer))
            except OSError as error:
                let_pass(error)
                _logger.warning("nanscope: a request from outside could not be answered: %s", error)
        return events

    def _follow(self, data: bytes) -> Event | None:
        """Follow one request; return the event that says so, where nothing else does.

        Raises:
            WireError: it is none.
            ValueError: it cannot be followed; says why.
        """
        from ..delivery.control.control_messages import (
            AddWatchpoint,
            AskState,
            Clear,
            KeepSnapshot,
            Pause,
            Profile,
            RemoveWatchpoint,
            Resume,
            TakeMemorySnapshot,
            WriteBundle,
            decode_ask,
        )

        ask = decode_ask(data)
        request, rules, who = ask.request, self._tracker.rules, _WHO[ask.source]
        if isinstance(request, AddWatchpoint | WriteBundle | Pause | KeepSnapshot):
            if isinstance(request, Pause) and rules.is_paused:
                raise ValueError("the training is paused already")
            if not isinstance(request, AddWatchpoint) and self._tracker.asked_settings.level == "off":
                # It would wait for a step that is followed, perhaps for ever.
                raise ValueError("level `off` records no steps: set another level first")
            options = self._options(request)
            rules.add_watchpoint(options)
            if isinstance(request, AddWatchpoint):
                subject = f"asked for: {options.name}"
                return self._note(subject, f"Watchpoint added by {who}: {options.condition}")
        elif isinstance(request, RemoveWatchpoint):
            if not rules.remove(request.name):
                raise ValueError(f"there is no watchpoint {request.name!r}")
            # At a step of its own subject: both may be asked for while the training is paused.
            return self._note(f"removed: {request.name}", f"Watchpoint removed by {who}: {request.name}")
        elif isinstance(request, Resume):
            if not rules.resume(who):
                raise ValueError("the training is not paused")
        elif isinstance(request, Profile):
            self._tracker.profiles.ask(request.steps, who)
        elif isinstance(request, TakeMemorySnapshot):
            return self._take_memory_snapshot(who)
        elif isinstance(request, Clear):
            if self.clear is None:
                raise ValueError("the training has ended")
            self.clear()
        elif not isinstance(request, AskState):
            self._post(_command(request, ask.source))
        return None

    def _audit(self, data: bytes, error: BaseException | None) -> Event | None:
        """Make the event that says who has asked for what, and what came of it; None for what asks for
        nothing."""
        from ..delivery.control.control_messages import AskState, decode_ask, request_text

        try:
            ask = decode_ask(data)
        except WireError:
            return None  # nobody can say what it was; who asked has been told so
        if isinstance(ask.request, AskState):
            return None
        text = request_text(ask.request)
        who = f"{ask.caller} over {_WHO[ask.source]}" if ask.caller else _WHO[ask.source]
        came = "Accepted." if error is None else f"Refused: {error}"
        subject = text.partition(" ")[0]
        message = f"Requested by {who}: {text[:_SHOWN]}\n{came}"
        return self._note(subject, message, kind="control", is_own=True)

    def _options(self, request: AddWatchpoint | WriteBundle | Pause | KeepSnapshot) -> WatchpointOptions:
        from ..delivery.control.control_messages import AddWatchpoint, KeepSnapshot, WriteBundle
        from ..delivery.control.rule_options import WatchpointOptions

        if not isinstance(request, AddWatchpoint):
            self._asked += 1
            action: Action = "pause"
            if isinstance(request, WriteBundle | KeepSnapshot):
                action = "bundle" if isinstance(request, WriteBundle) else "snapshot"
            name = f"{action} asked for ({self._asked})"
            return WatchpointOptions(
                condition="step >= 0", action=action, name=name, severity="info", once=True
            )
        return WatchpointOptions(
            condition=request.condition,
            action=request.action,
            name=request.name,
            severity=request.severity,
            once=request.once,
            cooldown_steps=request.cooldown_steps,
        )

    def _post(self, command: Command) -> None:
        if not self._tracker.post(command):
            raise ValueError("too many commands wait for the next step; the training is not making steps")

    def _take_memory_snapshot(self, who: str) -> Event:
        from ..wire.findings import size_text

        taken = self._snapshots.take_asked(who)
        size = "" if taken.rss_bytes is None else f": {size_text(taken.rss_bytes)} in the process"
        return self._note(taken.label, f"Memory snapshot {taken.label}{size}", kind="snapshot")

    def _note(self, subject: str, message: str, *, kind: str = "custom", is_own: bool = False) -> Event:
        finding = Finding(
            kind=kind,
            severity="info",
            subject=subject,
            message=message,
            value=None,
            threshold=None,
        )
        step = self._tracker.next_step
        return self._events.make(finding, step, time.time(), stack=(), is_own=is_own)

    def _state(self) -> TrainerState:
        from ..delivery.control.control_messages import TrainerState, WatchpointState

        settings = self._tracker.asked_settings
        return TrainerState(
            step=self._tracker.last_step,
            level=settings.level,
            preset=settings.preset,
            overhead_limit=settings.limit,
            is_paused=self._tracker.rules.is_paused,
            is_profiling=self._tracker.profiles.is_profiling,
            features=settings.features.periods(),
            watchpoints=[
                WatchpointState(name=one.name, condition=one.condition, action=one.action, once=one.once)
                for one in self._tracker.rules.watchpoints
            ],
        )


def _command(request: ChangeLevel | ChangePreset | ChangeFeatures | ChangeLimit, source: Source) -> Command:
    """Make the mailbox's command of a request.

    Raises:
        ValueError: a value is not allowed.
    """
    from ..delivery.control.control_messages import ChangeFeatures, ChangeLevel, ChangePreset

    by: CommandSource = "browser" if source == "browser" else "api"
    if isinstance(request, ChangeLevel):
        return SetLevel(request.level, by)
    if isinstance(request, ChangePreset):
        return SetPreset(request.preset, by)
    if isinstance(request, ChangeFeatures):
        return SetFeatures(request.features, by)
    return SetLimit(request.overhead_limit, by)
