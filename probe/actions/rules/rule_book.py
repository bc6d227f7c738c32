"""All rules and watchpoints of one session: who is judged when, and what follows when one holds.

Changed from any thread, by putting a new tuple in place of the old; judged on the training thread, where the
hooks of a step call it. Without any, the hooks are empty.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from ...attach.watched_model import WatchedModel
from ...delivery.recorder.recorder import Recorder
from ...detectors.base import Finding
from ...guard import Guard
from ...incidents.evidence import StepEvidence
from ...incidents.failure_texts import TEXT_LIMIT
from ...incidents.incidents import IncidentReporter
from ...settings.config import ProbeConfig
from ...step.frames import MeasuredStep
from ...threads.stacks import capture_stack
from ...wire import Event
from ..step_hooks import StepHooks

if TYPE_CHECKING:
    from ...delivery.control.rule_options import WatchpointOptions
    from .episode import RuleEpisode
    from .pause import PauseGate
    from .quantities import NameIndex, StepNumbers
    from .snapshots import SnapshotWriter
    from .user_rule import RuleFunction, UserRule
    from .watchpoint import Watchpoint

MAX_RULES: Final = 50
MAX_HISTORY_BYTES: Final = 64 * 1024 * 1024
"""Of all watchpoints: 0.5 KiB for each match of each comparison with a history."""
PROFILED_STEPS: Final = 5
"""Steps that a watchpoint has profiled."""
_Evidence = Callable[[], StepEvidence]


class PauseListener(Protocol):
    """Who has to know of a pause."""

    def leave_out(self, ns: int) -> None:
        """So long nothing was trained."""
        ...


class RuleBook:
    """Rules and watchpoints of one session.

    Args:
        model: the watched one.
        meters: leaves pauses out of the step's time.
        config: how long a pause may be, and whether ranks may pause.
        recorder: has the folder for snapshots, and the newest reading of memory.
        incidents: makes the events.
        hooks: it is called there as long as there is something to judge, or to wait for.
        profile: has so many steps profiled, for this one who asks; raises ValueError where that cannot be.
        guard: of the training thread.
    """

    def __init__(
        self,
        model: WatchedModel,
        meters: PauseListener,
        *,
        config: ProbeConfig,
        recorder: Recorder,
        incidents: IncidentReporter,
        hooks: StepHooks,
        profile: Callable[[int, str], None],
        guard: Guard,
    ) -> None:
        self._hooks, self._profile = hooks, profile
        self._model, self._meters = model, meters
        self._recorder, self._incidents, self._guard = recorder, incidents, guard
        self._with_ranks = config.pause_ranks
        self._lock = threading.Lock()
        self._rules: tuple[UserRule, ...] = ()
        self._watchpoints: tuple[Watchpoint, ...] = ()
        self._ended: list[RuleEpisode] = []
        """Of rules that were removed in the middle of an event."""
        self._gate: PauseGate | None = None
        """Made for the first pause."""
        self._pause_limit_s = config.pause_limit_s
        self._pause_for: tuple[Event, float] | None = None
        """What the pause is for, and after how many seconds it ends by itself."""
        self._is_ending = False

    @cached_property
    def _index(self) -> NameIndex:
        from .quantities import NameIndex

        return NameIndex()

    @cached_property
    def _snapshots(self) -> SnapshotWriter:
        from .snapshots import SnapshotWriter

        return SnapshotWriter(self._recorder.folder.parent)

    # -- from any thread

    def add_rule(self, function: RuleFunction, name: str | None = None) -> str:
        """Have a function of a finished step called at every step; return its name.

        Raises:
            ValueError: it cannot be called, the name is taken, or there are `MAX_RULES` already.
        """
        from ...delivery.control.rule_options import MAX_NAME
        from .user_rule import UserRule

        if not callable(function):
            raise ValueError(f"add_rule() takes a function of a step, got {type(function).__name__}")
        chosen = name or getattr(function, "__name__", type(function).__name__)
        if not isinstance(chosen, str) or len(chosen) > MAX_NAME or not chosen.isprintable():
            raise ValueError(f"name={chosen!r} must be one line of at most {MAX_NAME} printable characters")
        with self._lock:
            self._require_free(chosen, len(self._rules), MAX_RULES)
            self._change((*self._rules, UserRule(chosen, function)), self._watchpoints)
        return chosen

    def add_watchpoint(self, options: WatchpointOptions) -> str:
        """Have a condition judged at every step; return its name.

        Raises:
            ValueError: a pattern matches nothing, the name is taken, there are `MAX_WATCHPOINTS` already, or
                their histories are too large.
        """
        from ...delivery.control.rule_options import MAX_WATCHPOINTS
        from .quantities import NameIndex, check_pattern
        from .watchpoint import Watchpoint

        watchpoint = Watchpoint(options)
        index = NameIndex()
        index.follow(self._model.layout)
        watchpoint.measure(
            {one: check_pattern(one, index, self._module_names) for one in watchpoint.quantities}
        )
        with self._lock:
            self._require_free(options.name, len(self._watchpoints), MAX_WATCHPOINTS)
            self._require_room(watchpoint)
            self._change(self._rules, (*self._watchpoints, watchpoint))
        return options.name

    def remove(self, name: str) -> bool:
        """Take out a rule or a watchpoint; whether there was one of this name."""
        with self._lock:
            rules = tuple(rule for rule in self._rules if rule.name != name)
            kept = tuple(one for one in self._watchpoints if one.options.name != name)
            gone = [rule.episode for rule in self._rules if rule.name == name]
            gone += [one.episode for one in self._watchpoints if one.options.name == name]
            self._ended += gone
            self._change(rules, kept)
        return bool(gone)

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules that are called."""
        return tuple(rule.name for rule in self._rules)

    @property
    def watchpoints(self) -> tuple[WatchpointOptions, ...]:
        """Watchpoints that are judged, in the order in which they were added."""
        return tuple(one.options for one in self._watchpoints)

    @property
    def is_paused(self) -> bool:
        """Whether the training thread waits for `resume`."""
        return self._gate is not None and self._gate.is_shut

    def resume(self, by: str) -> bool:
        """Let a paused training go on; whether it was paused."""
        return self._gate is not None and self._gate.open(by)

    def end_pauses(self) -> None:
        """The session ends: let go of who waits, and have nobody wait any more."""
        self._is_ending = True
        self.resume("the end of the session")

    def _require_free(self, name: str, count: int, most: int) -> None:
        if name in (*self.rules, *(one.options.name for one in self._watchpoints)):
            raise ValueError(
                f"there is a rule or watchpoint {name!r} already; remove it, or choose another name"
            )
        if count >= most:
            raise ValueError(f"there are {most} already, which is the most")

    def _require_room(self, watchpoint: Watchpoint) -> None:
        held = watchpoint.history_bytes + sum(one.history_bytes for one in self._watchpoints)
        if held > MAX_HISTORY_BYTES:
            raise ValueError(
                f"histories of all watchpoints would take {held / 2**20:,.0f} MiB, at most "
                f"{MAX_HISTORY_BYTES >> 20} are allowed; write narrower patterns or fewer comparisons"
            )

    def _change(self, rules: tuple[UserRule, ...], watchpoints: tuple[Watchpoint, ...]) -> None:
        self._rules, self._watchpoints = rules, watchpoints
        has_late = bool(rules or self._ended) or any(one.is_late for one in watchpoints)
        self._hooks.accounted.want(self.before_update, any(not one.is_late for one in watchpoints))
        self._hooks.complete.want(self.after_step, has_late)

    def _module_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._model.root.named_modules())

    # -- on the training thread

    def before_update(self, measured: MeasuredStep, evidence: _Evidence | None) -> None:
        """Judge what can be judged before the update of a step is made.

        Args:
            measured: the step.
            evidence: gives what is at hand of it, for a bundle; None where its update was made unseen.
        """
        early = [one for one in self._watchpoints if not one.is_late]
        self._guard.run("rules", self._judge, measured, early, evidence)

    def after_step(self, measured: MeasuredStep) -> None:
        """Judge a step that is complete, before its frame is handed over."""
        self._guard.run("rules", self._judge_complete, measured)

    def _judge_complete(self, measured: MeasuredStep) -> None:
        self._judge(measured, [one for one in self._watchpoints if one.is_late], None)
        if self._rules:
            self._call_rules(measured)
        if self._ended:
            self._end_removed(measured)

    def hold(self) -> None:
        """Wait, because a watchpoint asked for it: until somebody resumes, or the limit is reached."""
        pause, self._pause_for = self._pause_for, None
        self._hooks.pause.remove(self.hold)
        if pause is not None and not self._is_ending:
            self._guard.run("pause", self._hold, *pause)

    def close(self, step: int, now: float) -> None:
        """End the events that are open."""
        episodes = [rule.episode for rule in self._rules] + [one.episode for one in self._watchpoints]
        for episode in [*self._ended, *episodes]:
            self._write(episode.close(step, now))
        self._ended = []

    def _judge(
        self, measured: MeasuredStep, watchpoints: list[Watchpoint], evidence: _Evidence | None
    ) -> None:
        if not watchpoints:
            return
        from .quantities import StepNumbers

        numbers = StepNumbers(measured, self._index, self._recorder.memory)
        for watchpoint in watchpoints:
            self._guard.run(
                f"watchpoint {watchpoint.options.name}",
                self._judge_one,
                watchpoint,
                numbers,
                measured,
                evidence,
            )

    def _judge_one(
        self,
        watchpoint: Watchpoint,
        numbers: StepNumbers,
        measured: MeasuredStep,
        evidence: _Evidence | None,
    ) -> None:
        verdict = watchpoint.observe(numbers, _step_s(measured))

        def begin(finding: Finding) -> Event:
            return self._begin(watchpoint, finding, measured, evidence)

        if verdict.is_judged:
            self._write(watchpoint.episode.update(measured.step, measured.time, verdict.finding, begin))
        if watchpoint.dropped is not None:
            self._drop("Watchpoint", watchpoint.options.name, "judged", watchpoint.dropped, measured)
        elif watchpoint.is_over:
            self.remove(watchpoint.options.name)

    def _begin(
        self, watchpoint: Watchpoint, finding: Finding, measured: MeasuredStep, evidence: _Evidence | None
    ) -> Event:
        """Make the first state of a watchpoint's event, and do what it is there for."""
        action = watchpoint.options.action
        event = self._incidents.make(
            finding, measured.step, measured.time, stack=capture_stack(), ended=False
        )
        if action == "snapshot":
            measured.has_statistics = True
            event = _with_line(
                event, self._snapshots.write(event, measured, self._model.measure_parameters())
            )
        elif action == "bundle":
            event = self._incidents.bundle(event, None if evidence is None else evidence())
        elif action == "pause":
            event = self._ask_for_pause(event, is_before_update=evidence is not None)
        elif action == "profile":
            event = self._ask_for_profile(event, watchpoint.options.name)
        if action != "event":
            self._incidents.note_look()
        self._incidents.write(event)
        return event

    def _ask_for_profile(self, event: Event, name: str) -> Event:
        try:
            self._profile(PROFILED_STEPS, f"watchpoint {name}")
        except ValueError as error:
            return _with_line(event, f"Not profiled: {error}.")
        return _with_line(event, f"The next {PROFILED_STEPS} steps are profiled.")

    def _ask_for_pause(self, event: Event, *, is_before_update: bool) -> Event:
        if self._is_ending:
            return _with_line(event, "Not paused: the session ends with this step.")
        from ...compat.other_ranks import has_other_ranks
        from .ranks_pause import within_timeouts

        limit_s, until = self._pause_limit_s, ""
        if has_other_ranks():
            if not self._with_ranks:
                return _with_line(
                    event,
                    "Not paused: other ranks would wait for this one until their collectives time out. With "
                    "watch(pause_ranks=True) it is paused all the same.",
                )
            limit_s, until = within_timeouts(limit_s)
        where = "before the update" if is_before_update else "after the update"
        event = _with_line(event, f"Paused {where}: run.resume() or `dashboard resume` continues it.{until}")
        self._pause_for = event, limit_s
        self._hooks.pause.add(self.hold)
        return event

    def _hold(self, cause: Event, limit_s: float) -> None:
        from ...threads.hang_events import duration_text
        from .pause import PauseGate

        # Shut first: who is told of the pause may answer at once.
        gate = self._gate = self._gate or PauseGate()
        gate.shut()
        if self._is_ending:
            gate.open("the end of the session")
        started_ns = time.perf_counter_ns()
        event = self._pause_event(cause)
        self._incidents.write(event)
        by = "an exception"
        try:
            by = gate.wait(limit_s)
        finally:
            waited_ns = time.perf_counter_ns() - started_ns
            self._meters.leave_out(waited_ns)
            waited = duration_text(waited_ns / 1e9)
            text = f"Paused at step {cause.step} for {waited}, resumed by {by} ({cause.subject})"
            self._incidents.write(
                msgspec.structs.replace(event, message=text[:TEXT_LIMIT], ended=True), is_new=False
            )

    def _pause_event(self, cause: Event) -> Event:
        finding = Finding(
            kind="custom",
            severity="warning",
            subject=f"pause: {cause.subject}",
            message=f"Paused at step {cause.step}, waiting for run.resume() ({cause.subject})",
            value=None,
            threshold=None,
        )
        return self._incidents.make(finding, cause.step, time.time(), stack=capture_stack(), ended=False)

    def _call_rules(self, measured: MeasuredStep) -> None:
        from .step_view import StepView

        self._index.follow(measured.layout)
        view = StepView(measured, self._index)
        step_s = _step_s(measured)
        for rule in self._rules:
            finding = rule.observe(view, step_s, self._guard)
            self._write(rule.episode.update(measured.step, measured.time, finding, self._starter(measured)))
            if rule.dropped is not None:
                self._drop("Rule", rule.name, "called", rule.dropped, measured)

    def _starter(self, measured: MeasuredStep) -> Callable[[Finding], Event]:
        def begin(finding: Finding) -> Event:
            event = self._incidents.make(
                finding, measured.step, measured.time, stack=capture_stack(), ended=False
            )
            self._incidents.write(event)
            return event

        return begin

    def _drop(self, what: str, name: str, done: str, why: str, measured: MeasuredStep) -> None:
        self.remove(name)
        finding = Finding(
            kind="custom",
            severity="warning",
            subject=f"dropped: {name}",
            message=f"{what} {name} is no longer {done} from step {measured.step} on: {why}",
            value=None,
            threshold=None,
        )
        self._incidents.report(finding, measured.step, measured.time, stack=())

    def _end_removed(self, measured: MeasuredStep) -> None:
        with self._lock:
            ended, self._ended = self._ended, []
            self._change(self._rules, self._watchpoints)
        for episode in ended:
            self._write(episode.close(measured.step, measured.time))

    def _write(self, events: list[Event]) -> None:
        """Write what became of events; the first state of each is written where it begins."""
        for event in events:
            if event.ended or event.count > 1:
                self._incidents.write(event, is_new=False)


def _step_s(measured: MeasuredStep) -> float | None:
    return None if measured.taken is None else measured.taken.step_ns / 1e9


def _with_line(event: Event, line: str) -> Event:
    room = TEXT_LIMIT - len(line) - 1
    return msgspec.structs.replace(event, message=f"{event.message[:room]}\n{line}")
