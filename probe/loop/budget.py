"""Keeps the probe within its overhead limit: what is due at a step, what it cost, what must change.

Used by the step tracker, on the training thread. Time is given to it in nanoseconds; it reads no clock.
`throttle.py` decides, `alarm.py` says when that must not wait for a whole window, `calibration.py` what the
step time itself shows.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ..settings.levels import FEATURES, PHASES, Features
from .alarm import Alarm
from .throttle import TRIPWIRE, Change, Load, loosen, tighten

WINDOW: Final = 64
"""Steps that a decision looks back on."""
_LOOK_EVERY: Final = 32
_WARMUP: Final = 10
"""Steps after the start or a change of settings that fill caches and are not judged."""
_PAUSE: Final = 3.0
"""A step longer than this many medians had an evaluation or a checkpoint in it: not judged ..."""
_RARE: Final = 0.125
"""... unless more than this share of the steps is: then that is how the data arrives, and counts."""
_FAR_ABOVE: Final = 1.5
"""Above this many limits one look is enough, else `_LOOKS` in a row must agree."""
_LOOKS: Final = 3
_PATIENCE: Final = 256
"""Steps after a change before the probe tries to measure more again; doubled when that was a mistake."""
_MAX_PATIENCE: Final = 65_536
_COSTS_KEPT: Final = 32
_EARLY_STEPS: Final = (0, 1, 2, 4, 8, 16)
"""Steps on which activations are measured besides, throttled or not: what is wrong from the start shows
there, and a verdict that takes several looks is not to be broken off. On steps of 0.4 to 10 ms it was."""
_FIRST_TIMES: Final = 3
"""Parameter norms are measured as often as is wanted for so many periods, for the same reason."""
_LATE: Final = "update_ratios"
"""The feature whose work is done after the step's own time has been read."""


