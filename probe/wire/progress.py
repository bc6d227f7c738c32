"""A bar for long work on a terminal: how much is done, and what is left. Silent where stderr is no terminal.

Standard library only. Used by the dashboard's commands and by the replay of a bundle.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, TextIO

from ..guard import let_pass

_AFTER_S: Final = 0.5
"""Work that ends sooner shows nothing."""
_EVERY_S: Final = 0.2
_CELLS: Final = 24


class Progress:
    """Shows one line that is written over, and wiped at the end; a thread keeps it up to date.

    Args:
        label: what is done, such as "Reading runs".
        total: how much there is to do; 0 where nobody knows, then only the label and the time are shown.
        amount_text: writes an amount for reading; numbers as they are by default.
        stream: where it is shown; stderr by default.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        label: str,
        total: float = 0.0,
        *,
        amount_text: Callable[[float], str] = "{:,.0f}".format,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._amount_text = label, total, amount_text
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._is_shown = _is_terminal(self._stream)
        self._began = clock()
        self._done = 0.0
        self._width = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if self._is_shown:
            self._thread = threading.Thread(target=self._show, name="nanscope-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def advance(self, amount: float = 1.0, *, label: str | None = None) -> None:
        """Note that more is done.

        Args:
            amount: since the last call.
            label: what is done from now on.
        """
        self._done += amount
        self._label = label or self._label

    def _show(self) -> None:
        wait_s = _AFTER_S
        while self._is_shown and not self._closing.wait(wait_s):
            self._write(self.line(self._clock()))
            wait_s = _EVERY_S

    def line(self, now: float) -> str:
        """Return what is shown at a moment."""
        passed = now - self._began
        if self._total <= 0:
            return f"{self._label} ({_duration(passed)})"
        share = min(self._done / self._total, 1.0)
        filled = round(share * _CELLS)
        amounts = f"{self._amount_text(self._done)} of {self._amount_text(self._total)}"
        left = f", {_duration(passed / share - passed)} left" if 0.0 < share < 1.0 else ""
        return f"{self._label} [{'#' * filled}{'.' * (_CELLS - filled)}] {share:.0%}, {amounts}{left}"

    def close(self) -> None:
        """Wipe the line. Idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2.0)
        if self._width:
            self._put("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        text = text[: max(shutil.get_terminal_size((100, 24)).columns - 1, 1)]
        self._put("\r" + text.ljust(self._width))
        self._width = len(text)

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:
            let_pass(error)
            self._is_shown = False


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
