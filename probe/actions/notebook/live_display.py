"""Keeps cards of a run up to date in a live kernel, from a thread of its own that reads the journal alone.

The thread takes no lock of a session, touches no tensor and no generator; it rests twenty times as long as it
has worked. It ends with the run, with the kernel, or when the kernel takes no more pictures.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from ...delivery.run_words import is_alive
from ...guard import outcome_of
from ...settings.places import read_serve_state
from .run_card import RunCard, bundle_of
from .run_follower import RunFollower

_logger = logging.getLogger(__name__)
INTERVAL_S: Final = 1.0
"""Between two looks; the journal is written once a second."""
REST: Final = 20.0
"""Times as long as a look has taken."""
QUIET_S: Final = 30.0
"""Without anything new, after which a run that has not ended is called silent."""
GIVE_UP_S: Final = 3600.0
"""Likewise, after which nobody looks any more."""
MOST_CARDS: Final = 4
"""Of one run; the oldest ones keep their last picture."""


class Handle(Protocol):
    """The part of IPython's `DisplayHandle` that is used."""

    def update(self, obj: Any, **options: Any) -> None:
        """Draw again what was displayed."""
        ...


def live_kernel() -> Any:
    """Return the shell of the kernel that this process is; None in a script or a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if getattr(shell, "kernel", None) is not None else None


def card_of(follower: RunFollower, *, quiet_s: float = 0.0) -> RunCard:
    """Return the card of what has been read.

    Args:
        follower: of the run.
        quiet_s: for how long nothing has come.
    """
    state = follower.outcome or ("silent" if quiet_s > QUIET_S else "running")
    return RunCard(
        run=follower.folder.name,
        name=follower.name,
        state=state,
        contents=follower.contents,
        page=_page_of(follower.folder.name),
    )


def _page_of(run: str) -> str | None:
    """Address of the run where a dashboard runs; never its token, for a notebook is passed on."""
    serving = read_serve_state()
    if serving is None or not is_alive(serving.pid) or not serving.page.startswith(("http://", "https://")):
        return None
    return f"{serving.page.rstrip('/')}/?run={quote(run)}"


class LiveDisplay:
    """The cards of one run, and the thread that redraws them."""

    def __init__(self, folder: Path, *, interval_s: float = INTERVAL_S) -> None:
        self._follower = RunFollower(folder)
        self._interval_s = interval_s
        self._handles: list[Handle] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._heard = time.monotonic()
        self._shown = ""
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is redrawn any more."""
        return self._ended.is_set()

    def show(self, make_handle: Any) -> None:
        """Draw a card under the running cell, and keep it up to date.

        Args:
            make_handle: IPython's `DisplayHandle`.
        """
        with self._lock:
            self._look()
            handle = make_handle()
            handle.display(bundle_of(self._card()), raw=True)
            self._handles = [*self._handles, handle][-MOST_CARDS:]
            if self._thread is None and self._follower.outcome is None:
                self._thread = threading.Thread(target=self._run, name="nanscope-notebook", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Leave the cards as they are."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        rest_s = self._interval_s
        while not self._ended.wait(rest_s):
            began = time.thread_time()
            _, error = outcome_of(self._redraw)
            if error is not None:
                _logger.warning("nanscope: the run's card is no longer redrawn: %r", error)
                self._ended.set()
            rest_s = max(self._interval_s, REST * (time.thread_time() - began))
        _forget(self._follower.folder)

    def _redraw(self) -> None:
        with self._lock:
            self._look()
            card = self._card()
            bundle = bundle_of(card)
            if bundle["text/html"] != self._shown:
                self._shown = bundle["text/html"]
                for handle in self._handles:
                    handle.update(bundle, raw=True)
            is_quiet = time.monotonic() - self._heard > GIVE_UP_S
            if self._follower.outcome is not None or is_quiet:
                self._ended.set()

    def _look(self) -> None:
        if self._follower.look():
            self._heard = time.monotonic()

    def _card(self) -> RunCard:
        return card_of(self._follower, quiet_s=time.monotonic() - self._heard)


_displays: dict[Path, LiveDisplay] = {}


def _forget(folder: Path) -> None:
    _displays.pop(folder, None)


def show_live(folder: Path) -> bool:
    """Show a run under the running cell; whether there was a live kernel to do it."""
    if live_kernel() is None:
        return False
    display = _displays.get(folder)
    if display is None or display.is_over:
        display = _displays[folder] = LiveDisplay(folder)
    display.show(import_module("IPython.display").DisplayHandle)
    return True


def static_bundle(folder: Path) -> dict[str, Any]:
    """Return the card of a run as it is now."""
    follower = RunFollower(folder)
    while follower.look():
        pass
    return bundle_of(card_of(follower))
