"""What one forward call of a root needs to be made again: inputs, generators, buffers, dL/d(outputs).

The session calls `begin_capture` and `finish` on the training thread at every step: about 15 microseconds in
a loop, no copy of a large tensor, nothing on the model, and the graph lives no longer than without.
"""

from __future__ import annotations

import inspect
import itertools
import random
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from ..compat import torch_engine, torch_memory, torch_modules
from ..compat.weak_tables import WeakTable
from ..errors import ReplayError
from ..guard import let_pass
from ..threads.call_sites import CallSites, rejoined
from ..threads.stacks import RawFrame, raw_stack
from .arguments import HeldArguments, find_outputs
from .held_outputs import HeldOutput, held_values, hold_outputs
from .loss.loss_graph import LossGraph, read_loss_graph
from .module_state import StateCopy, StateWatch, numpy_state
from .tensor_facts import classify

if TYPE_CHECKING:
    from .loss.loss_origin import LossFinding

_CALL_SITE_FRAMES: Final = 16
_STACK_FRAMES: Final = 256
_forward_sites, _backward_sites = CallSites(_CALL_SITE_FRAMES), CallSites(_CALL_SITE_FRAMES)
_watches: WeakTable[nn.Module, StateWatch] = WeakTable()
_newest: tuple[Callable[[], nn.Module | None], StateWatch] = (lambda: None), StateWatch()
"""Of the root called last; a weak dictionary is slow to ask."""
_order = itertools.count()
_POSITIONAL: Final = re.compile(r"args\[(\d+)\]")


class CallState(NamedTuple):
    """The ambient state in which a forward ran."""

    rng_cpu: Tensor
    rng_cuda: tuple[int, Tensor] | None
    """(device index, state) of the current device."""
    rng_python: Any
    rng_numpy: Any
    autocast: tuple[tuple[str, torch.dtype], ...]
    """Device types for which autocast was on."""
    autocast_cache: bool
    training: bool


class OutputGradients:
    """dL/d(output) of one backward pass through the root, by position among `find_outputs`."""

    __slots__ = ("by_output", "order", "task")

    def __init__(self, task: int) -> None:
        self.task = task
        self.order = next(_order)
        self.by_output: dict[int, Tensor] = {}


