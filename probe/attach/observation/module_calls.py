"""Tells an observer of every `module(...)` while a sampled forward runs: replaces `nn.Module.__call__`.

The class attribute is replaced and put back round each sampled forward: 45 us for both, 0.6 ms where a step
has emptied the processor's caches (torch's 350 module classes are told), against 0.2 us for each call of a
module in every step if it stayed. It is built under torch's own file name, so that dynamo
treats it like torch's: no graph break and no recompilation, whenever it appears or goes. What it calls
of ours is kept out of dynamo's reach. `_call_impl` in its place takes 0.04 ms, as it is no slot of those
classes, but has dynamo compile again: it serves where C follows the step and nothing was ever compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import nn

from ...compat import torch_dynamo, torch_engine, torch_modes
from ...compat.torch_modules import CALL, IMPLEMENTATION
from ...guard import finish_beside_signals
from ..call_wrappers import function_in_torch, hide_own_frames
from ..module_call import ModuleCall, module_call, module_implementation

_WRAPPER_SOURCE: Final = """
def wrapper(self, *args, **kwargs):
    if is_compiling():
        return original(self, *args, **kwargs)
    token = calls.enter(self, args, kwargs)
    if token is None:
        return original(self, *args, **kwargs)
    try:
        output = original(self, *args, **kwargs)
    except BaseException:
        calls.abandon(token)
        raise
    calls.leave(token, output)
    return output
"""


class CallObserver(Protocol):
    """What is told of calls. Nothing may raise. Tokens are the observer's own."""

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> object | None:
        """A call begins; None to hear no more of it."""
        ...

    def leave(self, token: Any, output: Any) -> None:
        """It has returned."""
        ...

    def abandon(self, token: Any) -> None:
        """It has raised."""
        ...


class _Callbacks:
    """What the wrapper calls; looked up at each call, so that a wrapper someone kept goes silent."""

    enter: Callable[[nn.Module, Any, Any], object | None]
    leave: Callable[[Any, Any], None]
    abandon: Callable[[Any], None]

    def __init__(self) -> None:
        self.silence()

    def silence(self) -> None:
        self.enter = _decline
        self.leave = _ignore_result
        self.abandon = _ignore


class _Wrapper(NamedTuple):
    """One of ours, and what it calls."""

    replaced: Any
    callbacks: _Callbacks


class ModuleCalls:
    """The replaced `nn.Module.__call__` of this process and the observer that it reports to.

    One observer at a time: where watched models nest, the one whose forward began last. Only calls on the
    thread that began count (the replicas of `nn.DataParallel` run on others).
    """

    def __init__(self) -> None:
        self._callbacks = _Callbacks()
        self._observers: list[CallObserver] = []
        self._place = module_call
        self._wrappers: dict[ModuleCall, _Wrapper] = {}
        self._thread = 0
        # Sessions of other threads come and go too; the garbage collector may end one in between.
        self._lock = threading.RLock()

    @property
    def is_installed(self) -> bool:
        """Whether a function of `nn.Module` is replaced at this moment."""
        return bool(self._observers)

    @property
    def observer(self) -> CallObserver | None:
        """Who is told of this thread's calls now."""
        is_ours = self._observers and self._thread == threading.get_ident()
        return self._observers[-1] if is_ours else None

    def begin(self, observer: CallObserver, *, is_settled: bool = False) -> bool:
        """Report to `observer` from now on; False where another thread's forward is being observed.

        Args:
            observer: who is told.
            is_settled: it is one of many equal forwards: what they compile has been compiled by now.
        """
        try:
            return self._begin(observer, is_settled=is_settled)
        except BaseException:
            # A signal's handler: nobody would end it.
            self.end(observer)
            raise

    def _begin(self, observer: CallObserver, *, is_settled: bool) -> bool:
        with self._lock:
            if self._observers and self._thread != threading.get_ident():
                return False
            if not self._observers:
                is_quick = is_settled and not torch_dynamo.has_compiled()
                self._install(module_implementation if is_quick else module_call)
            self._observers.append(observer)
            self._report_to(observer)
        return True

    def end(self, observer: CallObserver) -> None:
        """Report no longer to `observer`, and put back what was there after the last one. Idempotent."""
        struck = finish_beside_signals(self._end, observer)
        if struck is not None:
            raise struck

    def _end(self, observer: CallObserver) -> None:
        with self._lock:
            if observer not in self._observers:
                return
            others = [other for other in self._observers if other is not observer]
            if others:
                self._report_to(others[-1])
            else:
                self._uninstall()
            # Last: a signal's handler may raise before, and then it is done again.
            self._observers = others

    def _report_to(self, observer: CallObserver) -> None:
        mine = threading.get_ident()
        ident, task = threading.get_ident, torch_engine.graph_task_id
        is_tracing, tell = torch_modes.is_jit_tracing, observer.enter

        def enter(module: nn.Module, args: Any, kwargs: Any) -> object | None:
            # In a backward it is a checkpoint's recomputation, whose first run was observed.
            if ident() != mine or task() != -1 or is_tracing():
                return None
            return tell(module, args, kwargs)

        self._thread = mine
        # The kernel's functions ask the same, and dynamo does not look into them.
        own = getattr(observer, "callbacks", None)
        if own is not None:
            self._callbacks.enter, self._callbacks.leave = own.enter, own.leave
            self._callbacks.abandon = own.abandon
            return
        self._callbacks.enter = torch_dynamo.unseen_by_dynamo(enter)
        self._callbacks.leave = torch_dynamo.unseen_by_dynamo(observer.leave)
        self._callbacks.abandon = torch_dynamo.unseen_by_dynamo(observer.abandon)

    def _install(self, place: ModuleCall) -> None:
        self._place = place
        known = self._wrappers.get(place)
        place.replace(self._build, again=None if known is None else known.replaced)
        self._callbacks = self._wrappers[place].callbacks

    def _build(self, original: Any) -> FunctionType:
        # Someone else may have wrapped an older one of ours: that one must stay silent.
        callbacks = _Callbacks()
        scope: dict[str, Any] = {
            "original": original,
            "calls": callbacks,
            "is_compiling": torch.compiler.is_compiling,
            # By this, `is_own_frame` knows the wrapper's frame for one of ours.
            "hide_own_frames": hide_own_frames,
        }
        name = CALL if self._place is module_call else IMPLEMENTATION
        source = _WRAPPER_SOURCE.replace("wrapper", name)
        wrapper = function_in_torch(source, scope)
        self._wrappers[self._place] = _Wrapper(wrapper, callbacks)
        return wrapper

    def _uninstall(self) -> None:
        self._callbacks.silence()
        known = self._wrappers.get(self._place)
        if known is not None and not self._place.put_back(known.replaced):
            del self._wrappers[self._place]


def _decline(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Stands for `enter` while nobody observes."""


def _ignore_result(token: Any, output: Any) -> None:
    """Stands for `leave` while nobody observes: the observer of a call under way has gone."""


def _ignore(token: Any) -> None:
    """Stands for `abandon` while nobody observes."""


for _nobodys in (_decline, _ignore_result, _ignore):
    # A wrapper that went silent may be called by what dynamo runs.
    torch_dynamo.never_compile(_nobodys)
module_calls = ModuleCalls()
"""Of this process: every session shares it."""
