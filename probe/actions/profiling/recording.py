"""One recording by torch.profiler, from its start to what it has recorded. On the thread that trains.

At most one of them runs in a process. Another profiler that the script begins meanwhile ends it first: torch
would do so without a word, and then the script's own would be ended by ours.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ...attach.layout import clean_name
from ...compat import torch_profiler
from ...guard import outcome_of
from .profile_body import RecordedProfile
from .trace_events import read_base

_logger = logging.getLogger(__name__)
_one = threading.Lock()
BUSY = "a profiler is running in this process already, and torch has room for one; end it first"
_OTHER_FUNCTION = "No modules and lines: sys.setprofile is in use, and torch needs it for Python functions."
_TAKEN_OVER = "The profile ended early: the script began a profiler of its own."


_PATIENCE_S: Final = 10.0
"""How long a profiler that begins on another thread waits for ours to end."""


class Recording:
    """A running recording.

    Args:
        memory: whether allocations are recorded.
        shapes: whether the trace has the operations' shapes.
        stacks: whether Python functions are recorded: modules and lines come from them.
        on_takeover: called when another profiler has ended this one.

    Raises:
        ValueError: another profiler runs.

    Attributes:
        has_to_end: whether another thread waits for its end.
    """

    def __init__(
        self,
        *,
        memory: bool = True,
        shapes: bool = True,
        stacks: bool = True,
        on_takeover: Callable[[], None] = lambda: None,
    ) -> None:
        if torch_profiler.is_running() or torch_profiler.is_any_ready() or not _one.acquire(blocking=False):
            raise ValueError(BUSY)
        self.has_to_end = False
        self._ended = threading.Event()
        self._notes: list[str] = []
        if stacks and sys.getprofile() is not None:
            # Torch would take its place, and not give it back.
            stacks = False
            self._notes.append(_OTHER_FUNCTION)
        self._stacks, self._on_takeover = stacks, on_takeover
        self._thread = threading.get_ident()
        self._others = torch_profiler.OtherProfilers(self._end_for_other)
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        try:
            self._profiler = profile(
                activities=activities, record_shapes=shapes, profile_memory=memory, with_stack=stacks
            )
            self._profiler.start()
        except BaseException:
            _one.release()
            raise
        self._is_running = True
        self.began_ns = time.time_ns()
        self._ends_ns: list[int] = []
        self._others.watch()

    @property
    def profiler(self) -> profile:
        """Torch's own."""
        return self._profiler

    @property
    def is_of_this_thread(self) -> bool:
        """Whether it was begun on the thread that asks; only that one can end it."""
        return threading.get_ident() == self._thread

    @property
    def elapsed_s(self) -> float:
        """Since it began."""
        return (time.time_ns() - self.began_ns) / 1e9

    def end_step(self) -> None:
        """A step has ended."""
        self._ends_ns.append(time.time_ns())

    def stop(self) -> None:
        """Record no more. Idempotent.

        Raises:
            RuntimeError: torch cannot end it.
        """
        if not self._is_running:
            return
        self._is_running = False
        self._others.stop()
        try:
            self._profiler.stop()
        finally:
            _one.release()
            self._ended.set()

    def _end_for_other(self) -> None:
        self._notes.append(_TAKEN_OVER)
        if not self.is_of_this_thread:
            # Only the thread that has begun it can end it; two at once crash torch.
            self.has_to_end = True
            self._ended.wait(_PATIENCE_S)
            return
        _, error = outcome_of(self.stop)
        if error is not None:
            _logger.warning("nanscope: a profile could not be ended: %s", error)
        _, error = outcome_of(self._on_takeover)
        if error is not None:
            _logger.warning("nanscope: a profile could not be ended: %s", error)

    def take(self, models: Iterable[nn.Module]) -> RecordedProfile:
        """Return what was recorded; after `stop`.

        Args:
            models: whose modules are to have their names; the first one that has a module names it.

        Raises:
            OSError: the trace cannot be written.
            RuntimeError: torch has nothing to write.
        """
        if not self._ends_ns:
            self.end_step()
        with tempfile.TemporaryDirectory(prefix="nanscope-") as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))
            data = path.read_bytes()
        names: dict[int, str] = {}
        for model in models:
            for name, module in model.named_modules():
                names.setdefault(id(module), clean_name(name))
        calls = torch_profiler.PythonCalls({}, {})
        if self._stacks:
            calls = torch_profiler.read_python_calls(self._profiler, names)
        base_ns = read_base(data)
        return RecordedProfile(
            trace=data,
            began_us=(self.began_ns - base_ns) / 1e3,
            ends_us=tuple((end - base_ns) / 1e3 for end in self._ends_ns),
            modules=calls.modules,
            calling_lines=calls.calling_lines,
            notes=tuple(self._notes),
        )
