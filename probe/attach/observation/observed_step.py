"""What one sampled step tells of its module calls, call by call, until it is collected.

Filled on the training thread, and in the backward by hooks on the step's own graph (with CUDA on autograd's
thread, while the training thread waits). Holds numbers only: the hooks keep it alive as long as the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ...compat import torch_dynamo, torch_engine, torch_memory, torch_modules, torch_nodes
from ...guard import Guard
from .call_clock import CallClock, NoClock
from .call_table import CallTable
from .dead_units import all_active
from .measured_rows import WIDTH
from .module_memory import cuda_allocated, saved_bytes
from .modules import ModuleTraits, half_of_largest, saturation_bounds, unit_dimension
from .outputs import first_tensor, is_small, measurable, tensors_in
from .tensor_rows import TensorRows

_MAX_TENSORS: Final = 8
"""Of one call's arguments or output that mark where its backward begins and ends."""


class ModuleCall(msgspec.Struct, gc=False):
    """One call of one module. Times are mark numbers of the step's clock, -1 where there is none.

    Python's collector is not told of it: thousands of records in a step would have it go through the process.
    """

    row: int
    parent: int
    """Index of the enclosing call, -1 for the outermost."""
    is_wrapper: bool
    began: int = -1
    ended: int = -1
    first_node: int = 0
    """Autograd sequence numbers of what it computed: from this one up to, not with, `end_node`."""
    end_node: int = 0
    output: int | None = None
    """Number in `ObservedStep.outputs`."""
    units: int = 0
    gradient: int | None = None
    """Index into `ObservedStep.gradients_of`."""
    output_bytes: int = 0
    saved_bytes: int = 0
    allocated_bytes: int = 0
    storages: set[object] | None = None
    """Of its arguments and of its children's outputs; None unless memory is measured."""


class _LastOutput(msgspec.Struct):
    """The tensor measured last: containers return their last child's."""

    tensor: weakref.ref[Tensor]
    version: int | None
    call: ModuleCall


