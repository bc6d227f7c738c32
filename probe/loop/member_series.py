"""Which run a model joins that is made again: trials, folds, clients and inner copies are members of one run.

The evidence is that the model before it, of the same class and trained by the same line, had made steps when
this one was made, and has made none since. Models that are trained at the same time are made before the first
of them has stepped, and are runs of a group. On the threads that train.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Final, NamedTuple, Protocol

import msgspec
from torch import nn

from ..attach.call_wrappers import is_own_frame
from ..attach.layout import unwrap
from ..delivery.recorder.recorder import Recorder
from ..delivery.recorder.run_facts import notebook_cell
from ..incidents.event_writer import EventWriter
from ..threads.frame_variables import is_library
from ..wire import MEMBERS_IN_FULL, Member, RunStart

_LAYOUTS: Final = 2**20
"""Layout numbers of one session: a model gets a new one where it grows."""
_MOST_KEPT: Final = 8
"""Models that could still be trained, and are followed beside the newest one."""
_MOST_SERIES: Final = 64
Line = tuple[str, int]


class MemberSession(Protocol):
    """What a series asks of a session."""

    @property
    def steps_made(self) -> int:
        """Steps that were finished so far."""
        ...

    @property
    def steps_counted(self) -> int:
        """The number of the next step."""
        ...

    @property
    def may_step(self) -> bool:
        """Whether its model and an optimizer of it are still there."""
        ...


class Made(NamedTuple):
    """Where and when something was made that trains a model: its optimizer, say."""

    line: Line | None
    """Of the script; None where none led to it."""
    marks: dict[int, tuple[int, int]]
    """By identity of each series: how many sessions it had then, and the steps of the newest."""


class Key(NamedTuple):
    """What the members of one run have in common."""

    kind: tuple[str, str]
    """Module and name of the model's class."""
    line: Line
    """That makes their optimizers."""
    place: tuple[object, ...]
    """The thread, the cell of a notebook and the process."""


class Place(NamedTuple):
    """Where a member is recorded."""

    recorder: Recorder
    start: RunStart
    layout: int
    """The first number of its layouts."""
    first_step: int


