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
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Final, NamedTuple, Protocol

import msgspec
from torch import nn

from ..attach.call_wrappers import is_own_frame
from ..attach.layout import unwrap
from ..compat.weak_tables import WeakTable
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
_PATIENCE_S: Final = 2.0
"""That a run waits for a further model after its newest is gone."""
_OWN_OPTIONS: Final = ("name", "model_name", "spool", "connect", "journal_cap_bytes", "report")
"""Of `watch`: where they differ, there are several runs."""
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
    asked: tuple[object, ...] | None = None
    """Options of `watch` in which two runs differ; None where the script itself has not called it."""


class Key(NamedTuple):
    """What the members of one run have in common."""

    kind: tuple[str, str]
    """Module and name of the model's class."""
    line: Line
    """That makes their optimizers."""
    place: tuple[object, ...]
    """The thread, the cell of a notebook and the process."""
    asked: tuple[object, ...] | None
    """As `Made.asked`."""


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
        self._numbers: WeakTable[nn.Module, int] = WeakTable()
        self._numbers[model] = 0
        self._told_beyond = 0
        self._steps: dict[int, int] = {}
        """Of members whose session has ended, where a model may come again."""
        self._lock = threading.Lock()
        self._joined_at = 0.0
        """When a model was last found to belong to it."""
        self._is_over = False

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
        return is_later and not self._trains_together and self._join()

    def knows(self, model: nn.Module) -> bool:
        """Whether a model is a member, which is trained once more."""
        return model in self._numbers and self._join()

    def _join(self) -> bool:
        """Whether the run goes on, as it does from now on for a while."""
        with self._lock:
            self._joined_at = time.monotonic()
            return not self._is_over and self.recorder.is_open

    def is_left(self, since: float) -> bool:
        """Whether the run ends, as its newest model is gone since then (monotonic) and none has joined it."""
        with self._lock:
            is_late = self.may_be_left(since) and time.monotonic() - since > _PATIENCE_S
            self._is_over = self._is_over or is_late
            return self._is_over

    def may_be_left(self, since: float) -> bool:
        """Whether the run may end before the process does: `watch` has begun it, and none has joined it."""
        return self.key.asked is not None and self._joined_at <= since

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
        self.recorder.tally.models = self.members

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
        same_place = [one for one in self._series if (one.key.place, one.key.asked) == (key.place, key.asked)]
        known = next((one for one in same_place if one.knows(root)), None)
        return known or next((one for one in same_place if one.key == key and one.takes(made)), None)

    def await_one_like(self, model: nn.Module, made: Iterable[Made]) -> bool:
        """Whether a model of this class was made before, and is trained by one of these lines."""
        keys = {key_of(model, one) for one in made}
        return any(series.key in keys for series in self._series if series.recorder.is_open)

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
    return Key((kind.__module__, kind.__qualname__), made.line, place, made.asked)


def _line_of(frame: FrameType | None) -> Line | None:
    """The innermost line of the script's own that leads to a frame."""
    while frame is not None:
        if not (is_own_frame(frame) or is_library(frame)):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


series_of_process: Final = SeriesOfProcess()


def watched_above(asked: Mapping[str, object]) -> Made | None:
    """Note that the caller's caller watches a model now; None for a run that is to be of its own.

    Args:
        asked: options of `watch`; runs that somebody names differently are kept apart.
    """
    if asked.get("run") is not None:
        return None
    made = series_of_process.made_now(sys._getframe(2))
    return made._replace(asked=tuple(str(asked.get(name)) for name in _OWN_OPTIONS))


def end_when_left(recorder: Recorder, series: MemberSeries | None, finish: Callable[..., None]) -> None:
    """Have the recorder's thread finish a session whose model is gone; it takes no lock.

    Args:
        recorder: of the session.
        series: which a further model may join; the run ends where none does for a while.
        finish: of the session; its `is_final` says whether the run ends.
    """
    since = time.monotonic()

    def look() -> None:
        is_final = series is None or series.is_left(since)
        finish(is_final=is_final)
        if series is not None and not is_final and series.may_be_left(since):
            recorder.close_soon(look)

    recorder.close_soon(look)
