"""Hands what the dashboard asks to the trainers of this host, and their answers back. The helper's part.

Called by the shipper between two batches; never waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...wire import Answered, Control
from .control_files import put_request, take_answer, withdraw

PATIENCE_S: Final = 3.0
"""A trainer answers within 0.1 s, whatever it trains, if it is not stopped and no C code holds its lock."""
_MOST: Final = 64


@dataclass(slots=True)
class _Open:
    """A request on its way."""

    control: Control
    waiting: list[Path]
    until_s: float
    answers: list[tuple[str, bytes | None]] = field(default_factory=list)


class ControlRelay:
    """Requests that have not been answered by all that were asked."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    def begin(self, control: Control, trainers: Iterable[Path]) -> None:
        """Leave a request for the trainers that it is meant for.

        Args:
            control: what was asked.
            trainers: folders of those of this run and host that are alive.
        """
        if len(self._open) >= _MOST:
            return
        request = control.request
        if control.caller:
            from .control_messages import named_for

            request = named_for(request, control.caller)
        opened = _Open(control, [], time.monotonic() + PATIENCE_S)
        for folder in trainers:
            if control.rank is not None and folder.name.partition("-")[0] != str(control.rank):
                continue
            try:
                put_request(folder, control.id, request)
                opened.waiting.append(folder)
            except OSError:
                opened.answers.append((folder.name, None))
        self._open.append(opened)

    def poll(self) -> list[Answered]:
        """Return what is answered, or has been waited for long enough."""
        done = []
        for opened in self._open:
            for folder in list(opened.waiting):
                answer = take_answer(folder, opened.control.id)
                if answer is None and time.monotonic() < opened.until_s:
                    continue
                if answer is None:
                    withdraw(folder, opened.control.id)
                opened.waiting.remove(folder)
                opened.answers.append((folder.name, answer))
            if not opened.waiting:
                done.append(opened)
        self._open = [opened for opened in self._open if opened.waiting]
        return [Answered(id=opened.control.id, answers=opened.answers) for opened in done]
