"""Which module is running during a replay, and what it is called. Nothing is put on any module.

Used by the replay on the thread that replays; the stand-in for module calls sits on `nn.Module` itself for
the time of one forward or backward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from ..compat import torch_modules
from ..compat.torch_modules import WRAPPERS
from ..errors import ReplayError
from ..threads.stacks import RawFrame

Prepare = Callable[[int, tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]
_NEED_ALL_RANKS: Final = frozenset({"FullyShardedDataParallel", "SyncBatchNorm", "DataParallel"})


def refuse_what_needs_all_ranks(modules: Iterable[nn.Module]) -> None:
    """Raise `ReplayError` for a module that a rank cannot run on its own."""
    for module in modules:
        if type(module).__name__ in _NEED_ALL_RANKS or type(module).__module__.startswith("deepspeed"):
            raise ReplayError(f"a {type(module).__name__} cannot be replayed alone")


def clean_name(name: str) -> str:
    """Return a qualified name without the parts that DDP, FSDP, `torch.compile` and checkpointing add."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while parts and parts[0] == "module":
        del parts[0]
    return ".".join(parts)


def is_module_call(frame: RawFrame) -> bool:
    """Whether a frame is that of a tracker that calls a module."""
    return frame[0].co_name == "call" and frame[0].co_filename == __file__


class ModuleTracker:
    """Knows the qualified name of the innermost module that is running on one thread."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        """Name all modules under `roots`; where several contain one, the first root's name counts."""
        self._names: dict[int, str] = {}
        for root in roots:
            for name, module in root.named_modules():
                self._names.setdefault(id(module), clean_name(name))
        self._stack: list[str | None] = []
        self._thread = threading.get_ident()
        self._watched: tuple[frozenset[int], list[Any], Prepare] | None = None

    def name_of(self, module: nn.Module) -> str | None:
        """Qualified name of a module; None for one that no root contains."""
        return self._names.get(id(module))

    @property
    def current(self) -> str | None:
        """Name of the innermost running module that has one; None outside of every module."""
        return self._stack[-1] if self._stack else None

    @property
    def running_names(self) -> tuple[str | None, ...]:
        """Names of all running modules, outermost first; None for one that no root contains."""
        return tuple(self._stack)

    @contextmanager
    def running(self, root: nn.Module | None = None) -> Iterator[None]:
        """Track module calls inside the block; `root` counts as running from its start."""
        before = self._stack
        self._stack = [] if root is None else [self._names.get(id(root))]
        try:
            with torch_modules.module_calls_wrapped(self._wrap):
                yield
        finally:
            self._stack = before

    @contextmanager
    def watching(self, modules: Iterable[nn.Module], prepare: Prepare) -> Iterator[list[Any]]:
        """Collect what outermost calls of some modules return, in their order; inside `running`.

        Those without gradients are left out, as they are where steps are captured.

        Args:
            modules: whose calls are meant.
            prepare: gets the number of a call and its arguments, and returns those to call with.
        """
        returned: list[Any] = []
        self._watched = frozenset(map(id, modules)), returned, prepare
        try:
            yield returned
        finally:
            self._watched = None

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # A data loader's thread may call modules of its own meanwhile.
            if threading.get_ident() != self._thread:
                return original(module, *args, **kwargs)
            if isinstance(module, nn.parallel.DistributedDataParallel):
                # Its own forward may talk to the other ranks, and prepares for a backward that averages.
                return module.module(*args, **kwargs)
            stack, watched = self._stack, self._watched
            if watched is not None and (stack or id(module) not in watched[0] or not torch.is_grad_enabled()):
                watched = None
            if watched is not None:
                args, kwargs = watched[2](len(watched[1]), args, kwargs)
            stack.append(self._names.get(id(module), self.current))
            try:
                result = original(module, *args, **kwargs)
            finally:
                stack.pop()
            if watched is not None:
                watched[1].append(result)
            return result

        return call