class RootCapture:
    """One forward call of one root; filled in three moments: begin, finish, backward.

    Attributes:
        declined: why this call cannot be replayed, in words; "" when it can.
        passes: the backward passes that reached the outputs, in their order.
        outputs: what the forward returned, as far as it can be held.
        loss_graph: the autograd nodes between the root's outputs and the loss.
        loss_finding: what is certain about a non-finite loss.
        backwards: how often backward was called while this was the newest call.
        is_inside_compiled: whether what was called is a compiled module around the root.
        starts_from_one: whether the newest backward did, and not from gradients that the script gave.
    """

    # On the class: one is made at every step, and of what is not set nothing need be touched.
    declined = ""
    arguments: HeldArguments | None = None
    state: CallState | None = None
    state_copies: Sequence[StateCopy] = ()
    output_count = -1
    outputs: Sequence[HeldOutput] = ()
    loss_graph = LossGraph()
    loss_finding: LossFinding | None = None
    backwards = 0
    is_inside_compiled = False
    starts_from_one = True
    _losses: Sequence[HeldOutput] | None = None
    _call_site: Sequence[RawFrame] = ()
    _backward_site: Sequence[RawFrame] = ()
    _loss_boundary: int | None = None
    _watch: StateWatch | None = None

    def __init__(self, root: nn.Module, *, size_cap_bytes: int, parameter_stamp: object) -> None:
        # After an evaluation that no backward follows, a capture would keep a dropped model alive.
        self._root = weakref.ref(root)
        self._hooks: list[weakref.ref[Callable[[Tensor], None]]] = []
        self._limit_bytes = size_cap_bytes
        self.order = next(_order)
        self.passes: list[OutputGradients] = []
        self.parameter_stamp = parameter_stamp

    @property
    def root(self) -> nn.Module:
        """The module; raises `ReplayError` when it is gone."""
        root = self._root()
        if root is None:
            raise ReplayError("the model is gone")
        return root

    @property
    def is_compiled(self) -> bool:
        """Whether what ran was a compiled form of the root."""
        return self.is_inside_compiled or torch_modules.is_compiled(self.root)

    @property
    def is_abandoned(self) -> bool:
        """Whether the outputs' graph is gone without a backward, as after an evaluation with gradients on."""
        return bool(self._hooks) and not self.passes and all(hook() is None for hook in self._hooks)

    @property
    def call_site(self) -> list[RawFrame]:
        """Frames of the caller, outermost first; to be read while the script is in the same step."""
        return rejoined(list(self._call_site), raw_stack(sys._getframe(1), limit=_STACK_FRAMES))

    @property
    def backward_site(self) -> list[RawFrame]:
        """Frames of the newest call of backward, outermost first; like `call_site`."""
        return rejoined(list(self._backward_site), raw_stack(sys._getframe(1), limit=_STACK_FRAMES))

    def inner_sites(self, last: RootCapture) -> tuple[Sequence[RawFrame], Sequence[RawFrame]]:
        """The innermost frames of this call, and of the backward noted on `last`, as they were noted."""
        return self._call_site, last._backward_site

    def finish(self, output: Any) -> None:
        """Take note of what the forward returned; must be called before the loss is computed from it.

        Args:
            output: tensors in tuples, lists, mappings, dataclasses or attributes of an object.
        """
        if self._watch is not None:
            self._watch.after_call()
        if not self.declined:
            self._hold(output)

    def _hold(self, output: Any) -> None:
        tensors = find_outputs(output)
        self.output_count = len(tensors)
        self.outputs = hold_outputs(tensors)
        self._loss_boundary = torch_engine.next_sequence_number()
        if not tensors:
            self._decline("no output of the forward requires a gradient")
        has_scalar = len(tensors) > 1 and any(tensor.dim() == 0 for tensor in tensors)
        for position, tensor in enumerate(tensors):
            # A hook on a leaf would stay on it for good: it is the user's parameter or input.
            if not tensor.is_leaf:
                hook = self._hook(position, droppable=has_scalar and tensor.dim() > 0)
                torch_engine.register_hook(tensor, hook)
                self._hooks.append(weakref.ref(hook))

    @property
    def loss_is_finite(self) -> bool:
        """Whether what the newest backward was called on is known to have been finite. Synchronises."""
        if self._losses is None:
            return False
        losses = [held_values(held) for held in self._losses]
        return all(loss is not None and not classify(loss) for loss in losses)

    def note_backward(
        self,
        losses: Iterable[Tensor],
        *,
        are_finite: bool = False,
        is_from_one: bool = True,
        graph: LossGraph | None = None,
    ) -> None:
        """Note the ops that make up the loss; to be called on a step's newest capture, before backward.

        Costs some 5 microseconds for a loss of a few ops, and does not synchronise. Without it a fault in
        the loss is located but its op is not named.

        Args:
            losses: what backward is called on.
            are_finite: whether they are known to be; else those on the CPU are read.
            is_from_one: whether backward starts from 1, and not from gradients that the script gives.
            graph: of the losses, where it was read before.
        """
        losses, boundary = tuple(losses), self._loss_boundary
        self.backwards += 1
        if self.loss_graph.gradients is not None:
            self.loss_graph.gradients.release()
        numbers = [number for _, _, number in self.outputs if number is not None]
        self.loss_graph = graph or read_loss_graph(losses, boundary=boundary, outputs=numbers)
        if is_from_one is not self.starts_from_one:
            self.starts_from_one = is_from_one
        self._losses = () if are_finite else hold_outputs(losses)
        if not are_finite:
            from .loss.loss_origin import examine_loss

            self.loss_finding = examine_loss(losses, boundary=boundary, outputs=self.outputs)
        self._backward_site = _backward_sites.take()

    def argument_name(self, held: str) -> str:
        """Return what the forward calls an argument held as ``args[0]`` or by keyword."""
        match = _POSITIONAL.match(held)
        if match is None:
            return held
        try:
            names = list(inspect.signature(self.root.forward).parameters)
        except (TypeError, ValueError):
            return held
        position = int(match[1])
        return names[position] + held[match.end() :] if position < len(names) else held

    def _hook(self, position: int, *, droppable: bool) -> Callable[[Tensor], None]:
        # The hook lives as long as the user keeps the output; what is held here need not.
        reference = weakref.ref(self)

        def keep(gradient: Tensor | None) -> None:
            capture = reference()
            # DistributedDataParallel gives None to outputs that the loss does not use.
            if capture is None or gradient is None:
                return
            # Runs inside the user's backward: an odd kind of tensor must not stop it.
            try:
                capture._receive(position, gradient, droppable=droppable)
            except (RuntimeError, TypeError, AttributeError) as error:
                let_pass(error)
                capture._decline(f"dL/d(output) cannot be kept: {error}")

        return torch_engine.left_out_of_pickles(keep)

    def _receive(self, position: int, gradient: Tensor, *, droppable: bool) -> None:
        if self.declined:
            return
        size = gradient.nbytes if gradient.layout == torch.strided else 0
        if size > self._limit_bytes:
            # Next to a loss of its own the root's other outputs rarely get a gradient from outside.
            if not droppable:
                self._decline(f"dL/d(output) takes {size >> 20} MiB, above the limit")
            return
        self._limit_bytes -= size
        task = torch_engine.graph_task_id()
        if not self.passes or self.passes[-1].task != task:
            self.passes.append(OutputGradients(task))
        self.passes[-1].by_output[position] = gradient.detach()

    def _decline(self, reason: str) -> None:
        self.declined = self.declined or reason
        self.arguments = None
        self.state = None
        self.state_copies = []
        self.outputs = ()
        self.passes = []

    def _begin(self, root: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
            raise ReplayError("the forward ran without gradients")
        self.arguments = arguments = HeldArguments(args, kwargs)
        if arguments.nbytes > self._limit_bytes:
            raise ReplayError(f"the inputs take {arguments.nbytes >> 20} MiB, above the limit")
        self._limit_bytes -= arguments.nbytes
        self._watch = watch = _watch_over(root)
        self.state_copies = watch.before_call(root)
        self.state = _call_state(root, watch)
        self._call_site = _forward_sites.take()


def begin_capture(
    root: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    size_cap_bytes: int,
    parameter_stamp: object = None,
) -> RootCapture:
    """Capture what a call of `root` that is about to run needs to be replayed. Never raises for its input.

    Args:
        root: the outermost module that is called.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
        size_cap_bytes: inputs and output gradients that together are larger are not held; the capture is
            then declined.
        parameter_stamp: anything comparable that changes when an optimizer updates the parameters, such
            as its step count; `locate_origin` declines when it has changed.

    Returns:
        The capture; `declined` says in words why it cannot be replayed.
    """
    called = called_module(root)
    capture = RootCapture(called, size_cap_bytes=size_cap_bytes, parameter_stamp=parameter_stamp)
    if called is not root and torch_modules.is_compiled(root):
        capture.is_inside_compiled = True
    try:
        capture._begin(called, args, kwargs)
    except ReplayError as error:
        capture._decline(str(error))
    return capture


def called_module(root: nn.Module) -> nn.Module:
    """The module whose forward is the user's: inside `torch.compile` and DistributedDataParallel."""
    inner = torch_modules.compiled_original(root)
    if isinstance(inner, nn.parallel.DistributedDataParallel):
        return called_module(inner.module)
    return inner


def generator_states() -> tuple[Tensor, tuple[int, Tensor] | None]:
    """State of torch's generators: of the CPU and, where CUDA is used, of the current device."""
    rng_cuda = None
    if torch_memory.cuda_is_initialised():
        device = torch.cuda.current_device()
        rng_cuda = (device, torch.cuda.get_rng_state(device))
    return torch.default_generator.get_state(), rng_cuda


def has_drawn_since(state: CallState) -> bool:
    """Whether torch's generators have been drawn from since a call began."""
    rng_cpu, rng_cuda = generator_states()
    if not torch.equal(state.rng_cpu, rng_cpu):
        return True
    if state.rng_cuda is None or rng_cuda is None:
        return state.rng_cuda is not rng_cuda
    return state.rng_cuda[0] != rng_cuda[0] or not torch.equal(state.rng_cuda[1], rng_cuda[1])


def _watch_over(root: nn.Module) -> StateWatch:
    global _newest
    known, watch = _newest
    if known() is not root:
        watch = _watches.get(root) or StateWatch()
        _watches[root] = watch
        _newest = weakref.ref(root), watch
    return watch


def _call_state(root: nn.Module, watch: StateWatch) -> CallState:
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    if torch.is_autocast_enabled("cpu"):
        autocast = (("cpu", torch.get_autocast_dtype("cpu")),)
    if torch_memory.cuda_is_initialised():
        if torch.cuda.is_current_stream_capturing():
            raise ReplayError("the forward was captured into a CUDA graph")
        if torch.is_autocast_enabled("cuda"):
            autocast += (("cuda", torch.get_autocast_dtype("cuda")),)
    rng_cpu, rng_cuda = generator_states()
    return CallState(
        rng_cpu=rng_cpu,
        rng_cuda=rng_cuda,
        rng_python=random.getstate() if watch.draws_from_python else None,
        rng_numpy=numpy_state() if watch.draws_from_numpy else None,
        autocast=autocast,
        autocast_cache=torch.is_autocast_cache_enabled(),
        training=root.training,
    )
