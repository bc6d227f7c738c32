"""Carries what a person asks of a running training to its helpers, and brings the answers back.

`ask` is called on the threads of routes and callbacks and waits there; the collector's thread takes the
requests out, sends them, and hands in what helpers answer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from probe.delivery.control.control_files import new_id
from probe.delivery.control.control_messages import (
    Answer,
    Ask,
    AskState,
    Request,
    Source,
    decode_answer,
    encode_ask,
)
from probe.errors import WireError
from probe.wire import Answered, Control

from ..callers import VIEW_ONLY, current_caller, may_change
from ..errors import DashboardError

PATIENCE_S: Final = 5.0
"""Longer than a helper waits for its trainers."""
_MOST_WAITING: Final = 64


class UnreachableError(DashboardError):
    """Nobody is there to follow a request."""


class NotAllowedError(UnreachableError):
    """Who asks may only look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerAnswer:
    """What one trainer has answered."""

    rank: int
    incarnation: int
    answer: Answer | None
    """None: it did not answer in time."""


@dataclass(slots=True)
class _Pending:
    """A request that is waited for."""

    control: Control
    helpers: int | None = None
    """How many it was sent to; None until then."""
    answers: list[Answered] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.helpers is not None and len(self.answers) >= self.helpers


class ControlDesk:
    """Requests on their way. Every method may be called on any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._outbox: deque[Control] = deque()
        self._pending: dict[str, _Pending] = {}
        self._is_closed = False
        self.recorded_as: Callable[[str], str] = lambda run: run
        """Gives the run whose trainers have what is shown as a run: a member of it has none of its own."""

    def ask(
        self, run: str, request: Request, *, source: Source, rank: int | None = None
    ) -> list[TrainerAnswer]:
        """Send a request to a run's trainers, and wait for their answers: 5 s at most.

        Args:
            run: its id.
            request: what is asked.
            source: who asks.
            rank: None asks every rank.

        Returns:
            One answer for each trainer, by rank.

        Raises:
            UnreachableError: no helper of the run is connected, or none answers; no trainer of it is alive,
                or there is no such rank; or too much waits already.
            NotAllowedError: who asks may only look, and it would change something.
        """
        if not (may_change() or isinstance(request, AskState)):
            raise NotAllowedError(VIEW_ONLY)
        run = self.recorded_as(run)
        data = encode_ask(Ask(request=request, source=source))
        caller = current_caller()
        who = "" if caller is None else str(caller)[:200]
        control = Control(id=new_id(), run=run, rank=rank, request=data, caller=who)
        with self._changed:
            if self._is_closed or len(self._pending) >= _MOST_WAITING:
                raise UnreachableError("too many requests wait for an answer; try again in a few seconds")
            pending = self._pending[control.id] = _Pending(control)
            self._outbox.append(control)
            until_s = time.monotonic() + PATIENCE_S
            while not (pending.is_complete or self._is_closed) and time.monotonic() < until_s:
                self._changed.wait(max(until_s - time.monotonic(), 0.0))
            del self._pending[control.id]
        if not pending.helpers:
            raise UnreachableError(f"no training of run {run} is connected: it has ended, or its helper has")
        answers = sorted(_answers_of(pending.answers), key=lambda one: (one.rank, one.incarnation))
        if not pending.is_complete and not answers:
            raise UnreachableError(f"the helper of run {run} has not answered within {PATIENCE_S:g} s")
        if not answers:
            which = "no training of it is alive" if rank is None else f"it has no rank {rank} that is alive"
            raise UnreachableError(f"run {run} cannot be asked: {which}")
        return answers

    def close(self) -> None:
        """Let go of everybody who waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # -- for the collector

    def take_outbox(self) -> list[Control]:
        """Take out what is to be sent."""
        if not self._outbox:
            return []
        with self._changed:
            taken = list(self._outbox)
            self._outbox.clear()
        return taken

    def note_sent(self, request_id: str, helpers: int) -> None:
        """A request was sent to so many helpers."""
        self._note(request_id, helpers=helpers)

    def note_answered(self, answered: Answered) -> None:
        """A helper has answered; too late, it is for nobody."""
        self._note(answered.id, answered=answered)

    def _note(self, request_id: str, *, helpers: int | None = None, answered: Answered | None = None) -> None:
        with self._changed:
            pending = self._pending.get(request_id)
            if pending is None:
                return
            if helpers is not None:
                pending.helpers = helpers
            if answered is not None:
                pending.answers.append(answered)
            self._changed.notify_all()


def _answers_of(answered: list[Answered]) -> list[TrainerAnswer]:
    found = []
    for one in answered:
        for writer, data in one.answers:
            rank, _, incarnation = writer.partition("-")
            if rank.isdecimal() and incarnation.isdecimal():
                answer = _decoded(data)
                found.append(TrainerAnswer(rank=int(rank), incarnation=int(incarnation), answer=answer))
    return found


def _decoded(data: bytes | None) -> Answer | None:
    try:
        return None if data is None else decode_answer(data)
    except WireError:
        return None
