"""Profiles the next steps of one session, and keeps what was found. Loaded when it is asked for.

Requests come on any thread; everything else is done on the training thread, at the end of a step.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from ...guard import let_pass, outcome_of
from .kept_profiles import keep_profile
from .profile_body import make_profile
from .recording import Recording

if TYPE_CHECKING:
    from .profile_parts import ProfileParts

_logger = logging.getLogger(__name__)
LONGEST_S: Final = 60.0
"""A profile ends with the step in which it has become this old."""
MOST_GROWTH_BYTES: Final = 2 * 1024**3
"""Growth of the process at which it ends: what is recorded lies in memory."""


class StepProfiler:
    """At most one profile at a time.

    Args:
        parts: of the session.
    """

    def __init__(self, parts: ProfileParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._asked: tuple[int, str] | None = None
        self._recording: Recording | None = None
        self._first_step = self._last_step = 0
        self._rss_bytes = 0
        self._pid = os.getpid()

    @property
    def is_busy(self) -> bool:
        """Whether steps are profiled, or about to be."""
        return self._asked is not None

    def ask(self, steps: int, by: str) -> None:
        """Profile so many steps after the one under way.

        Raises:
            ValueError: a profile is being taken already.
        """
        with self._lock:
            if self._asked is not None:
                raise ValueError("a profile is being taken already; wait until its event is there")
            self._asked = steps, by
        self._parts.hooks.after_step.add(self._after_step)

    def stop(self) -> None:
        """The session ends."""
        if os.getpid() == self._pid:
            self._end("The session ended.")

    # -- on the training thread

    def _after_step(self, _: Any, step: int | None) -> None:
        _, error = outcome_of(self._follow, -1 if step is None else step)
        if error is not None:
            _logger.error("nanscope: a profile could not be taken; training goes on", exc_info=error)
            self._give_up(step, f"Not profiled: {error}")

    def _follow(self, step: int) -> None:
        recording, asked = self._recording, self._asked
        if asked is None:
            return
        if recording is None:
            self._begin(step)
        elif recording.is_of_this_thread and step > self._last_step:
            # Several optimizers may update at one step.
            self._last_step = step
            recording.end_step()
            count = step - self._first_step + 1
            if count >= asked[0] or recording.has_to_end:
                self._end("")
            elif recording.elapsed_s > LONGEST_S:
                self._end(f"It took longer than {LONGEST_S:.0f} s, and ended after {count} steps.")
            elif self._rss() - self._rss_bytes > MOST_GROWTH_BYTES:
                self._end(
                    f"The process grew by {MOST_GROWTH_BYTES >> 30} GiB, and it ended after {count} steps."
                )

    def _begin(self, step: int) -> None:
        started_ns = time.perf_counter_ns()
        try:
            self._recording = Recording(on_takeover=lambda: self._end(""))
        except (ValueError, RuntimeError) as error:
            let_pass(error)
            self._give_up(step, f"Not profiled: {error}")
            return
        self._first_step, self._last_step, self._rss_bytes = step + 1, step, self._rss()
        self._parts.marks.begin()
        self._parts.hooks.evaluation_call.add(self._look_at_clock)
        self._parts.meters.leave_out(time.perf_counter_ns() - started_ns)

    def _look_at_clock(self, _: bool) -> None:
        """An evaluation between two steps may be long."""
        recording = self._recording
        if recording is not None and recording.is_of_this_thread and recording.elapsed_s > LONGEST_S:
            self._end(f"It took longer than {LONGEST_S:.0f} s, without another step.")

    def _rss(self) -> int:
        memory = self._parts.recorder.memory
        return 0 if memory is None else memory.rss_bytes

    def _end(self, why: str) -> None:
        """Record no more, and keep what there is; `why` where it is less than was asked for."""
        recording, asked = self._recording, self._asked
        self._let_go()
        if recording is None or asked is None:
            return
        started_ns = time.perf_counter_ns()
        self._parts.marks.end()
        _, error = outcome_of(self._keep, recording, asked, why)
        if error is not None:
            _logger.error("nanscope: a profile could not be kept; training goes on", exc_info=error)
            self._note(self._last_step, f"The profile is lost: {error}")
        self._parts.meters.leave_out(time.perf_counter_ns() - started_ns)

    def _keep(self, recording: Recording, asked: tuple[int, str], why: str) -> None:
        if recording.is_of_this_thread:
            recording.stop()
        if self._last_step < self._first_step:
            self._note(self._last_step, f"Not profiled: no step ended meanwhile. {why}".rstrip())
            return
        recorded = recording.take([self._parts.model.root])
        made = make_profile(
            recorded,
            first_step=self._first_step,
            asked_steps=asked[0],
            asked_by=asked[1],
            notes=(why,) if why else (),
        )
        keep_profile(self._parts, made, f"{self._first_step}")

    def _give_up(self, step: int | None, message: str) -> None:
        recording = self._recording
        self._let_go()
        if recording is not None:
            self._parts.marks.end()
            outcome_of(recording.stop)
        self._note(step or 0, message)

    def _let_go(self) -> None:
        hooks = self._parts.hooks
        hooks.after_step.remove(self._after_step)
        hooks.evaluation_call.remove(self._look_at_clock)
        self._recording = self._asked = None

    def _note(self, step: int, message: str) -> None:
        self._parts.incidents.note("profile", "not profiled", message, step=max(step, 0), time=time.time())