class Budget:
    """Sampling periods of the features, adapted to a limit.

    Args:
        features: the periods that are wanted.
        limit: largest share of a step that the probe may take, as a fraction; 0 is no limit.
        first_step: number of the first step, after which come the early ones.
    """

    def __init__(self, features: Features, limit: float, *, first_step: int = 0) -> None:
        self._first_step = first_step
        self._costs: dict[str, deque[int]] = {}
        self._first_costs: dict[str, int] = {}
        self._charged: dict[str, int] = {}
        self._newest_load: Load | None = None
        self._is_load_old = False
        self._window: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._until_look = self._skip = 0
        self._besides = 0
        """Features that are measured at the step under way because it is an early one."""
        self.configure(features, limit)

    def configure(self, features: Features, limit: float) -> None:
        """Begin anew with other wishes, at a step boundary; what measurements cost stays known."""
        self.limit = limit
        self._alarm = Alarm(limit)
        self._wanted = features.periods()
        self._patience = _PATIENCE
        self._loosened: dict[str, int] = {}
        self._has_told_of_tripwire = False
        self._looks_above = 0
        self._steps = 0
        self._changed_at = 0
        self._start_window(_WARMUP)
        self._use(self._wanted)

    # -- every step

    def features_at(self, step: int, *, since: int | None = None) -> Features:
        """Return what is to be measured at a step: a feature's field is its period where due, else 0.

        Args:
            step: its number.
            since: the number of the one before, where those in between are steps of other models.
        """
        bits = 0
        for period, phase, bit in self._groups:
            if step % period == phase or (since is not None and _passes(since, step, period, phase)):
                bits |= bit
        early = self._early.get(step, 0)
        if since is not None:
            for passed, own in self._early.items():
                early |= own if since < passed < step else 0
        self._besides = early & ~bits
        bits |= early
        features = self._features.get(bits)
        return self._features_of(bits) if features is None else features

    def is_sampled(self, step: int, *, since: int | None = None) -> bool:
        """Whether the time of a step holds what is not done at every step.

        A step's time begins where the gradients of the one before have been measured: looking at that one's
        update falls into it.
        """
        if since is not None:
            # What was due at the one before is not known any more.
            return any(
                period > 1 and _passes(since, step, period, phase) for period, phase, _ in self._groups
            )
        if any(period > 1 and step % period == phase for period, phase, _ in self._groups):
            return True
        if step in self._early:
            return True
        period = self._periods[_LATE]
        return period > 1 and (step - 1) % period == PHASES.get(_LATE, 0)

    def next_due_besides(self, step: int, usual: Collection[str]) -> int | None:
        """The first step from `step` on at which anything but the `usual` features is due; None for never."""
        bits = sum(1 << FEATURES.index(name) for name in usual)
        ways = [step + (phase - step) % period for period, phase, own in self._groups if own & ~bits]
        ways += [early for early, own in self._early.items() if early >= step and own & ~bits]
        return min(ways, default=None)

    def charge(self, feature: str, ns: int) -> None:
        """Note that a feature took `ns` of the step under way; several times add up."""
        self._charged[feature] = self._charged.get(feature, 0) + ns

    def end_step(self, *, step_ns: int, own_ns: int, is_ordinary: bool = True) -> tuple[Change, ...]:
        """Account for a finished step; returns what changed, if anything, from the next step on.

        Args:
            step_ns: the whole step, the probe's time included.
            own_ns: the probe's time in it, charged or not; replays and other one-off work left out.
            is_ordinary: False for a step that says nothing about others: a replay was made in it.
        """
        charged, self._charged = self._charged, {}
        besides_ns = sum(
            ns
            for name, ns in charged.items()
            if name in FEATURES and self._besides >> FEATURES.index(name) & 1
        )
        self._steps += 1
        if not is_ordinary or step_ns <= 0:
            return ()
        training_ns, base_ns = step_ns - own_ns, max(own_ns - sum(charged.values()), 0)
        spent_ns = self._note_costs(charged)
        if self._skip:
            self._skip -= 1
        else:
            spent_ns += base_ns
            self._window.append((training_ns, base_ns))
            self._until_look -= 1
        # These few are meant to take more than their share.
        is_urgent = self._alarm.note(training_ns, max(spent_ns - besides_ns, 0))
        if self._window and not self._until_look:
            self._until_look = _LOOK_EVERY
            return self._look()
        return self._look_at_once() if is_urgent else ()

    def end_steps(self, count: int, *, step_ns: int, own_ns: int) -> tuple[Change, ...]:
        """Account for finished steps that took as much each; a feature was charged in one of them at most."""
        charged, self._charged = self._charged, {}
        self._steps += count
        if step_ns <= 0 or not count:
            return ()
        changes: tuple[Change, ...] = ()
        self._note_costs(charged)
        base_ns = max(own_ns - sum(charged.values()) // count, 0)
        training_ns = step_ns - own_ns
        skipped = min(self._skip, count)
        self._skip -= skipped
        left = count - skipped
        is_urgent = self._alarm.note(training_ns, base_ns, steps=left) if left else False
        while left:
            part = min(left, self._until_look)
            self._window.extend([(training_ns, base_ns)] * part)
            self._until_look -= part
            left -= part
            if not self._until_look:
                self._until_look = _LOOK_EVERY
                changes += self._look()
                is_urgent = False
        return changes or (self._look_at_once() if is_urgent else ())

    def _note_costs(self, charged: Mapping[str, int]) -> int:
        """Remember what each feature took; returns the sum of what is no first measurement."""
        met = {name: ns for name, ns in charged.items() if name in self._first_costs}
        self._first_costs = {**charged, **self._first_costs}
        for name, ns in met.items():
            self._costs.setdefault(name, deque(maxlen=_COSTS_KEPT)).append(ns)
        return sum(met.values())

    def _costs_known(self) -> dict[str, list[int]]:
        """Return what the newest measurements of each feature took, of those made more than once.

        As long as there are only two, the first one that filled caches is one of them.
        """
        return {
            name: [*costs] if len(costs) > 1 else [self._first_costs[name], *costs]
            for name, costs in self._costs.items()
        }

    # -- for the page and the calibration

    @property
    def _load(self) -> Load | None:
        """Typical step, of the newest look or since then; None before the first."""
        if self._is_load_old and self._window:
            self._is_load_old = False
            self._newest_load = self._measure()
        return self._newest_load

    @property
    def periods(self) -> Features:
        """How often each feature is measured now."""
        return self._current

    def period(self, feature: str) -> int:
        """Steps between two measurements of a feature as it is now; 0 for never."""
        return self._periods[feature]

    @property
    def is_throttled(self) -> bool:
        """Whether something is measured more rarely than is wanted."""
        return self._periods != self._wanted

    @property
    def fraction(self) -> float | None:
        """Share of the step that the probe takes, sampled features spread; None before the first window."""
        return None if self._load is None else self._load.fraction(self._periods)

    @property
    def sampled_fraction(self) -> float:
        """Share of the step that features which are not due at every step take, spread over their periods."""
        if self._load is None:
            return 0.0
        sampled = [name for name, period in self._periods.items() if period > 1]
        step_ns = self._load.training_ns + self._load.own_ns(self._periods)
        return sum(self._load.share_ns(name, self._periods) for name in sampled) / step_ns

    def shares(self) -> dict[str, float]:
        """Return what each feature takes of the step, as a fraction, spread over its period.

        `TRIPWIRE` stands for the rest of the probe; empty before the first window.
        """
        load = self._load
        if load is None:
            return {}
        step_ns = load.training_ns + load.own_ns(self._periods)
        spent = {name: load.share_ns(name, self._periods) for name, period in self._periods.items() if period}
        return {name: ns / step_ns for name, ns in [*spent.items(), (TRIPWIRE, load.base_ns)]}

    # -- decisions

    def _look(self) -> tuple[Change, ...]:
        if not self.limit:
            # Nothing hangs on it: it is measured when somebody asks.
            self._is_load_old = True
            return ()
        load = self._newest_load = self._measure()
        fraction = load.fraction(self._periods)
        if fraction > self.limit:
            self._looks_above += 1
            if self._looks_above < _LOOKS and fraction < _FAR_ABOVE * self.limit:
                return ()
            return self._tighten(load)
        self._looks_above = 0
        if self._periods == self._wanted or self._steps - self._changed_at < self._patience:
            return ()
        return self._change_to(loosen(load, self._periods, self._wanted, limit=self.limit), load)

    def _tighten(self, load: Load) -> tuple[Change, ...]:
        """Do what can be done, and say once if that is not enough."""
        old = self._periods
        changes = self._change_to(tighten(load, old, self._wanted, limit=self.limit), load)
        fraction = load.fraction(self._periods)
        if fraction <= self.limit or self._has_told_of_tripwire:
            return changes
        self._has_told_of_tripwire = True
        step_ns = load.training_ns + load.own_ns(old)
        told = Change(
            feature=TRIPWIRE,
            old=1,
            new=1,
            fraction=fraction,
            limit=self.limit,
            cost_ns=load.base_ns,
            step_ns=step_ns,
        )
        return (*changes, told)

    def _look_at_once(self) -> tuple[Change, ...]:
        """Tighten if the newest steps alone leave no doubt; the first steps' base is not judged."""
        bases = [own for _, own in self._window]
        load = self._alarm.load(self._costs_known(), statistics.median(bases) if bases else 0.0)
        if not self._alarm.is_far_above(load, self._periods):
            return ()
        return self._change_to(tighten(load, self._periods, self._wanted, limit=self.limit), load)

    def _measure(self) -> Load:
        """Typical step of the window."""
        wholes = sorted(training + own for training, own in self._window)
        longest = _PAUSE * wholes[len(wholes) // 2]
        steps = [(training, own) for training, own in self._window if training + own <= longest]
        if len(steps) < (1 - _RARE) * len(wholes):
            steps = list(self._window)
        return Load(
            training_ns=sum(training for training, _ in steps) / len(steps),
            base_ns=_mean_but_highest(own for _, own in steps),
            costs_ns={name: _typical(costs) for name, costs in self._costs_known().items()},
        )

    def _change_to(self, periods: dict[str, int], load: Load) -> tuple[Change, ...]:
        old, fraction = self._periods, load.fraction(self._periods)
        step_ns = load.training_ns + load.own_ns(old)
        changes = [
            Change(
                feature=name,
                old=old[name],
                new=periods[name],
                fraction=fraction,
                limit=self.limit,
                cost_ns=load.costs_ns.get(name, 0.0),
                step_ns=step_ns,
            )
            for name in old
            if old[name] != periods[name]
        ]
        self._learn_from(changes)
        if periods != old:
            self._changed_at = self._steps
            self._looks_above = 0
            self._alarm.settle()
            self._start_window(self._skip)
            self._use(periods)
        return tuple(changes)

    def _learn_from(self, changes: Iterable[Change]) -> None:
        """Wait longer before the next try when a feature that was let in again must be throttled again."""
        looser = {change.feature for change in changes if change.is_looser}
        since = [self._loosened.pop(change.feature, None) for change in changes if not change.is_looser]
        self._loosened |= dict.fromkeys(looser, self._steps)
        if any(step is not None and self._steps - step < 4 * self._patience for step in since):
            self._patience = min(2 * self._patience, _MAX_PATIENCE)

    # -- what is due

    def _start_window(self, skip: int) -> None:
        # What it is measured of goes.
        self._newest_load = self._load
        self._window.clear()
        self._until_look = _LOOK_EVERY
        self._skip = skip

    def _use(self, periods: Mapping[str, int]) -> None:
        """Take these periods from the next step on; features with the same period make one group."""
        self._periods = dict(periods)
        self._current = Features(**self._periods)
        groups: dict[tuple[int, int], int] = {}
        for position, name in enumerate(FEATURES):
            if period := self._periods[name]:
                key = (period, PHASES.get(name, 0) % period)
                groups[key] = groups.get(key, 0) | 1 << position
        self._early = self._early_features()
        self._groups = tuple((period, phase, bits) for (period, phase), bits in groups.items())
        self._features: dict[int, Features] = {}

    def _early_features(self) -> dict[int, int]:
        """By step, the features that are due at it whatever the budget says, one bit each."""
        early: dict[int, int] = {}
        first, period = self._first_step, self._wanted["parameter_norms"]
        norms_from = first - first % period if period else 0
        for name, steps in (
            (
                "activations",
                [first + step for step in _EARLY_STEPS] if self._wanted["activations"] > 1 else (),
            ),
            (
                "parameter_norms",
                [norms_from + times * period for times in range(1, _FIRST_TIMES + 1)] if period else (),
            ),
        ):
            for step in steps:
                early[step] = early.get(step, 0) | 1 << FEATURES.index(name)
        return early

    def _features_of(self, bits: int) -> Features:
        """Build what is due for a combination of groups, once."""
        # One that was dropped is due at early steps all the same.
        periods = {name: self._periods[name] or self._wanted[name] for name in FEATURES}
        chosen = {name: periods[name] for at, name in enumerate(FEATURES) if bits >> at & 1}
        features = self._features[bits] = Features(**chosen)
        return features


def _passes(since: int, step: int, period: int, phase: int) -> bool:
    """Whether a step at which a period is due lies after `since`, and not after `step`."""
    return (step - phase) // period > (since - phase) // period


def _mean_but_highest(values: Iterable[int]) -> float:
    """Mean without the highest thirty-second: what every 20th step does counts, a stray spike does not."""
    ordered = sorted(values)
    kept = ordered[: len(ordered) - len(ordered) // 32]
    return sum(kept) / len(kept)


def _typical(values: Iterable[int]) -> float:
    """Mean without the lowest and the highest eighth, of three to seven without the extremes.

    Of two it is the lower one: the other may have filled caches, or have been interrupted.
    """
    ordered = sorted(values)
    if len(ordered) < 3:
        return ordered[0]
    cut = max(len(ordered) // 8, 1)
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)
