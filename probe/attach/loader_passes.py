"""Tells where a pass over a DataLoader begins, and where it has run out; times what batches are waited for.

Knows nothing of training. Listened to by `epochs.py`, `evaluation.py` and `loader_watch.py`; the times go to
`loader_waits.py`.
While anyone listens `DataLoader.__iter__` and the `__next__` of its iterators are replaced on their classes;
the loaders and their iterators stay what they are.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from torch.utils.data import DataLoader

from ..compat import torch_dynamo, torch_training
from .call_wrappers import hide_own_frames
from .loader_waits import BATCHES, IS_WAITING, WAITED_NS, loader_waits

_FORKED_S: Final = 1.0


class PassListener(Protocol):
    """What is told of passes, on the thread that loads. No method may raise."""

    def begin_pass(self, iterator: object) -> None:
        """An iterator over a DataLoader was made, or begins anew."""
        ...

    def end_pass(self, iterator: object) -> None:
        """It has nothing more to give."""
        ...


class LoaderPasses:
    """Has DataLoaders tell of their passes while there is a listener.

    Attributes:
        took_ns: to make the newest iterator.
    """

    def __init__(self) -> None:
        self._listeners: tuple[PassListener, ...] = ()
        self.took_ns = 0
        self._undo: list[Callable[[], None]] = []
        # The garbage collector may end the session of a dropped model in between, on the same thread.
        self._lock = threading.RLock()

    def add(self, listener: PassListener) -> None:
        """Tell `listener` from now on."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
            iterators = torch_training.loader_iterators()
            if not self._undo and iterators is not None:
                self._replace(DataLoader, "__iter__", self._begin)
                self._replace(iterators, "__next__", self._next)

    def remove(self, listener: PassListener) -> None:
        """Stop telling; the last one puts back what was there. Idempotent."""
        # In a forked child a thread that is not there any more may hold it for ever.
        if not self._lock.acquire(timeout=_FORKED_S):
            return
        try:
            self._listeners = tuple(other for other in self._listeners if other is not listener)
            while self._undo and not self._listeners:
                self._undo.pop()()
        finally:
            self._lock.release()

    def _replace(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        wrapper = make(original)
        functools.update_wrapper(wrapper, original)
        torch_dynamo.never_compile(wrapper)
        setattr(owner, name, wrapper)

        def undo() -> None:
            # Someone else may have wrapped ours in the meantime: then theirs stays.
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        self._undo.append(undo)

    def _begin(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807 - what it stands for
            began_ns = time.perf_counter_ns()
            iterator = original(loader)
            self.took_ns = time.perf_counter_ns() - began_ns
            for listener in self._listeners:
                listener.begin_pass(iterator)
            return iterator

        return __iter__

    def _next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        cell_of, thread_of, now_ns = loader_waits.cells.get, threading.get_ident, time.perf_counter_ns

        def __next__(iterator: Any) -> Any:  # noqa: N807 - what it stands for
            cell = cell_of(thread_of())
            # A loader may read from another one: that is a part of the same wait.
            if cell is not None and cell[IS_WAITING]:
                cell = None
            try:
                if cell is None:
                    return original(iterator)
                cell[IS_WAITING], began_ns = 1, now_ns()
                batch = original(iterator)
                cell[WAITED_NS] += now_ns() - began_ns
                cell[BATCHES] += 1
                return batch
            except StopIteration:
                for listener in self._listeners:
                    listener.end_pass(iterator)
                raise
            except BaseException as error:
                hide_own_frames(error.__traceback__)
                raise
            finally:
                if cell is not None:
                    cell[IS_WAITING] = 0

        return __next__


loader_passes = LoaderPasses()
"""Of this process: every session shares it."""
