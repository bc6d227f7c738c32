"""Has something done around each start of a profile of torch's, by the script or by a library.

Where torch has other names for what starts one, nothing is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from torch.autograd import profiler as autograd_profiler

STARTS: Final = ("_prepare_trace", "_start_trace")
"""A profiler with a schedule is made ready some steps before it begins."""


class _Methods:
    """Ours, while anyone wants to be told: one wrapper for all, in whatever order they begin and end."""

    def __init__(self) -> None:
        self.watching: tuple[ProfilerStarts, ...] = ()
        self._put: dict[str, tuple[Any, Any]] = {}
        self.lock = threading.RLock()

    def change(self, watching: tuple[ProfilerStarts, ...]) -> None:
        with self.lock:
            self.watching = watching
            if watching:
                self._put_there()
            else:
                self._take_away()

    def _put_there(self) -> None:
        kind: Any = autograd_profiler.profile
        for name in STARTS:
            present = getattr(kind, name, None)
            # One that is not on top may be below someone else's, or have been taken away with theirs.
            if present is not None and present is not self._put.get(name, (None,))[0]:
                wrapper = self._surrounded(present)
                self._put[name] = wrapper, present
                setattr(kind, name, wrapper)

    def _take_away(self) -> None:
        for name, (wrapper, original) in list(self._put.items()):
            # Someone else may have put theirs on top: then ours stays below it, for the next time.
            if getattr(autograd_profiler.profile, name) is wrapper:
                setattr(autograd_profiler.profile, name, original)
                del self._put[name]

    def _surrounded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            with ExitStack() as blocks:
                for each in self.watching:
                    blocks.enter_context(each.around())
                return original(profiler, *args, **kwargs)

        return start


_methods: Final = _Methods()


class ProfilerStarts:
    """The methods of `torch.autograd.profiler.profile` that start one.

    Args:
        around: makes the block that a start runs in.
    """

    def __init__(self, around: Callable[[], AbstractContextManager[None]]) -> None:
        self.around = around

    def watch(self) -> None:
        """From now on. Idempotent."""
        with _methods.lock:
            others = tuple(each for each in _methods.watching if each is not self)
            _methods.change((*others, self))

    def stop(self) -> None:
        """No more. Idempotent."""
        with _methods.lock:
            _methods.change(tuple(each for each in _methods.watching if each is not self))
