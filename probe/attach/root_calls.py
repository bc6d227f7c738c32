"""Finds the outermost module calls of watched models, and tells sessions of them.

At first, and now and then later, `nn.Module.__call__` itself is replaced and every call looked at; once no
new root has been called for two steps, only the *classes* of the roots that were found keep a `__call__` of
ours. Nothing is put on a model. Called by `hooks.py` at attach and detach and once a step; the wrappers run
on the threads that train.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final, Protocol

from torch import is_grad_enabled, nn

from ..compat import torch_dynamo
from ..compat.torch_dynamo import dynamo_callback, set_dynamo_callback
from ..compat.torch_engine import graph_task_id
from ..compat.torch_modes import is_jit_tracing
from ..compat.torch_modules import own_modules
from ..guard import Guard, outcome_of
from ..threads.watchdog import pulse
from .call_wrappers import CallWrappers
from .layout import unwrap

_SETTLED_AFTER: Final = 2
"""Steps without a new root after which `nn.Module.__call__` is put back."""
_REDIRECTIONS: Final = ("_ForwardRedirection.", "_FabricModule.")
"""Beginnings of the qualified names of a `forward` that Lightning makes for one call."""
_FIRST_WAIT: Final = 8
_LONGEST_WAIT: Final = 128
"""Steps until the next look for roots that are called only later; doubles while nothing new is found."""

Watches = tuple["_Watch", ...]
Call = Callable[..., Any]
OnEvaluation = Callable[[Call], Call]
"""Is given what runs a call with gradients disabled, and returns what is to run it."""


class CallListener(Protocol):
    """What is told of a root's calls."""

    def call_root(self, call: Call, root: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run `call(root, *args, **kwargs)`, the real forward, and return its result.

        `root` is the module that was called: the watched model, a part of it, or what wraps it.
        """
        ...


class _Watch:
    """One model whose calls one listener wants to know of."""

    def __init__(
        self, key: int, root: nn.Module, listener: CallListener, on_evaluation: OnEvaluation | None = None
    ) -> None:
        self.key, self.listener, self.on_evaluation = key, listener, on_evaluation
        self.calls = 0
        """Since the last step."""
        self.is_looking = True
        self._had_calls = True
        self._root = weakref.ref(unwrap(root))
        self._members: frozenset[int] = frozenset()
        self._is_stale = True
        self._steps = self._quiet_steps = 0
        self._wait, self._next_look = _FIRST_WAIT, 0

    def is_related(self, module: nn.Module) -> bool:
        """Whether `module` belongs to the model, is the model, or has it inside (DDP, torch.compile)."""
        root = self._root()
        if root is None:
            return False
        if self._is_stale:
            self._is_stale = False
            self._members = frozenset(map(id, root.modules()))
        if id(module) in self._members:
            return True
        return any(inner is root for inner in module.modules())

    def modules(self) -> list[nn.Module]:
        """All modules of the model."""
        root = self._root()
        return [] if root is None else list(root.modules())

    def note_new_root(self) -> None:
        """A module was called as a root for the first time: there may be others."""
        self._quiet_steps, self._wait = 0, _FIRST_WAIT

    def look_again(self) -> None:
        """Look at every call for one step, and for two more if a new root is found."""
        if not self.is_looking:
            self.is_looking = True
            self._quiet_steps = _SETTLED_AFTER - 1

    def note_step(self) -> None:
        """Count a step, and decide whether to go on looking, to stop, or to begin again."""
        had_calls, self.calls = self.calls > 0, 0
        self._steps += 1
        self._is_stale, self._members = True, frozenset()
        if self.is_looking:
            self._quiet_steps += 1
            if self._quiet_steps >= _SETTLED_AFTER:
                self.is_looking = False
                self._next_look = self._steps + self._wait
                self._wait = min(2 * self._wait, _LONGEST_WAIT)
        elif self._steps >= self._next_look or (not had_calls and self._had_calls):
            self.look_again()
        self._had_calls = had_calls


class _Scout(_Watch):
    """Is told of the outermost calls of all modules, for as long as it is there."""

    def is_related(self, module: nn.Module) -> bool:
        return True

    def modules(self) -> list[nn.Module]:
        return []


class OpenRoots:
    """The watches that have a root open on one thread."""

    __slots__ = ("is_full", "watches")

    def __init__(self) -> None:
        self.watches: Watches = ()
        self.is_full = False
        """Whether every watch has one: then inner calls need no look at all."""


class _Thread(threading.local):
    """What belongs to the calling thread."""

    def __init__(self) -> None:
        self.open = OpenRoots()


class RootCalls:
    """Tells every listener of the outermost training calls that concern its model, on any thread."""

    def __init__(self) -> None:
        # A tuple that is replaced, never changed: the garbage collector may end a session at any moment.
        self._watches: Watches = ()
        self._related: dict[int, Watches] = {}
        """What concerns whom, by identity of the module; only of modules that were met."""
        self._alive: dict[int, tuple[weakref.ref[nn.Module], ...]] = {}
        self._found: dict[int, bool] = {}
        """Identities of the roots that were called, and of the candidates."""
        self._thread = _Thread()
        self._guard = Guard()
        self._wrappers = CallWrappers(self.dispatch, self._related, self._thread)
        self._lock = threading.RLock()
        self._last_key = 0

    @property
    def is_idle(self) -> bool:
        """Whether nobody listens, nothing is wrapped and nothing remembered."""
        return not (self._watches or self._related or self._alive) and self._wrappers.is_empty

    def is_settled_on(self, root: nn.Module) -> bool:
        """Whether one model is watched, and `root` is all of it that is ever called from outside."""
        is_looking = len(self._watches) != 1 or self._watches[0].is_looking
        # The model inside of a DistributedDataParallel counts as called though it is never called by itself.
        mine = (root, unwrap(root))
        is_all = id(root) in self._found and self._found.keys() <= set(map(id, mine))
        return not is_looking and is_all and self._wrappers.wraps_only(set(map(type, mine)))

    def add(self, root: nn.Module, listener: CallListener, on_evaluation: OnEvaluation | None = None) -> int:
        """Tell `listener` of the outermost calls in, of and around `root`; returns the key for `remove`.

        Args:
            root: the watched model, in the wrapper that the script uses, if any. Not referenced.
            listener: told of calls with gradients enabled, outside of a backward, not while compiling.
            on_evaluation: told of a call with gradients disabled, before it; may not raise.
                Returns what is to run the call.
        """
        return self._add(_Watch(self._new_key(), root, listener, on_evaluation))

    def add_scout(self, listener: CallListener) -> int:
        """Tell `listener` of the outermost training calls of all modules, until `remove`."""
        return self._add(_Scout(self._new_key(), nn.Module(), listener))

    def remove(self, key: int) -> None:
        """Stop telling; the last one takes every wrapper with it. Idempotent."""
        with self._lock:
            self._watches = tuple(watch for watch in self._watches if watch.key != key)
            self._forget_all_but(self._found if self._watches else ())
            self._arrange()

    def note_step(self, key: int) -> None:
        """To be called once per training step: ends, and now and then resumes, the look at every call."""
        for watch in self._watches:
            if watch.key == key:
                was_looking = watch.is_looking
                watch.note_step()
                if watch.is_looking != was_looking:
                    self._guard.run("roots", self._arrange)

    def look_again(self, key: int) -> None:
        """Look at every call for a step: a parameter has got a gradient that no known root accounts for."""
        for watch in self._watches:
            if watch.key == key and not watch.is_looking:
                watch.look_again()
                self._guard.run("roots", self._arrange)

    def dispatch(self, call: Call, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run `call(module, *args, **kwargs)`; a session that watches it and has no root open is called."""
        callback = dynamo_callback()
        try:
            if callback is not None:
                # Called from a function that dynamo runs: it must compile what the user calls, not ours.
                set_dynamo_callback(None)
                call = torch_dynamo.with_dynamo(callback, call)
            watches = self._related.get(id(module))
            if watches is None:
                watches = self._guard.run("roots", self._classify, module) or ()
            if watches and not is_grad_enabled():
                pulse.evaluations += 1
                for watch in watches:
                    if watch.on_evaluation is not None:
                        call = watch.on_evaluation(call)
                return call(module, *args, **kwargs)
            # Not in a backward (the recompute of a checkpoint), and not what `torch.jit.trace` records.
            if not watches or graph_task_id() != -1 or is_jit_tracing():
                return call(module, *args, **kwargs)
            mine = self._thread.open
            if not mine.watches:
                return self._open_root(mine, watches, call, module, args, kwargs)
            fresh = tuple([watch for watch in watches if watch not in mine.watches])
            if not fresh:
                return call(module, *args, **kwargs)
            return self._open_root(mine, fresh, call, module, args, kwargs)
        finally:
            if callback is not None:
                set_dynamo_callback(callback)

    def _open_root(
        self, mine: OpenRoots, fresh: Watches, call: Call, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        if _is_redirected(module):
            return call(module, *args, **kwargs)
        if id(module) not in self._found:
            self._guard.run("roots", self._note_root, module, fresh)
        before = mine.watches
        try:
            mine.watches = before + fresh if before else fresh
            mine.is_full = len(self._watches) == 1 or all(map(mine.watches.__contains__, self._watches))
            if len(fresh) == 1:
                fresh[0].calls += 1
                return fresh[0].listener.call_root(call, module, args, kwargs)
            return _tell(fresh, call, module, args, kwargs)
        finally:
            mine.watches, mine.is_full = before, False

    def _new_key(self) -> int:
        self._last_key += 1
        return self._last_key

    def _add(self, watch: _Watch) -> int:
        # Each time: `torch._dynamo.reset()` may have had dynamo forget it.
        torch_dynamo.never_compile(RootCalls.dispatch)
        with self._lock:
            self._watches = (*self._watches, watch)
            met = [module for module in self._living() if id(module) in self._found]
            self._forget_all_but(())
            for module in [*met, *self._candidates(watch)]:
                self._note_root(module, self._classify(module))
            self._arrange()
        return watch.key

    def _candidates(self, watch: _Watch) -> list[nn.Module]:
        """The model, and modules whose own `__call__` may bring `nn.Module`'s other arguments, or none."""
        modules = watch.modules()
        overridden = {owner for owner in set(map(type, modules)) if self._wrappers.is_overridden(owner)}
        return modules[:1] + [module for module in modules[1:] if type(module) in overridden]

    def _classify(self, module: nn.Module) -> Watches:
        key = id(module)
        watches = tuple(watch for watch in self._watches if watch.is_related(module))
        # No Python code: nobody hears of what a signal's handler raises there, and dynamo would compile it.
        tables: tuple[dict[int, Any], ...] = (self._alive, self._related, self._found)
        self._alive[key] = tuple(weakref.ref(module, partial(table.pop, key)) for table in tables)
        self._related[key] = watches
        return watches

    def _note_root(self, module: nn.Module, watches: Watches) -> None:
        """Keep an eye on a module that is, or may be, called as a root."""
        for watch in watches:
            watch.note_new_root()
        if any(not isinstance(watch, _Scout) for watch in watches):
            self._found[id(module)] = True
            with self._lock:
                self._wrappers.wrap_class(type(module))

    def _forget(self, key: int) -> None:
        self._related.pop(key, None)
        self._alive.pop(key, None)
        self._found.pop(key, None)

    def _living(self) -> list[nn.Module]:
        """The modules that were met and are still there."""
        met = [references[0]() for references in self._alive.copy().values()]
        return [module for module in met if module is not None]

    def _forget_all_but(self, kept: Container[int]) -> None:
        for key, watches in self._related.copy().items():
            still = tuple(watch for watch in watches if watch in self._watches)
            if key not in kept or not still:
                self._forget(key)
            else:
                self._related[key] = still

    def _arrange(self) -> None:
        """Wrap what the watches need wrapped, and put back the rest."""
        with self._lock:
            if any(watch.is_looking for watch in self._watches):
                self._wrappers.wrap_every_module()
            else:
                self._wrappers.unwrap_every_module()
                self._forget_all_but(self._found)
            roots = {type(module) for module in self._living() if id(module) in self._found}
            for owner in roots:
                # A module's class may have changed since it was found: FSDP2 does that.
                self._wrappers.wrap_class(owner)
            self._wrappers.unwrap_classes(but=roots)


def _is_redirected(module: nn.Module) -> bool:
    """Whether Lightning calls a module to have another of its methods called; calls inside are the roots."""
    inner = own_modules(module).get("module", module)
    forward = vars(inner).get("forward")
    if forward is None:
        return False
    # It may be any object of the script's.
    name, _ = outcome_of(getattr, forward, "__qualname__", "")
    return isinstance(name, str) and name.startswith(_REDIRECTIONS)


def _tell(watches: Watches, call: Call, module: nn.Module, args: Any, kwargs: Any) -> Any:
    if not watches:
        return call(module, *args, **kwargs)
    watches[0].calls += 1

    def tell_others(root: nn.Module, *inner_args: Any, **inner_kwargs: Any) -> Any:
        return _tell(watches[1:], call, root, inner_args, inner_kwargs)

    return watches[0].listener.call_root(tell_others, module, args, kwargs)


root_calls = RootCalls()
"""Of this process: every session shares it."""
