"""What is measured of a step and when, and what it cost: level, switches, overhead limit and commands.

On the training thread; `step_measures.py` does the measuring. Each feature runs in the guard under its name,
so that one that fails is off alone, and its time is charged to the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from typing import Final, ParamSpec, TypeVar

from ..compat import all_objects
from ..detectors.cause_advice import CLOSER_LOOK
from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..settings.levels import LEVEL_FEATURES, Features, Settings
from ..step.frames import MeasuredStep
from ..step.step_meters import StepTime
from .budget import Budget
from .calibration import Calibration
from .closer_look import STEPS, CloserLook
from .control import Command, Mailbox, describe_change
from .throttle import Change
from .throttle_event import ThrottleEvent, event_of

P = ParamSpec("P")
R = TypeVar("R")
_NOTHING: Final = LEVEL_FEATURES["off"]
_ACCOUNTED_TOGETHER: Final = 16
_OBSERVED: Final = ("activations", "activation_gradients", "module_times", "module_memory")


class MeasureSchedule:
    """Says what is due, keeps to the limit, and follows the commands of the mailbox.

    Args:
        settings: what the user has asked for.
        guard: of the training thread.
        incidents: told what changes by itself.
        releases: what is to be let go of when a feature is switched off, by its name.
        first_step: number of the first step.

    Attributes:
        mailbox: commands, taken out at the end of a step.
        features: what is measured at the step under way: a feature's period where due, else 0.
        observed: the dearest feature that follows modules' calls and is due at the step under way, if any.
        is_plain: whether the step under way keeps the tripwire and what a replay needs, and nothing else, so
            that it can be compared with its neighbours.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        guard: Guard,
        incidents: IncidentReporter,
        releases: Mapping[str, Callable[[], None]],
        first_step: int = 0,
    ) -> None:
        self.mailbox = Mailbox()
        self.features: Features = _NOTHING
        self.observed: str | None = None
        self.is_plain = False
        self._guard, self._incidents, self._releases = guard, incidents, releases
        self._settings = settings
        self._budget = Budget(settings.features, settings.limit, first_step=first_step)
        self._calibration = Calibration(settings.limit)
        self._closer = CloserLook()
        self._replays = 0
        self._kept_fraction = 0.0
        self._since: int | None = None
        self._unaccounted: list[tuple[int, int | None, StepTime, bool, bool]] = []
        """Of finished steps: number, that of the one before, time, whether it was plain, had a replay."""
        self._has_charged = False
        self._added: dict[str, float] | None = None
        self._suspicion: str | None = None
        self._throttled: ThrottleEvent | None = None
        """Of the training; None before the limit has changed something."""
        all_objects.keep_to(settings.limit)

    @property
    def settings(self) -> Settings:
        """What the user has asked for; a closer look measures more for a while."""
        return self._settings

    @property
    def asked_settings(self) -> Settings:
        """As `settings`, with the commands that wait for the next step; from any thread."""
        # Copied first: a command that is followed meanwhile is followed twice, which changes nothing.
        waiting, settings = self.mailbox.waiting.copy(), self._settings
        for command in waiting:
            settings = command.apply(settings)
        return settings

    @property
    def is_basic(self) -> bool:
        """Whether nothing dearer is measured than level basic does, not even for a closer look."""
        return self._settings.level == "basic" and self._closer.until is None

    @property
    def is_off(self) -> bool:
        """Whether nothing is to be looked at, not even for NaN and Inf, until a command says otherwise."""
        return self._settings.level == "off"

    # -- the step tracker's calls, in the order of a step

    def begin_step(self, step: int, *, since: int | None = None) -> None:
        """The first forward or backward of a step begins; decides what is measured of it.

        Args:
            step: its number.
            since: the number of the one before, where those in between are steps of other models.
        """
        self._since = since
        self.is_plain = self._calibration.is_plain(step)
        features = _NOTHING if self.is_plain else self._budget.features_at(step, since=since)
        if features is not self.features:
            self.features = features
            self.observed = next((name for name in _OBSERVED if getattr(features, name)), None)

    def run(self, feature: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Run one feature in the guard and charge the budget with its time."""
        started_ns = time.thread_time_ns()
        result = self._guard.run(feature, function, *args, **kwargs)
        self.charge(feature, time.thread_time_ns() - started_ns)
        return result

    def charge(self, feature: str, ns: int) -> None:
        """Charge the step under way; those before it are none of it."""
        if self._unaccounted:
            self._account(time.time())
        self._has_charged = True
        self._budget.charge(feature, ns)

    def suspect(self, reason: str | None) -> None:
        """Have a closer look taken at the modules, where there is a reason."""
        self._suspicion = reason or self._suspicion

    def end_step(self, measured: MeasuredStep, taken: StepTime) -> None:
        """Account for a finished step, and write an event for everything that changes from now on.

        Steps of which only the usual was measured are accounted for a few at a time.
        """
        replays, self._replays = self._replays, self._incidents.replays
        had_replay = self._replays > replays
        self._unaccounted.append((measured.step, self._since, taken, self.is_plain, had_replay))
        is_ordinary = not (self._has_charged or self.is_plain or had_replay)
        if not is_ordinary or len(self._unaccounted) >= _ACCOUNTED_TOGETHER:
            self._account(measured.time)
            self._has_charged = False
            self._added = self._describe_added()
        if self._added is not None:
            measured.scalars |= self._added
        if self._suspicion is not None or self._closer.until is not None:
            self._look_closer(measured.step, measured.time)

    def account_followed(self, steps: int, *, last_step: int, step_ns: int, own_ns: int) -> bool:
        """Account for steps that were followed in C; returns whether another thing is measured from now on.

        Args:
            steps: how many.
            last_step: number of the last of them.
            step_ns: what all of them took.
            own_ns: the probe's part of it.
        """
        self._account(time.time())
        changes = self._budget.end_steps(steps, step_ns=step_ns // steps, own_ns=own_ns // steps)
        for change in changes:
            self._note_change(change, last_step, time.time())
        return bool(changes)

    def period(self, feature: str) -> int:
        """Steps between two measurements of a feature, as the limit allows it; 0 for never."""
        return self._budget.period(feature)

    def next_due_besides(self, step: int, usual: Set[str], *, ahead: int) -> int:
        """The first step from `step` on at which something else is due, `ahead` steps on at the latest."""
        unusual = self._budget.next_due_besides(step, usual)
        return step + ahead if unusual is None else min(unusual, step + ahead)

    def apply_commands(self, step: int) -> None:
        """Take the mailbox's commands, between two steps; what they change together makes one event."""
        self._guard.run("commands", self._apply, self.mailbox.drain(), step)

    def _look_closer(self, step: int, now: float) -> None:
        """Measure more for a few steps when a detector is suspicious, and say so."""
        suspicion, self._suspicion = self._suspicion, None
        if self._closer.is_over(step):
            self._configure(self._settings)
            message = f"Back to level {self._settings.level}"
            self._incidents.note("level_changed", self._settings.level, message, step=step, time=now)
        elif suspicion is None or self._budget.is_throttled:
            return
        elif (closer := self._closer.begin(step, self._settings)) is not None:
            self._configure(closer)
            message = f"Recording in more detail for {STEPS} steps (level {closer.level}): {suspicion}"
            self._incidents.note(
                "level_changed", closer.level, message, step=step, time=now, advice=CLOSER_LOOK
            )

    def _configure(self, settings: Settings) -> None:
        """Measure by these settings from the next step on."""
        self._account(time.time())
        if self._throttled is not None:
            self._throttled.forget(self._incidents.model)
        self._budget.configure(settings.features, settings.limit)
        self._calibration.restart(settings.limit)
        for feature, release in self._releases.items():
            if not getattr(settings.features, feature):
                release()

    def _describe_added(self) -> dict[str, float] | None:
        """What steps take longer than plain ones, where that is known closely enough."""
        interval = self._calibration.interval()
        if interval is None:
            return None
        # What is measured on some steps only is left out of the comparison, and so added to it.
        added = interval[0] + self._budget.sampled_fraction + self._kept_fraction
        return {"step_time_added": added, "step_time_added_half_width": interval[1]}

    def _account(self, now: float) -> None:
        """Give the budget and the calibration what has finished, in order."""
        finished, self._unaccounted = self._unaccounted, []
        for step, since, taken, is_plain, had_replay in finished:
            is_sampled = self._budget.is_sampled(step, since=since)
            if is_plain:
                # What a plain step keeps is no part of the comparison; the clock's word is taken for it.
                self._kept_fraction = taken.own_ns / taken.step_ns if taken.step_ns > 0 else 0.0
            else:
                changes = self._budget.end_step(
                    step_ns=taken.step_ns, own_ns=taken.own_ns, is_ordinary=not had_replay
                )
                for change in changes:
                    self._note_change(change, step, now)
            self._calibration.note(step, taken.step_ns, is_ordinary=not (had_replay or is_sampled))
        for lost in all_objects.declined() if finished else ():
            self._guard.run("throttled", self._tell_declined, lost, finished[-1][0], now)

    def _note_change(self, change: Change, step: int, now: float) -> None:
        self._calibration.restart(change.limit)
        self._guard.run("throttled", self._tell_change, change, step, now)

    def _tell_change(self, change: Change, step: int, now: float) -> None:
        self._throttled = event_of(self._incidents)
        self._throttled.add(self._incidents.model, change, step, now)

    def _tell_declined(self, lost: str, step: int, now: float) -> None:
        self._throttled = event_of(self._incidents)
        self._throttled.add_declined(lost, step, now, limit=self._settings.limit)

    def _apply(self, commands: list[Command], step: int) -> None:
        old = new = self._settings
        for command in commands:
            new = command.apply(new)
        message = describe_change(old, new, commands[-1].source)
        if message is None:
            return
        self._closer.until = None
        self._configure(new)
        self._settings = new
        all_objects.keep_to(new.limit)
        self._incidents.note("level_changed", new.level, message, step=step, time=time.time())
        self._incidents.recent.note_level(step, new.level)