class ObservedStep:
    """The module calls of one step, over all its micro-steps.

    Attributes:
        calls: in the order in which they began; a call that raised is taken out.
        outputs: statistics of what the calls returned.
        gradients: statistics of the gradients of these, in the order in which backward gave them.
        gradients_of: for each hooked output, the numbers of its gradients.
        switches: (mark, mark, call) of every moment in backward from which time belongs to another call;
            -1 is no call, None means no change.
        compiled_rows: rows of modules that ran as a compiled graph.
    """

    def __init__(
        self, features: Collection[str], *, guard: Guard, clock: CallClock, device: torch.device
    ) -> None:
        self.measures_outputs = "activations" in features
        self.measures_gradients = "activation_gradients" in features
        self.measures_times = "module_times" in features
        self.measures_memory = "module_memory" in features
        self.counts_magnitudes = "histograms" in features and self.measures_outputs
        self.lists_calls = "module_calls" in features
        self.calls: list[ModuleCall] = []
        self.outputs, self.gradients = TensorRows(), TensorRows()
        self.gradients_of: list[tuple[int, ...]] = []
        self.switches: list[tuple[int, int, int | None]] = []
        self.compiled_rows: set[int] = set()
        self.is_closed = False
        self.device = device
        self.clock: CallClock = clock if self.measures_times else NoClock()
        self._stack: list[int] = []
        self._failed: set[int] = set()
        self._marked_nodes: set[int] = set()
        self._last: _LastOutput | None = None
        self._first_call = 0
        self._guard = guard

    # -- forward

    def begin_forward(self) -> None:
        """A forward begins: nothing is open, and backward time belongs to nobody."""
        self._stack.clear()
        self._first_call = len(self.calls)
        self.switch(-1)

    def enter(self, traits: ModuleTraits, module: nn.Module, arguments: Any) -> int | None:
        """A module is called; returns the call's index, None where that of a wrapper stands for it."""
        parent = self._stack[-1] if self._stack else -1
        if parent >= 0 and self.calls[parent].is_wrapper and self.calls[parent].row == traits.row:
            return None
        self.clock.mark()
        call = ModuleCall(traits.row, parent, traits.is_wrapper)
        if torch_modules.is_compiled(module):
            self.compiled_rows.add(traits.row)
        if self.measures_times or self.measures_memory:
            given = _some_tensors(arguments)
            if self.measures_times:
                for tensor in given:
                    self._mark_node(tensor, parent)
            if self.measures_memory:
                call.storages = set(map(torch_memory.storage_reference, given))
                call.allocated_bytes = -self._allocated()
        self._stack.append(len(self.calls))
        self.calls.append(call)
        call.first_node = torch_engine.next_sequence_number() or 0
        call.began = self.clock.mark()
        return len(self.calls) - 1

    def leave(self, number: int, traits: ModuleTraits, output: Any) -> None:
        """The call of a module with these traits has returned `output`."""
        call = self.calls[number]
        call.ended = self.clock.mark()
        call.end_node = torch_engine.next_sequence_number() or 0
        self._unwind(number)
        if self.measures_memory:
            call.allocated_bytes += self._allocated()
            self._note_new_memory(call, output)
        if self.measures_times:
            for tensor in _some_tensors(output):
                self._mark_node(tensor, number)
        if self.measures_outputs or self.measures_gradients:
            self._note_output(call, traits, first_tensor(output))
        self.clock.mark()

    def abandon(self, number: int) -> None:
        """The call has raised: it and what it called are no part of the step."""
        self._unwind(number)
        self._failed.update(range(number, len(self.calls)))

    def end_forward(self, output: Any, left_out: frozenset[int]) -> None:
        """The root's forward is over; what its graph keeps is added up now, while it is whole."""
        self._last = None
        self._stack.clear()
        if not self.measures_memory or len(self.calls) == self._first_call:
            return
        self.clock.mark()
        calls = self.calls[self._first_call :]
        spans = [(call.first_node, call.end_node, max(call.parent - self._first_call, -1)) for call in calls]
        for call, size in zip(calls, saved_bytes(tensors_in(output), spans, left_out), strict=True):
            call.saved_bytes = size
        self.clock.mark()

    def completed(self) -> list[int]:
        """Indices of the calls that returned."""
        return [
            index for index, call in enumerate(self.calls) if index not in self._failed and call.ended >= 0
        ]

    def table(self) -> CallTable:
        """Return what the closed step has told of its calls and outputs."""
        count = len(self.outputs)
        outputs = [-1 if call.output is None else call.output for call in self.calls]
        is_done = np.zeros(len(self.calls), dtype=np.bool_)
        is_done[self.completed()] = True
        measured = self.outputs.fetch() if count else np.zeros((0, WIDTH))
        active = self.outputs.active_units()
        return CallTable(
            rows=np.array([call.row for call in self.calls], dtype=np.intp),
            outputs=np.array(outputs, dtype=np.intp),
            is_done=is_done,
            measured=measured,
            elements=np.array(self.outputs.elements, dtype=np.float64),
            units=np.array([len(active.get(number, ())) for number in range(count)], dtype=np.intp),
            activity={number: own for number, own in active.items() if own is not all_active(len(own))},
            compiled_rows=self.compiled_rows,
        )

    # -- backward

    def switch(self, owner: int | None) -> None:
        """From now on backward time belongs to the call `owner` (-1: to none; None: to the same)."""
        if self.measures_times:
            self.switches.append((self.clock.mark(), self.clock.mark(), owner))

    def close(self) -> None:
        """The step is over; hooks of a graph that lives on do nothing any more."""
        self.is_closed = True
        self._last = None

    # -- parts

    def _unwind(self, number: int) -> None:
        """Close the call and everything inside it that was left open."""
        while self._stack and self._stack[-1] >= number:
            self._stack.pop()

    def _note_output(self, call: ModuleCall, traits: ModuleTraits, tensor: Tensor | None) -> None:
        if tensor is None:
            return
        version = torch_memory.version_of(tensor)
        last = self._last
        if last is not None and last.tensor() is tensor and last.version == version:
            call.output, call.units, call.gradient = last.call.output, last.call.units, last.call.gradient
            return
        plain = measurable(tensor)
        if plain is None:
            return
        if self.measures_outputs:
            module = traits.module() if traits.bounds_by_type else None
            bounds = half_of_largest(plain.dtype) if module is None else saturation_bounds(module, plain)
            call.output = number = self.outputs.measure(plain, bounds)
            dimension = unit_dimension(traits.unit_rule, plain.dim())
            call.units = self.outputs.note_units(number, plain, dimension)
            if self.counts_magnitudes:
                self.outputs.note_histogram(number, plain)
        if self.measures_gradients and tensor.requires_grad and tensor.grad_fn is not None:
            call.gradient = len(self.gradients_of)
            self.gradients_of.append(())
            hook = torch_engine.left_out_of_pickles(partial(self._take, call.gradient))
            torch_engine.register_hook(tensor, hook)
        self._last = _LastOutput(weakref.ref(tensor), version, call)

    def _take_gradient(self, output: int, gradient: Tensor) -> None:
        if self.is_closed:
            return
        begun = self.clock.mark()
        plain = measurable(gradient)
        if plain is not None:
            self.gradients_of[output] += (self.gradients.measure(plain, None),)
        if self.measures_times:
            self.switches.append((begun, self.clock.mark(), None))

    def _mark_node(self, tensor: Tensor, owner: int) -> None:
        """Have backward time belong to `owner` once backward comes to what computed `tensor`."""
        found = torch_nodes.backward_of(tensor)
        # The innermost module that returned a tensor is the first to mark it; it is the one that made it.
        if found is None or found[1] in self._marked_nodes:
            return
        node, number = found
        self._marked_nodes.add(number)
        node.register_prehook(partial(self._switch, owner))

    # The hooks: dynamo may be running what surrounds a backward. Kept by the step itself, they would keep it
    # until Python's collector comes.

    @torch_dynamo.unseen_by_dynamo
    def _take(self, output: int, gradient: Tensor) -> None:
        run = self._guard.run_brief if is_small(gradient) else self._guard.run
        run("activation gradients", self._take_gradient, output, gradient)

    @torch_dynamo.unseen_by_dynamo
    def _switch(self, owner: int, _: Any) -> None:
        self._guard.run_brief("module times", self._switch_if_open, owner)

    def _switch_if_open(self, owner: int) -> None:
        if not self.is_closed:
            self.switch(owner)

    def _note_new_memory(self, call: ModuleCall, output: Any) -> None:
        parent = self.calls[call.parent].storages if call.parent >= 0 else None
        known = set() if call.storages is None else call.storages
        for tensor in _some_tensors(output):
            storage = torch_memory.storage_reference(tensor)
            if storage is not None and storage not in known:
                call.output_bytes += torch_memory.storage_bytes(tensor)
            known.add(storage)
            if parent is not None:
                parent.add(storage)

    def _allocated(self) -> int:
        return cuda_allocated(self.device) if self.device.type == "cuda" else 0


def _some_tensors(value: Any) -> list[Tensor]:
    found = []
    for tensor in tensors_in(value):
        found.append(tensor)
        if len(found) == _MAX_TENSORS:
            break
    return found
