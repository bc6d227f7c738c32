"""The dispatch mode of a replay's second pass: kinds, producers, modules, frames and operands of bad ops.

Active on the replaying thread, and on autograd's device threads during a backward on CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import CodeType
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor

from ..compat import torch_engine, torch_memory, torch_nodes
from ..errors import ReplayError
from ..threads.stacks import RawFrame, inner_own_removed, inner_torch_removed, outer_torch_removed, raw_stack
from ..wire import TensorFacts
from .dispatch import GuardedMode, OpInfo, tensors_in, written_tensors
from .held_outputs import NOT_RESTORED
from .nonfinite_kinds import Kinds
from .origin import Cause, Record, Source
from .running_modules import is_module_call
from .tensor_facts import classify, facts_of, has_nonfinite_constant

_OVERWRITES: Final = frozenset({"fill_", "copy_", "zero_", "normal_", "uniform_", "bernoulli_", "set_"})
"""In-place ops that do not read what they replace."""
_MAX_FRAMES: Final = 200
_MAX_SUMMARIES: Final = 256
_MOST_NESTED: Final = 8
_WENT_ANOTHER_WAY: Final = (
    f"a second replay of the same step went another way than the first: its forward depends on {NOT_RESTORED}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an op ran."""

    op: str
    module: str | None
    frames: tuple[RawFrame, ...]
    modules: tuple[str | None, ...] = ()
    """The modules that were running, outermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNote:
    """What is needed to present one recorded op."""

    place: Place
    """Of the op itself, or of the forward op whose derivative it belongs to."""
    backward: bool
    node: str | None
    """Autograd node, such as ``SqrtBackward0``, of a backward op."""
    in_hook: str | None = None
    """The op itself, where a Python hook on the node made it."""
    frames: tuple[RawFrame, ...]
    """Python frames of the op itself; of a backward op, those inside the backward."""
    operands: tuple[TensorFacts, ...]
    asked: tuple[RawFrame, ...] = ()
    """Of a derivative that the program asked for with `create_graph`, in forward or loss: where it did."""


class RunningModule(Protocol):
    """Knows which module is running."""

    @property
    def current(self) -> str | None:
        """Name of the innermost running module that has one; None outside of every module."""
        ...

    @property
    def running_names(self) -> tuple[str | None, ...]:
        """Names of all running modules, outermost first."""
        ...


@dataclass(frozen=True, slots=True)
class Op:
    """One op that is about to run."""

    index: int
    """Its number: time."""
    info: OpInfo
    call: Any
    """Function, positional and keyword arguments."""
    inputs: list[Tensor]
    node: Any
    """The autograd node whose derivative it belongs to; None outside of derivatives."""
    own: Place | None
    """Where it runs; None for an op of a derivative that has no graph."""


class Read(NamedTuple):
    """What an op read that is bad, and what it read in words where that is wanted."""

    causes: tuple[Cause, ...]
    operands: tuple[TensorFacts, ...]
    is_wanted: bool


@dataclass(slots=True)
class _Memory:
    """Who wrote which storage last, as far as it matters."""

    writers: dict[int, int] = field(default_factory=dict)
    uninitialised: set[int] = field(default_factory=set)
    sources: dict[int, tuple[Source, str]] = field(default_factory=dict)


def _is_run_by_the_engine(frames: Sequence[RawFrame]) -> bool:
    """Whether no Python runs inside of the derivative, as it does where a checkpoint recomputes."""
    return not frames or torch_engine.is_engine(frames[-1][0])


def of_the_call(node: Any, place: Place | None) -> Place | None:
    """Of a user's own function not the op inside of its forward that came first, but the call of it."""
    forward = torch_nodes.forward_code(node)
    if place is None or forward is None:
        return place
    codes = [code for code, _ in place.frames]
    end = codes.index(forward) if forward in codes else len(codes)
    frames = tuple(inner_torch_removed(list(place.frames[:end])))
    # Modules that the forward itself has called are not those that called it.
    outside = place.modules[: len(place.modules) - sum(map(is_module_call, place.frames[end:]))]
    module = outside[-1] if outside else place.module
    return Place(op=place.op, module=module, frames=frames, modules=outside)


