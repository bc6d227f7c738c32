"""Records every `module(...)` of one forward by temporary hooks: for a call that a person makes.

The live path does without hooks; here they are on the modules inside the `with` block only: a watched root's
class has a `__call__` of ours, which passes a replaced `nn.Module.__call__` by. On CUDA every call waits for
the device, so that its time is its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...attach.layout import clean_name
from ...attach.observation.outputs import all_tensors_in
from ...compat import torch_dynamo, torch_memory
from .tensor import occupied_bytes

MAX_CALLS: Final = 100_000
"""Calls that are recorded: a recurrent model may make millions."""
_MAX_TENSORS: Final = 64
_MAX_DEPTH: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """One call of one module."""

    name: str
    """Qualified name; the root's is empty."""
    type: str
    module: nn.Module
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    output_bytes: int
    ended: int
    """0-based rank among the calls by their end: a module ends after its children."""
    duration_s: float
    """Wall-clock, children included, our own measuring excluded."""
    inputs: Any = None
    """What `measure` made of the input tensors."""
    outputs: Any = None
    """What `measure` made of the output tensors."""


Measure = Callable[[list[Tensor]], Any]


class CallRecorder:
    """Collects the calls in the order in which they began.

    Attributes:
        calls: the finished calls.
        path: names of the modules that are being called, outermost first.
        dropped: calls beyond `MAX_CALLS`.
    """

    def __init__(self, names: dict[nn.Module, str], measure: Measure | None, *, waits: bool) -> None:
        self.path: list[str] = []
        self.dropped = 0
        self._names, self._measure, self._waits = names, measure, waits
        self._finished: list[tuple[int, ModuleCall]] = []
        self._open: list[tuple[int, int, tuple[tuple[int, ...], ...], Any]] = []
        self._begun = 0
        self._ours_ns = 0

    @property
    def calls(self) -> list[ModuleCall]:
        """Finished calls in the order in which they began: a module comes before its children."""
        return [call for _, call in sorted(self._finished, key=lambda item: item[0])]

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A pre-forward hook."""
        began_ns = time.perf_counter_ns()
        tensors = find_tensors((args, kwargs))
        measured = self._measure(tensors) if self._measure is not None else None
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        self.path.append(self._names[module])
        self._wait()
        self._ours_ns += time.perf_counter_ns() - began_ns
        self._open.append((self._begun, time.perf_counter_ns() - self._ours_ns, shapes, measured))
        self._begun += 1

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A forward hook."""
        self._wait()
        ended_ns = time.perf_counter_ns()
        number, began_ns, shapes, inputs = self._open.pop()
        self.path.pop()
        if len(self._finished) >= MAX_CALLS:
            self.dropped += 1
            return
        tensors = find_tensors(output)
        call = ModuleCall(
            name=self._names[module],
            type=type(module).__name__,
            module=module,
            input_shapes=shapes,
            output_shapes=tuple(tuple(tensor.shape) for tensor in tensors),
            output_bytes=sum(map(occupied_bytes, tensors)),
            ended=len(self._finished),
            duration_s=(ended_ns - self._ours_ns - began_ns) / 1e9,
            inputs=inputs,
            outputs=self._measure(tensors) if self._measure is not None else None,
        )
        self._finished.append((number, call))
        self._ours_ns += time.perf_counter_ns() - ended_ns

    def _wait(self) -> None:
        if self._waits:
            torch.cuda.synchronize()


@contextmanager
def calls_recorded(
    root: nn.Module, *, measure: Measure | None = None, layers: bool = True
) -> Iterator[CallRecorder]:
    """Record the calls of `root`'s modules until the block ends; their hooks are removed whatever happens.

    Compiled parts of the model run eagerly inside the block: hooks would make them compile anew.

    Args:
        root: the model.
        measure: called with the tensors of each call's input and output, at that moment: a later layer may
            write them in place.
        layers: False records the root's own call alone.
    """
    names: dict[nn.Module, str] = {}
    for name, module in root.named_modules() if layers else [("", root)]:
        names.setdefault(module, clean_name(name))
    recorder = CallRecorder(names, measure, waits=torch_memory.cuda_is_initialised())
    handles: list[Any] = []
    try:
        for module in names:
            handles.append(module.register_forward_pre_hook(recorder.before, with_kwargs=True))
            handles.append(module.register_forward_hook(recorder.after, with_kwargs=True, prepend=False))
        with torch_dynamo.compilation_off():
            yield recorder
    finally:
        for handle in handles:
            handle.remove()


def find_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in nested containers, dataclasses and plain objects, each once, in order."""
    found: dict[int, Tensor] = {}
    for tensor in all_tensors_in(value, depth=_MAX_DEPTH, parts=2 * _MAX_TENSORS):
        found.setdefault(id(tensor), tensor)
        if len(found) >= _MAX_TENSORS:
            break
    return list(found.values())


def split_input(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn what a user gives as the model's input into arguments.

    A tuple or list is the positional arguments, a dictionary with string keys the keyword arguments (as in
    `model(**batch)`), anything else, a named tuple such as `PackedSequence` too, the one argument. To pass a
    list or dictionary itself, wrap it: `(batch,)`.
    """
    if type(value) in (tuple, list):
        return tuple(value), {}
    # Hugging Face's BatchEncoding is a mapping and no dict.
    if hasattr(value, "keys") and hasattr(value, "__getitem__") and not isinstance(value, Tensor):
        names = list(value.keys())
        if names and all(isinstance(name, str) for name in names):
            return (), {name: value[name] for name in names}
    return (value,), {}
