"""Looks at how the parts of a model that get no gradient are called: in the forwards of a single step.

Used by the wiring watch on the training thread. Between begin and end of such a forward `nn.Module.__call__`
is replaced, as for a sampled step; nothing is put on the model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from torch import nn

from ..attach.observation.module_calls import CallObserver, module_calls
from ..attach.observation.outputs import tensors_in
from ..compat import torch_memory, torch_modules
from ..detectors.wiring import Part, Reason
from ..guard import Guard
from ..threads.notebook_cells import shown_name
from ..threads.stacks import RawFrame, inner_torch_removed, line_of, raw_stack
from ..threads.whereabouts import is_installed

if TYPE_CHECKING:
    from .stray_modules import StrayModule

_STACK_FRAMES: Final = 48
_PART: Final = "wiring"
_CONTAINERS: Final = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class _Seen(msgspec.Struct, eq=False):
    """What was seen of one part: of the module itself, or of those inside of it."""

    name: str
    depth: int = 0
    """Of its calls that are open."""
    was_called: bool = False
    ran_without_grad: bool = False
    has_graph: bool = False
    stack: list[RawFrame] = msgspec.field(default_factory=list)
    storages: list[torch.UntypedStorage] = msgspec.field(default_factory=list)
    """Of what it returned; held so that no other tensor gets the same address while the forward runs."""
    goes_into: str | None = None


_Token = tuple[_Seen | None, CallObserver | None, object | None]


class ReachLook:
    """Follows the calls of one step's forwards.

    Args:
        root: the naming root.
        groups: parameters that were never reached, by the topmost module that has no others.
        names: of all modules, by identity, as events name them.
        guard: catches what fails here, in the middle of the script's forward.
    """

    def __init__(
        self,
        root: nn.Module,
        groups: Mapping[str, tuple[str, ...]],
        names: Mapping[int, str],
        *,
        guard: Guard,
    ) -> None:
        self._groups, self._names, self._guard = groups, names, guard
        # Types, not modules: the model must not be kept alive.
        self._types: dict[str, type[nn.Module]] = {}
        self._seen: dict[int, _Seen] = {}
        self._all: dict[str, _Seen] = {}
        # A healthy model has no group: then all that is asked is who is called and does not belong to it.
        below = root.modules() if groups else ()
        modules = {names[id(module)]: module for module in below if id(module) in names}
        for group in groups:
            owner = modules.get(group) or modules.get(group.rpartition(".")[0])
            if owner is None:
                continue
            seen = self._all[group] = _Seen(group)
            for module in owner.modules() if group in modules else (owner,):
                self._seen[id(module)] = seen
        self._types = {name: type(module) for name, module in modules.items()}
        self._is_blind = self._is_open = self._is_inside = False
        self._others = 0
        self._root_call: _Seen | None = None
        self._strays: dict[int, StrayModule] = {}
        self._inner: CallObserver | None = None
        """Who observes the same forward; is told of all calls as before."""

    # -- round a forward

    def begin(self, called: nn.Module, args: Any, kwargs: Any) -> bool:
        """A root's forward begins; False where its calls cannot be followed."""
        # A signal's handler may have broken the end of an earlier one off.
        self.end(raised=True)
        inner = module_calls.observer
        if not module_calls.begin(self):
            return False
        self._is_open, self._inner = True, inner
        # What is called may be a wrapper that is not the model's either.
        self._is_inside = False
        self._root_call = self._enter(called, args, kwargs)
        self._is_inside = id(called) in self._names
        return True

    def end(self, output: Any = None, *, raised: bool = False) -> None:
        """It has returned `output`, or raised. Idempotent."""
        if not self._is_open:
            return
        module_calls.end(self)
        # Behind it: a signal's handler may raise before, and then it is done again.
        self._is_open, self._inner = False, None
        call, self._root_call = self._root_call, None
        if call is not None and not raised:
            self._leave(call, output)
        for seen in self._all.values():
            seen.depth = 0

    # -- CallObserver

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> _Token | None:
        """A module is called."""
        inner = self._inner
        if inner is None and not self._all and id(module) in self._names:
            self._others += 1
            return None
        seen = self._guard.run_brief(_PART, self._enter, module, args, kwargs)
        token = None if inner is None else inner.enter(module, args, kwargs)
        return None if seen is None and token is None else (seen, inner, token)

    def leave(self, token: _Token, output: Any) -> None:
        """It has returned."""
        seen, inner, inner_token = token
        if seen is not None:
            self._guard.run_brief(_PART, self._leave, seen, output)
        if inner is not None and inner_token is not None:
            inner.leave(inner_token, output)

    def abandon(self, token: _Token) -> None:
        """It has raised."""
        seen, inner, inner_token = token
        if seen is not None:
            seen.depth = max(seen.depth - 1, 0)
        if inner is not None and inner_token is not None:
            inner.abandon(inner_token)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> _Seen | None:
        self._is_blind |= torch_modules.is_compiled(module)
        seen = self._seen.get(id(module))
        self._note_takers(module, seen, (args, kwargs))
        if seen is None:
            self._others += 1
            self._note_stray(module)
            return None
        if not seen.was_called:
            seen.stack = inner_torch_removed(raw_stack(sys._getframe(1), limit=_STACK_FRAMES))
        seen.was_called = True
        seen.ran_without_grad |= not torch.is_grad_enabled()
        seen.depth += 1
        return seen

    def _note_stray(self, module: nn.Module) -> None:
        """See a module that is called inside of the model's forward, and is not the model's."""
        if not self._is_inside or id(module) in self._names or id(module) in self._strays:
            return
        from .stray_modules import StrayModule

        if StrayModule.is_one(module):
            frame = user_frame(inner_torch_removed(raw_stack(sys._getframe(1), limit=_STACK_FRAMES)))
            self._strays[id(module)] = StrayModule(module, "" if frame is None else place_of(frame))

    def _leave(self, seen: _Seen, output: Any) -> None:
        seen.depth = max(seen.depth - 1, 0)
        if seen.depth:
            return
        tensors = list(tensors_in(output))
        seen.has_graph |= any(tensor.requires_grad for tensor in tensors)
        seen.storages += [tensor.untyped_storage() for tensor in tensors if _has_storage(tensor)]

    def _note_takers(self, module: nn.Module, inside: _Seen | None, arguments: Any) -> None:
        """See which module is given what a part returned, without the graph that it had."""
        waiting = [seen for seen in self._all.values() if seen.storages and seen.goes_into is None]
        if not waiting:
            return
        given = {
            tensor.untyped_storage().data_ptr()
            for tensor in tensors_in(list(arguments[0]) + list(arguments[1].values()))
            if _has_storage(tensor) and not tensor.requires_grad
        }
        for seen in waiting:
            if seen is not inside and any(storage.data_ptr() in given for storage in seen.storages):
                seen.goes_into = self._names.get(id(module), type(module).__name__)

    # -- what it has shown

    def strays(self) -> list[StrayModule]:
        """Return the modules that were called in the forward of the model, and are not in it."""
        return list(self._strays.values())

    def parts(self) -> list[Part]:
        """Return what is known of each group now."""
        found = []
        for name, parameters in self._groups.items():
            seen = self._all.get(name, _Seen(name))
            seen.storages.clear()
            frame = user_frame(seen.stack)
            found.append(
                Part(
                    name=name,
                    parameters=parameters,
                    reason=self._reason(seen),
                    where="" if frame is None else place_of(frame),
                    goes_into=seen.goes_into or "",
                    is_library=self._is_of_library(name, seen.stack),
                )
            )
        return found

    def _reason(self, seen: _Seen) -> Reason:
        if self._is_blind or not self._others:
            return "unknown"
        if not seen.was_called:
            return "never_called"
        if seen.name not in self._types:
            return "unknown"
        if seen.ran_without_grad:
            return "no_grad"
        if not seen.has_graph:
            return "no_graph"
        return "unused" if seen.goes_into is None else "cut_off"

    def _is_of_library(self, name: str, stack: list[RawFrame]) -> bool:
        """Whether installed code calls the part, or is what would have to use it."""
        if stack and name in self._types:
            return is_installed(stack[-1][0].co_filename)
        while name:
            name = name.rpartition(".")[0]
            kind = self._types.get(name)
            if kind is not None and not issubclass(kind, _CONTAINERS):
                file = getattr(sys.modules.get(kind.__module__), "__file__", None)
                return file is not None and is_installed(file)
        return False


def _has_storage(tensor: torch.Tensor) -> bool:
    return torch_memory.is_plain_strided(tensor) and torch_memory.storage_key(tensor) != 0


def user_frame(stack: list[RawFrame]) -> RawFrame | None:
    """The innermost frame of the user's own code, else the innermost of all."""
    own = [frame for frame in stack if not is_installed(frame[0].co_filename)]
    return own[-1] if own else stack[-1] if stack else None


def place_of(frame: RawFrame) -> str:
    """Return a frame as events name it, ``train.py:21 in forward``."""
    code, offset = frame
    return f"{shown_name(code.co_filename)}:{line_of(code, offset)} in {code.co_name}"