class _Places:
    """Which forward op made which autograd node, by the node's sequence number."""

    def __init__(self) -> None:
        self.outer_task: int | None = None
        self._made: dict[int, Place] = {}
        self._recomputed: dict[int, Place] = {}
        self._derived: dict[int, Place] = {}

    def note_derived(self, place: Place) -> None:
        """Note an op of a derivative with a graph: its node belongs to the place of what was derived."""
        if (number := torch_engine.next_sequence_number()) is not None:
            self._derived.setdefault(number - 1, place)

    def note(self, place: Place, *, recomputed: bool, makes_second: bool) -> None:
        """Note an op that is about to run: its node has the newest number, first come first kept."""
        number = torch_engine.next_sequence_number()
        if number is None:
            return
        known = self._recomputed if recomputed else self._made
        known.setdefault(number - 1, place)
        if makes_second:
            known.setdefault(number, place)

    def enter_backward(self) -> None:
        """A backward op runs: the first one belongs to the outermost backward."""
        if self.outer_task is None:
            self.outer_task = torch_engine.graph_task_id()

    def of_node(self, node: Any) -> Place | None:
        """Where the forward op ran that made an autograd node."""
        number = torch_nodes.node_sequence_number(node)
        if number is None:
            return None
        # Numbers count per thread, and on CUDA a checkpoint recomputes on autograd's thread. Only a
        # reentrant one runs the nodes that it makes there, in a backward of its own.
        nested = torch_engine.graph_task_id() != self.outer_task
        if nested and (recomputed := self._recomputed.get(number)) is not None:
            return recomputed
        return self.of_number(number) or self._of_op_inside(node, number)

    def _of_op_inside(self, node: Any, number: int) -> Place | None:
        """Of a user's function whose forward begins with another one: its numbers come first."""
        forward = torch_nodes.forward_code(node)
        inside = (self._made.get(later) for later in range(number + 1, number + _MOST_NESTED))
        found = (place for place in inside if place and any(code is forward for code, _ in place.frames))
        return None if forward is None else next(found, None)

    def of_number(self, number: int) -> Place | None:
        """Like `of_node`, by the number and outside of a backward."""
        made, derived = self._made.get(number), self._derived.get(number)
        # Both, where derivatives run on autograd's own threads: which of them made the node is not known.
        return made or derived if made is None or derived is None else None


