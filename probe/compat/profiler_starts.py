"""Has something done around each start of a profile of torch's, by the script or by a library.

Where torch has other names for what starts one, nothing is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from torch.autograd import profiler as autograd_profiler

STARTS: Final = ("_prepare_trace", "_start_trace")
"""A profiler with a schedule is made ready some steps before it begins."""


class ProfilerStarts:
    """The methods of `torch.autograd.profiler.profile` that start one.

    Args:
        around: makes the block that a start runs in.
    """

    def __init__(self, around: Callable[[], AbstractContextManager[None]]) -> None:
        self._around = around
        self._put: dict[str, tuple[Any, Any]] = {}
        self._lock = threading.RLock()

    def watch(self) -> None:
        """From now on. Idempotent."""
        kind: Any = autograd_profiler.profile
        with self._lock:
            for name in STARTS:
                if name not in self._put and hasattr(kind, name):
                    original = getattr(kind, name)
                    wrapper = self._surrounded(original)
                    self._put[name] = wrapper, original
                    setattr(kind, name, wrapper)

    def stop(self) -> None:
        """No more. Idempotent."""
        with self._lock:
            for name, (wrapper, original) in list(self._put.items()):
                # Someone else may have put theirs on top: then ours stays below it, for the next time.
                if getattr(autograd_profiler.profile, name) is wrapper:
                    setattr(autograd_profiler.profile, name, original)
                    del self._put[name]

    def _surrounded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            with self._around():
                return original(profiler, *args, **kwargs)

        return start
