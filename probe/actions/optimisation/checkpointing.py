"""Activation checkpointing of a model's blocks, for the time of a call; the model stays as it is.

A block's activations are dropped after its forward and computed again in its backward
(`torch.utils.checkpoint`, not reentrant). Random numbers are drawn again as they were, and buffers, such as
running statistics, are written once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeGuard

from torch import nn
from torch.utils.checkpoint import checkpoint

from ...compat.torch_modules import own_buffers, own_modules

Forward = Callable[..., Any]
_SEGMENTED_FROM: Final = 4
"""A `Sequential` of so many leaf modules is checkpointed in segments."""


class Checkpoints:
    """The checkpointed forwards of a model's blocks.

    Args:
        model: the model.
        names: qualified names of the blocks; None chooses them, see `choose_blocks`.
        keep_buffers: whether blocks have to write their buffers once; False under a compiler, which takes
            no block that has buffers: then there may be none.

    Raises:
        ValueError: a name is none of a module's, or there is no block to choose or to keep.
    """

    def __init__(self, model: nn.Module, names: Sequence[str] | None, *, keep_buffers: bool) -> None:
        blocks = choose_blocks(model) if names is None else _named(model, names)
        if not keep_buffers:
            blocks = {name: block for name, block in blocks.items() if not list(block.buffers())}
        if not blocks and (keep_buffers or names is not None):
            raise ValueError(
                f"{type(model).__name__} has no block to checkpoint (layers in a ModuleList or Sequential, "
                "or children that have children): name them with checkpoint=[...]"
            )
        self.names = tuple(blocks)
        self._forwards = [(block, _checkpointed(block)) for block in blocks.values()]
        self._lock, self._depth = threading.Lock(), 0
        self._own: list[Forward | None] = []

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the blocks checkpointed in what runs inside; nests, and leaves the model as it was."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._own = [block.__dict__.get("forward") for block, _ in self._forwards]
                for block, forward in self._forwards:
                    block.__dict__["forward"] = forward
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    for (block, _), own in zip(self._forwards, self._own, strict=True):
                        if own is None:
                            block.__dict__.pop("forward", None)
                        else:
                            block.__dict__["forward"] = own


def choose_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a model by name, none inside of another.

    They are the layers in a `ModuleList` or `Sequential` that have children of their own; a `Sequential` of
    at least four leaf modules as a whole; and where there is nothing of these, the root's children that have
    children.
    """
    found: dict[str, nn.Module] = {}
    _collect("", model, found)
    if not found:
        found = {name: child for name, child in model.named_children() if _is_block(child)}
    return found


def _collect(name: str, module: nn.Module, found: dict[str, nn.Module]) -> None:
    children = list(module.named_children())
    if isinstance(module, nn.ModuleList | nn.Sequential):
        inner = {f"{name}.{key}" if name else key: child for key, child in children if _is_block(child)}
        if len(inner) > 1:
            found.update(inner)
            return
        if not inner and _is_plain_sequence(module) and len(children) >= _SEGMENTED_FROM:
            found[name] = module
            return
    for key, child in children:
        _collect(f"{name}.{key}" if name else key, child, found)


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


def _is_plain_sequence(module: nn.Module) -> TypeGuard[nn.Sequential]:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _named(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise ValueError(f"checkpoint={name!r} is not a module of {type(model).__name__}")
    return {name: modules[name] for name in names}


def _checkpointed(block: nn.Module) -> Forward:
    """Return what takes the place of a block's forward."""
    if _is_plain_sequence(block) and len(own_modules(block)) >= _SEGMENTED_FROM:
        return _in_segments(block)
    return _recomputed(block.forward, [block])


def _in_segments(sequence: nn.Sequential) -> Forward:
    """The forward of a `Sequential` in about the square root of its length of parts, each checkpointed."""
    modules = list(sequence)
    size = math.ceil(len(modules) / round(math.sqrt(len(modules))))
    parts = [modules[start : start + size] for start in range(0, len(modules), size)]
    segments = [_recomputed(_in_turn(part), part) for part in parts]

    def forward(value: Any) -> Any:
        for segment in segments:
            value = segment(value)
        return value

    return forward


def _in_turn(modules: Sequence[nn.Module]) -> Forward:
    def run(value: Any) -> Any:
        for module in modules:
            value = module(value)
        return value

    return run


def _recomputed(inner: Forward, owners: Sequence[nn.Module]) -> Forward:
    has_buffers = any(True for owner in owners for _ in owner.buffers())
    if not has_buffers:

        def forward(*args: Any, **kwargs: Any) -> Any:
            return checkpoint(inner, *args, use_reentrant=False, **kwargs)

        return forward

    def forward_once(*args: Any, **kwargs: Any) -> Any:
        def contexts() -> tuple[Any, Any]:
            return nullcontext(), _with_copied_buffers(owners)

        return checkpoint(inner, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return forward_once


@contextmanager
def _with_copied_buffers(owners: Sequence[nn.Module]) -> Iterator[None]:
    """Let a second forward write copies of the buffers."""
    modules = {module: None for owner in owners for module in owner.modules()}
    real = [(live, dict(live)) for live in map(own_buffers, modules) if live]
    try:
        for live, buffers in real:
            live.update({name: None if one is None else one.clone() for name, one in buffers.items()})
        yield
    finally:
        for live, buffers in real:
            live.update(buffers)