class DetailRecorder(GuardedMode):
    """Second pass: kinds, producers, modules, frames and operand summaries of the ops found bad."""

    def __init__(
        self,
        *,
        deadline_s: float,
        writable: Iterable[Tensor],
        bad: Mapping[int, str],
        tracker: RunningModule,
        outermost: frozenset[CodeType],
        intended: Sequence[str] = (),
    ) -> None:
        """Take the verdict of the first pass, op by op, and the code objects of ours that end a stack.

        Infinities of `intended` ops, and of ops in `intended` modules, are taken for a mask's.
        """
        super().__init__(deadline_s=deadline_s, writable=writable)
        self.records: dict[int, Record] = {}
        self.notes: dict[int, OpNote] = {}
        self._bad = bad
        self._tracker, self._intended = tracker, intended
        self._outermost = outermost
        self._memory = _Memory()
        self._places = _Places()

    def begin_backward(self) -> None:
        """Forget which backward was the outermost one."""
        self._places.outer_task = None

    def take_gradients(self, gradients: Iterable[Tensor]) -> None:
        """Note where they come from; some were computed between the forward and the backward."""
        for tensor in gradients:
            if key := torch_memory.storage_key(tensor):
                self._memory.writers.pop(key, None)
                self._memory.sources[key] = ("gradient", "")

    def add_source(self, tensor: Tensor, source: Source, *, name: str) -> None:
        """Tell where a tensor that no op of the replay makes comes from."""
        if key := torch_memory.storage_key(tensor):
            self._memory.sources.setdefault(key, (source, name))

    def cause_of(self, tensor: Tensor) -> Cause | None:
        """Return why `tensor` is bad; None when it is finite. Synchronises."""
        kinds = classify(tensor)
        if not kinds:
            return None
        key = torch_memory.storage_key(tensor)
        producer = self._memory.writers.get(key)
        source, name = self._memory.sources.get(key, ("outside", ""))
        if key in self._memory.uninitialised:
            source = "uninitialised"
        if source == "unread" and producer is None:
            return None
        return Cause(kinds=kinds, producer=producer, source=source, name=name)

    def observe(self, index: int, info: OpInfo, call: Any, inputs: list[Tensor]) -> Any:
        """Run the op; record it when the first pass found it bad."""
        func, args, kwargs = call
        node = torch_engine.current_node()
        backward = node is not None and not torch.is_grad_enabled()
        if backward and torch_nodes.is_custom_node(node):
            # A reentrant checkpoint recomputes the forward of a user's function, which has no gradients.
            backward = not torch_engine.is_in_forward(sys._getframe(1))
        if node is not None:
            self._places.enter_backward()
        own = None if backward else self._forward_place(info, node, inputs)
        if index not in self._bad:
            out = func(*args, **kwargs)
            self._forget_rewritten(info, out, inputs)
            return out
        op = Op(index, info, call, inputs, node, own)
        if self._bad[index] != info.name:
            raise ReplayError(_WENT_ANOTHER_WAY)
        # Before the op runs: an in-place one overwrites its operands.
        read = self._read(op)
        out = func(*args, **kwargs)
        self._forget_rewritten(info, out, inputs)
        if not self._record(op, read, out) and not self._read_garbage(inputs):
            raise ReplayError(_WENT_ANOTHER_WAY)
        return out

    def _read(self, op: Op) -> Read:
        """Look at what an op with a bad output reads. Synchronises."""
        causes = self._causes_read(op.info, op.call, op.inputs)
        seen = Kinds.NONE
        for cause in causes:
            seen |= cause.kinds
        passed_on = seen & Kinds.NAN and any(cause.producer is not None for cause in causes)
        wanted = not passed_on and len(self.notes) < _MAX_SUMMARIES
        inputs = enumerate(op.inputs if wanted else ())
        facts = tuple(facts_of(tensor, role="input", name=self._named(i, tensor)) for i, tensor in inputs)
        return Read(causes, facts, wanted)

    def _named(self, position: int, tensor: Tensor) -> str:
        """The position among the inputs, and which parameter, buffer or argument that is, if one."""
        key = torch_memory.storage_key(tensor)
        source, name = self._memory.sources.get(key, ("outside", ""))
        is_own = source in ("parameter", "buffer", "argument") and key not in self._memory.writers
        return f"{position} ({source} {name})" if name and is_own else str(position)

    def _record(self, op: Op, read: Read, out: Any) -> Kinds:
        """Record an op with a bad output, and return what that holds. Synchronises."""
        index, (_, args, kwargs) = op.index, op.call
        kinds, operands = Kinds.NONE, list(read.operands)
        for position, tensor in enumerate(tensors_in((out,))):
            kinds |= classify(tensor)
            if key := torch_memory.storage_key(tensor):
                self._memory.writers[key] = index
            if read.is_wanted:
                operands.append(facts_of(tensor, role="output", name=str(position)))
        self.notes[index] = note = self._note(op, operands)
        self.records[index] = Record(
            index=index,
            kinds=kinds,
            inputs=read.causes,
            constant=has_nonfinite_constant(args, kwargs),
            is_intended=op.own is not None and self._is_intended(note.place),
            op=op.info.name,
        )
        return kinds

    def _is_intended(self, place: Place) -> bool:
        names = (place.op, place.module or "")
        return any(fnmatchcase(name, pattern) for pattern in self._intended for name in names)

    def _read_garbage(self, inputs: list[Tensor]) -> bool:
        return any(torch_memory.storage_key(tensor) in self._memory.uninitialised for tensor in inputs)

    def _forward_place(self, info: OpInfo, node: Any, inputs: list[Tensor]) -> Place:
        """Note where a forward op runs, for the autograd nodes that it makes."""
        module, frames = self._tracker.current, self._frames()
        asking = None if node is None else of_the_call(node, self._places.of_node(node))
        if node is not None and _is_run_by_the_engine(frames):
            place = asking or Place(op=info.name, module=None, frames=())
            self._places.note_derived(place)
            return place
        if module is None:
            # A checkpoint recomputes: the node that asked for it knows the module.
            module = asking.module if asking else None
        modules = self._tracker.running_names
        if asking is not None and torch_nodes.forward_code(node) is not None:
            # A reentrant checkpoint recomputes: its caller comes first.
            frames, modules = (
                (*asking.frames, *outer_torch_removed(list(frames))),
                (*asking.modules, *modules),
            )
        place = Place(op=info.name, module=module, frames=frames, modules=modules)
        # An in-place op on a view makes a second node, CopySlices, after it has run.
        second = bool(info.written) and bool(inputs) and torch_memory.is_view(inputs[0])
        makes_second = second and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        self._places.note(place, recomputed=node is not None, makes_second=makes_second)
        return place

    def _frames(self) -> tuple[RawFrame, ...]:
        return tuple(inner_own_removed(raw_stack(sys._getframe(1), limit=_MAX_FRAMES, stop=self._outermost)))

    def _note(self, op: Op, operands: list[TensorFacts]) -> OpNote:
        frames, info, node, own = self._frames(), op.info, op.node, op.own
        if own is not None and node is not None and _is_run_by_the_engine(frames):
            name = torch_nodes.node_name(node)
            return OpNote(
                place=own, backward=True, node=name, frames=(), operands=tuple(operands), asked=frames
            )
        if own is not None:
            return OpNote(place=own, backward=False, node=None, frames=own.frames, operands=tuple(operands))
        # No Python runs in a derivative of torch's own but that of hooks on its node.
        nested = torch_engine.graph_task_id() != self._places.outer_task
        may_run_python = nested or torch_nodes.runs_own_python(node)
        in_hook = not may_run_python and bool(outer_torch_removed(list(frames)))
        return OpNote(
            place=of_the_call(node, self._places.of_node(node))
            or Place(op=info.name, module=None, frames=()),
            backward=True,
            node=torch_nodes.node_name(node),
            in_hook=info.name if in_hook else None,
            frames=frames,
            operands=tuple(operands),
        )

    def _causes_read(self, info: OpInfo, call: Any, inputs: list[Tensor]) -> tuple[Cause, ...]:
        """Return why inputs that the op reads are bad; what it only overwrites is not read."""
        _, args, kwargs = call
        written = {id(tensor) for tensor in written_tensors(info, args, kwargs)}
        overwrites = info.name in _OVERWRITES or "out" in kwargs
        garbage = self._memory.uninitialised
        causes = (
            self.cause_of(tensor)
            for tensor in inputs
            if id(tensor) not in written or not (overwrites or torch_memory.storage_key(tensor) in garbage)
        )
        return tuple(cause for cause in causes if cause is not None)

    def _forget_rewritten(self, info: OpInfo, out: Any, inputs: list[Tensor]) -> None:
        """Update what is known of memory: fresh outputs reuse addresses, writes initialise them."""
        if info.is_view:
            return
        known = {torch_memory.storage_key(tensor) for tensor in inputs}
        for tensor in tensors_in((out,)):
            key = torch_memory.storage_key(tensor)
            if key not in known:
                self._memory.writers.pop(key, None)
            if info.is_uninitialised:
                self._memory.uninitialised.add(key)
            else:
                self._memory.uninitialised.discard(key)