class MemberSeries:
    """One run, and the models that were made for it one after the other.

    Args:
        key: what such models have in common.
        recorder: of the run.
        start: of the run.
        session: of the first model.
        model: that model.
    """

    def __init__(
        self, key: Key, recorder: Recorder, start: RunStart, session: MemberSession, model: nn.Module
    ) -> None:
        self.key, self.recorder, self._start = key, recorder, start
        self.sessions = self.members = 1
        self.newest = session
        self._older: list[tuple[MemberSession, int]] = []
        """Sessions that are followed beside the newest one, and the steps that each had made then."""
        self._numbers: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary({model: 0})
        self._told_beyond = 0
        self._steps: dict[int, int] = {}
        """Of members whose session has ended, where a model may come again."""

    @property
    def mark(self) -> tuple[int, int]:
        """Grows with each session and each step of the newest one."""
        return self.sessions, self.newest.steps_made

    @property
    def _trains_together(self) -> bool:
        """Whether an older model has made a step since a newer one came: they are no members then."""
        return any(session.steps_made > steps for session, steps in self._older)

    def takes(self, made: Made) -> bool:
        """Whether a model whose optimizer was made then comes after the newest one."""
        sessions, steps = self.mark
        is_later = made.marks.get(id(self)) == (sessions, steps) and steps > 0
        return is_later and self.recorder.is_open and not self._trains_together

    def knows(self, model: nn.Module) -> bool:
        """Whether a model is a member, which is trained once more."""
        return model in self._numbers and self.recorder.is_open

    def models(self) -> list[nn.Module]:
        """Return its members that are still there."""
        return list(self._numbers)

    def place_for(self, model: nn.Module) -> Place:
        """Return where a model is recorded that is a member from now on."""
        number = self._numbers.setdefault(model, self.members)
        self.members = max(self.members, number + 1)
        member: Member = number or msgspec.UNSET
        start = msgspec.structs.replace(self._start, member=member, time=time.time())
        first_step = self._steps.get(number, 0)
        return Place(self.recorder, start, self.sessions * _LAYOUTS, first_step)

    def note_end(self, session: MemberSession, model: nn.Module) -> None:
        """A session is over, whose model is still there."""
        if (number := self._numbers.get(model)) is not None:
            self._steps[number] = session.steps_counted

    def give_way(self) -> Sequence[MemberSession]:
        """Return the sessions that end, for a newer one begins: models that cannot be trained any more."""
        candidates = [session for session, _ in self._older] + [self.newest]
        kept = [session for session in candidates if session.may_step][-_MOST_KEPT:]
        known = {id(session): steps for session, steps in self._older}
        self._older = [(session, known.get(id(session), session.steps_made)) for session in kept]
        return [session for session in candidates if session not in kept]

    def enter(self, session: MemberSession) -> None:
        """A further session has begun."""
        self.sessions += 1
        self.newest = session

    def tell_of_cap(self, events: EventWriter) -> None:
        """Say that there are more members than are kept in full; again where they are a twentieth more."""
        beyond = self.members - MEMBERS_IN_FULL
        if beyond <= 0 or beyond == self._told_beyond or beyond % max(1, beyond // 20):
            return
        self._told_beyond = beyond
        events.note_for_training(
            "level_changed",
            f"This run has made {self.members:,} models one after the other. Of the first {MEMBERS_IN_FULL} "
            f"everything is kept, of the other {beyond:,} only loss, norms, times and events",
            step=0,
            last_step=0,
            time=time.time(),
            count=beyond,
            value=float(self.members),
            threshold=float(MEMBERS_IN_FULL),
        )


class SeriesOfProcess:
    """The series of this process, the newest last."""

    def __init__(self) -> None:
        self._series: list[MemberSeries] = []

    def made_now(self, frame: FrameType | None) -> Made:
        """Note that something is being made that will train a model.

        Args:
            frame: of what makes it, or one of those that it has called.
        """
        return Made(_line_of(frame), {id(one): one.mark for one in self._series})

    def find(self, model: nn.Module, made: Made) -> MemberSeries | None:
        """Return the series that a model belongs to; None for a run of its own."""
        root, key = unwrap(model), key_of(model, made)
        if key is None:
            return None
        self._series = [one for one in self._series if one.recorder.is_open]
        # Another line may train it in a later round.
        known = [one for one in self._series if one.key.place == key.place and one.knows(root)]
        alike = [one for one in self._series if one.key == key and one.takes(made)]
        return next(iter(known + alike), None)

    def models(self) -> list[nn.Module]:
        """Return the members of all series that are still there: they may be trained once more."""
        return [model for series in self._series if series.recorder.is_open for model in series.models()]

    def begin(
        self, made: Made, recorder: Recorder, start: RunStart, session: MemberSession, model: nn.Module
    ) -> MemberSeries | None:
        """Begin the series of a run; None where no other model can join it."""
        if (key := key_of(model, made)) is None:
            return None
        series = MemberSeries(key, recorder, start, session, unwrap(model))
        self._series = [*self._series[1 - _MOST_SERIES :], series]
        return series

    def forget(self) -> None:
        """In a forked child: they are the parent's."""
        self._series = []


def key_of(model: nn.Module, made: Made) -> Key | None:
    """Return what the members of one run have in common; None where a model has no such key."""
    if made.line is None:
        return None
    kind = type(unwrap(model))
    place = threading.get_ident(), notebook_cell(), os.getpid()
    return Key((kind.__module__, kind.__qualname__), made.line, place)


def _line_of(frame: FrameType | None) -> Line | None:
    """The innermost line of the script's own that leads to a frame."""
    while frame is not None:
        if not (is_own_frame(frame) or is_library(frame)):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


series_of_process: Final = SeriesOfProcess()


def line_above() -> Made:
    """Note that what the caller's caller makes is made now."""
    return series_of_process.made_now(sys._getframe(2))
