"""What a forward changes besides its output: buffers, attributes, random generators.

Before a call the capture asks what to copy (`BufferWatch`); around a replay everything is put back
(`preserved`). Training thread only; nothing is stored on a module.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from .. import torch_private

_LEARNING_CALLS: Final = 2
"""Calls in which every buffer's version is compared before and after."""
_UNREAD_WHEN_TRAINING: Final = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
"""Modules whose forward in training updates its running statistics without reading them."""

_PLAIN_CONTAINERS: Final = frozenset({dict, OrderedDict, list, set})

BufferCopy = tuple["weakref.ref[nn.Module]", str, Tensor]


class BufferWatch:
    """Learns from a root's first calls which buffers, and which generators, its forward changes."""

    def __init__(self) -> None:
        self._calls = 0
        self._before: list[tuple[weakref.ref[nn.Module], str, Tensor, int]] = []
        self._random_before: Any = None
        self._changed: dict[tuple[int, str], tuple[weakref.ref[nn.Module], str]] = {}
        self.draws_from_python = False
        """Whether the forward drew from Python's `random`."""

    def before_call(self, root: nn.Module) -> list[BufferCopy]:
        """Return copies of the buffers that are known to change."""
        if self._calls < _LEARNING_CALLS:
            self._before = _buffer_versions(root)
            self._random_before = random.getstate()
        copies: list[BufferCopy] = []
        for reference, name in self._changed.values():
            module = reference()
            buffer = None if module is None else module._buffers.get(name)
            if buffer is not None:
                copies.append((reference, name, buffer.detach().clone()))
        return copies

    def after_call(self) -> None:
        """Compare, while still learning."""
        if self._calls >= _LEARNING_CALLS:
            return
        self._calls += 1
        for reference, name, buffer, version in self._before:
            module = reference()
            if module is not None and (module._buffers.get(name) is not buffer or buffer._version != version):
                self._changed[id(module), name] = (reference, name)
        self.draws_from_python |= random.getstate() != self._random_before
        self._before, self._random_before = [], None


def _buffer_versions(root: nn.Module) -> list[tuple[weakref.ref[nn.Module], str, Tensor, int]]:
    return [
        (weakref.ref(module), name, buffer, buffer._version)
        for module in root.modules()
        if not isinstance(module, _UNREAD_WHEN_TRAINING)
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference()
    ]


@contextmanager
def preserved(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Put generators, buffers, training flags and module attributes back when the block ends.

    Attributes that are plain lists, dictionaries and sets get their content back; what they hold is not
    copied any deeper.
    """
    modules = _all_modules(roots)
    attributes = [(module.__dict__, _AttributeState(module.__dict__)) for module in modules]
    generators = _Generators()
    try:
        yield
    finally:
        generators.restore()
        for live, saved in attributes:
            saved.restore(live)


@contextmanager
def buffers_as_before(roots: Sequence[nn.Module], copies: Sequence[BufferCopy]) -> Iterator[list[Tensor]]:
    """Let the modules use copies of their buffers, with the captured values where there are any.

    The real buffers are not touched, so a graph that still needs them stays valid. To be used inside
    `preserved`, which puts the real ones back; yields the copies.
    """
    captured = {(id(reference()), name): value for reference, name, value in copies}
    stand_ins: dict[int, Tensor] = {}
    for module in _all_modules(roots):
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            if id(buffer) not in stand_ins:
                value = captured.get((id(module), name), buffer)
                stand_ins[id(buffer)] = value.detach().clone().requires_grad_(buffer.requires_grad)
            module._buffers[name] = stand_ins[id(buffer)]
    yield list(stand_ins.values())


def _all_modules(roots: Sequence[nn.Module]) -> list[nn.Module]:
    """Every module under the roots, each once."""
    seen: set[nn.Module] = set()
    return [module for root in roots for _, module in root.named_modules(memo=seen)]


class _AttributeState:
    """A shallow copy of a module's attributes, and of the plain containers among them."""

    __slots__ = ("_containers", "_values")

    def __init__(self, live: dict[str, Any]) -> None:
        self._values = dict(live)
        self._containers = [
            (value, value.copy()) for value in live.values() if type(value) in _PLAIN_CONTAINERS
        ]

    def restore(self, live: dict[str, Any]) -> None:
        for container, content in self._containers:
            if not _same_items(container, content):
                container.clear()
                container.extend(content) if isinstance(container, list) else container.update(content)
        if not _same_items(live, self._values):
            for name in live.keys() - self._values.keys():
                del live[name]
            live.update(self._values)


def _same_items(one: Any, other: Any) -> bool:
    """Whether two containers hold the same objects; never compares tensors by value."""
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return all(a is b and v is w for (a, v), (b, w) in zip(one.items(), other.items(), strict=True))
    if isinstance(one, list):
        return all(a is b for a, b in zip(one, other, strict=True))
    return {id(item) for item in one} == {id(item) for item in other}


class _Generators:
    """The state of every default random generator."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch_private.cuda_is_initialised() else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else (numpy, numpy.random.get_state())

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            module, state = self._numpy
            module.random.set_state(state)
