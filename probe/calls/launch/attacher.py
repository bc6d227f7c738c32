"""Attaches a session to each model that an optimizer updates, at the model's first training forward.

That is the earliest moment at which a model is complete (moved, wrapped, compiled, its rank known) and its
step still whole; where an optimizer evaluates a closure it is the closure's first call (`closures.py`).
Made by `attach.py` for the script's first optimizer; runs on the threads that train.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from ...attach.layout import unwrap
from ...attach.root_calls import root_calls
from ...compat import torch_engine, torch_nodes
from ...compat.weak_tables import WeakTable
from ...delivery.recorder.run_id import has_begun
from ...guard import outcome_of
from ...loop.member_series import series_of_process
from .closures import FirstClosures
from .missed_losses import MissedLosses
from .owners import find_holders, parameters_of, trained_part, variable_name
from .sessions import Launch, SessionStarter
from .tracebacks import hide_own_frames_of_uncaught

_PATIENCE: Final = 500
"""Outermost calls of a thread that may train nothing that an optimizer updates, before we look no more."""
_MORE_CALLS: Final = 20
"""Of these, so many are given to further modules of an optimizer that one session follows already."""
_MOST_SEARCHES: Final = 3
"""Losses before any optimizer for whose parameters all modules are searched: 40 to 90 ms each."""
_LONGEST_WAIT_S: Final = 5.0
"""That a thread waits for another one to attach its model."""
_MOST_TOGETHER: Final = 4
"""Modules of one optimizer that get a session each; of more, in a plain list say, the first called does."""
_logger = logging.getLogger(__name__)


class _Made(weakref.ref[Optimizer]):
    """An optimizer, the thread that makes it, and whether the holders of its parameters were looked for.

    Attributes:
        made: where and when, to tell whether its model is a further member of a run.
    """

    __slots__ = ("is_searched", "made", "thread")

    def __init__(self, _: Optimizer) -> None:
        self.thread, self.is_searched = threading.get_ident(), False
        self.made = series_of_process.made_now(sys._getframe())


class Attacher:
    """Waits for models that an optimizer updates; the listener of every outermost call until then."""

    def __init__(self, launch: Launch) -> None:
        self._starter = SessionStarter(launch)
        self._lock = threading.RLock()
        """Several threads may train; they look for models one after the other."""
        self._waiting: list[_Made] = []
        self._holders: list[weakref.ref[nn.Module]] | None = None
        """Of the waiting optimizers' parameters; None when they have yet to be looked for."""
        self._attached: WeakTable[nn.Module, None] = WeakTable()
        self._scout: int | None = None
        self._calls: Counter[int] = Counter()
        """By thread."""
        self._closures = FirstClosures(self)
        self._trains_by_hand = self._has_failed = False
        self._searches = 0
        self._missed = MissedLosses()
        hide_own_frames_of_uncaught()

    def say_if_nothing_was_found(self, line: str) -> None:
        """Where no session has begun, though nothing has failed, say what the losses missed, or a line."""
        if not (self._starter.has_started or self._has_failed or has_begun()):
            self._starter.say(self._missed.sentence() or line)

    # -- what happens in the script; nothing here raises

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer is being made."""
        self._guarded(self._note_optimizer, optimizer)

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        """An outermost training call, of any module: attach to its model if it is to be trained."""
        if self._guarded(self._consider, root):
            # The session is told of the very call that began it.
            return root_calls.dispatch(call, root, args, kwargs)
        return call(root, *args, **kwargs)

    def before_closure(self, optimizer: Optimizer) -> bool:
        """An optimizer's step is about to evaluate its closure; whether a session began."""
        return bool(self._guarded(self._consider_optimizer, optimizer))

    def before_backward(self, tensors: Any) -> bool:
        """A loss is about to be sent back; whether a session began, which wants to hear of it."""
        if torch_engine.in_backward() or not (self._waiting or not self._starter.has_started):
            return False
        return bool(self._guarded(self._consider_loss, tensors))

    def forget(self) -> None:
        """In a forked child: what was made before belongs to the parent."""
        self._lock = threading.RLock()  # Another thread of the parent's may hold it.
        self._guarded(self._stop_looking)
        self._searches = _MOST_SEARCHES

    # -- finding and attaching

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        self._waiting.append(_Made(optimizer))
        self._holders = None
        self._calls.clear()
        self._attached.clear()
        self._trains_by_hand = False
        self._look()

    def _consider(self, called: nn.Module) -> bool:
        """Attach to what `called` belongs to, or contains."""
        here = threading.get_ident()
        self._calls[here] += 1
        is_worker = torch.utils.data.get_worker_info() is not None
        if is_worker or self._calls[here] > _PATIENCE:
            # What another thread has made may have its first call yet to come.
            if is_worker or all(made.thread == here for made in self._waiting):
                self._stop_looking()
            return False
        optimizers = self._live_optimizers()
        if not optimizers:
            return self._trains_by_hand and _is_trainable(called) and self._attach(called)
        holders = self._find_holders(optimizers, called)
        return self._attach_all([holder for holder in holders if _are_related(holder, called)], called)

    def _consider_loss(self, tensors: Any) -> bool:
        """Attach to models that no module call led to: a compiled step, `torch.func`, updates by hand."""
        optimizers = self._live_optimizers()
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        losses = [loss for loss in given if isinstance(loss, Tensor)]
        if not optimizers:
            # Updates made by hand.
            self._trains_by_hand = True
            self._look()
            return self._attach_all(self._reached_by_hand(losses))
        holders = [item for item in self._find_holders(optimizers) if item not in self._attached]
        if losses and all(loss.is_leaf for loss in losses):
            # Cut off from every model: which one it is of nobody can say, and each is to be told of it.
            return self._attach_all(holders)
        leaves = set(map(id, torch_nodes.leaves_of(losses))) if holders else set()
        reached = [item for item in holders if not leaves.isdisjoint(map(id, item.parameters()))]
        if not reached:
            self._missed.note(losses, holders, sys._getframe(1))
        return self._attach_all(reached)

    def _reached_by_hand(self, losses: list[Tensor]) -> list[nn.Module]:
        """What holds the parameters that losses depend on, while there is no optimizer."""
        leaves = [leaf for leaf in torch_nodes.leaves_of(losses) if isinstance(leaf, nn.Parameter)]
        if not leaves or self._searches >= _MOST_SEARCHES:
            return []
        self._searches += 1
        return find_holders([leaves], sys._getframe(1))

    def _consider_optimizer(self, optimizer: Optimizer) -> bool:
        """Attach to what an optimizer updates, if it waits for that."""
        optimizers = self._live_optimizers()
        if not any(other is optimizer for other in optimizers):
            return False
        wanted = set(map(id, parameters_of(optimizer)))
        holders = self._find_holders(optimizers)
        held = [item for item in holders if not wanted.isdisjoint(map(id, item.parameters()))]
        return self._attach_all(held)

    def _live_optimizers(self) -> list[Optimizer]:
        """Those that are made, and update something that no session follows."""
        if self._has_new and (followed := self._starter.followed_parameters()):
            self._keep_waiting(lambda one: not _are_among(parameters_of(one), followed))
        optimizers = [optimizer for made in self._waiting if (optimizer := made()) is not None]
        return [optimizer for optimizer in optimizers if parameters_of(optimizer)]

    def _keep_waiting(self, is_wanted: Callable[[Optimizer], bool]) -> None:
        """Look on for the models of these, and of those that another thread is making right now."""
        here = threading.get_ident()
        kept = []
        for made in self._waiting:
            optimizer = made()
            is_unmade = made.thread != here and not parameters_of(optimizer)
            if optimizer is not None and (is_unmade or is_wanted(optimizer)):
                kept.append(made)
        self._waiting = kept
        if not kept:
            self._stop_looking()

    @property
    def _has_new(self) -> bool:
        """Whether the holders of some parameters have yet to be looked for."""
        return self._holders is None or any(
            not made.is_searched and parameters_of(made()) for made in self._waiting
        )

    def _find_holders(self, optimizers: list[Optimizer], called: nn.Module | None = None) -> list[nn.Module]:
        if self._has_new:
            members, lines = series_of_process.models(), [made.made for made in self._waiting]
            is_awaited = partial(series_of_process.await_one_like, made=lines)
            found = find_holders(
                map(parameters_of, optimizers), sys._getframe(1), called, members, is_awaited
            )
            if not found:
                return []  # Another call may have it at hand.
            self._holders = [weakref.ref(holder) for holder in found]
            # Others may have got their parameters meanwhile.
            for made in self._waiting:
                made.is_searched = any(made() is optimizer for optimizer in optimizers)
        return [holder for reference in self._holders or () if (holder := reference()) is not None]

    def _attach_all(self, holders: list[nn.Module], called: nn.Module | None = None) -> bool:
        new = [holder for holder in holders if holder not in self._attached and _is_trainable(holder)]
        begun = [self._attach(holder, called) for holder in new]
        return any(begun)

    def _attach(self, holder: nn.Module, called: nn.Module | None = None) -> bool:
        """Begin a session; whatever comes of it, its optimizers wait no longer."""
        self._attached[holder] = None
        if called is not None:
            holder = trained_part(holder, called, self._live_optimizers(), sys._getframe(1))
        name = variable_name((unwrap(holder), holder), sys._getframe(1), taken=self._starter.names_in_use)
        has_others = len(self._holders or ()) > 1
        self._attached[holder] = None
        held = set(map(id, holder.parameters()))

        def is_other(optimizer: Optimizer) -> bool:
            return held.isdisjoint(map(id, parameters_of(optimizer)))

        own = (one.made for one in self._waiting if (item := one()) is not None and not is_other(item))
        made = next(own, None)
        self._keep_waiting(
            lambda one: bool(parameters_of(one)) and (is_other(one) or self._has_more_to_attach(one))
        )
        self._trains_by_hand = False
        if self._waiting and not any(map(is_other, self._live_optimizers())):
            # What belongs to the modules of one step is called soon, or is not used.
            here = threading.get_ident()
            self._calls[here] = max(self._calls[here], _PATIENCE - _MORE_CALLS)
        return self._starter.start(holder, variable=name, has_others=has_others, made=made)

    def _has_more_to_attach(self, optimizer: Optimizer) -> bool:
        """Whether it updates another module, a decoder beside an encoder say, that is not watched yet."""
        wanted = set(map(id, parameters_of(optimizer)))
        holders = [item for reference in self._holders or () if (item := reference()) is not None]
        updated = [item for item in holders if not wanted.isdisjoint(map(id, item.parameters()))]
        others = [item for item in updated if item not in self._attached and _is_trainable(item)]
        return bool(others) and len(updated) <= _MOST_TOGETHER

    def _look(self) -> None:
        if self._scout is None and not self._has_failed:
            self._scout = root_calls.add_scout(self)
            self._closures.begin()

    def _stop_looking(self) -> None:
        self._waiting = []
        if self._scout is not None:
            scout, self._scout = self._scout, None
            root_calls.remove(scout)
            self._closures.end()

    def _guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The script must run whatever is wrong with us: after a failure nothing more is tried."""
        if self._has_failed:
            return None
        lock = self._lock
        # To come in between is better than to hold the script up for longer.
        has_lock = lock.acquire(timeout=_LONGEST_WAIT_S)
        try:
            result, error = outcome_of(function, *arguments)
        finally:
            if has_lock:
                lock.release()
        if error is not None:
            self._has_failed = True
            reason = f"{type(error).__name__}: {error}"
            _logger.error("this script is not recorded: attaching to it failed (%s)", reason, exc_info=error)
        return result


def _are_related(holder: nn.Module, called: nn.Module) -> bool:
    """Whether one is inside of the other."""
    own, other = unwrap(holder), unwrap(called)
    inside = any(module is called or module is other for module in holder.modules())
    return inside or any(module is own for module in called.modules())


def _are_among(parameters: list[Tensor], known: set[int]) -> bool:
    return bool(parameters) and known.issuperset(map(id, parameters))


def _is_trainable(module: nn.Module) -> bool:
    """Whether it has something to be trained; lazy parameters get their shapes in its first forward."""
    parameters = list(module.parameters())
    return any(one.requires_grad for one in parameters) and not any(map(is_lazy, parameters))
