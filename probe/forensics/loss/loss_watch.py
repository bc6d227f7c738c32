"""Sees the operations of a loss while the script makes it, and knows which made the first bad value.

A dispatch mode below autograd that `armed_loss.py` puts on the training thread, from the return of a forward
to the backward: it runs every op as it is, and looks at what it returned. It never outlives its step: what
ends it on another thread, or in the midst of an op, has it take itself off.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...compat import torch_private
from ...compat.host_copy import is_capturing
from ...compat.torch_dynamo import unseen_by_dynamo
from ...compat.torch_modes import schema_of
from ...compat.torch_modules import IMPLEMENTATION
from ...guard import Guard
from ..dispatch import tensors_in
from ..op_recorder import DetailRecorder, Op, Place, Read
from ..origin import Cause, Kinds, find_origin
from ..running_modules import ModuleTracker
from ..tensor_facts import classify

MAX_OPS: Final = 2000
"""Of one step; a loss of more is not watched any further. Each takes some 0.1 ms."""
_PART: Final = "armed loss"
_MODULE_CALL: Final[CodeType | None] = getattr(
    getattr(nn.Module, IMPLEMENTATION, nn.Module.__call__), "__code__", None
)


class RunningModules:
    """Reads from the frames of the script which module is running; nothing is put on any."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self._names = ModuleTracker(roots)

    @property
    def current(self) -> str | None:
        """Name of the innermost running module that has one; None outside of every module."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _MODULE_CALL:
                module = frame.f_locals.get("self")
                name = self._names.name_of(module) if isinstance(module, nn.Module) else None
                if name is not None:
                    return name
            frame = frame.f_back
        return None

    running_names: tuple[str | None, ...] = ()
    """Not told apart here."""


class LossWatch(DetailRecorder):
    """What a step's loss is made of; see `DetailRecorder` for what is kept of a bad op.

    Attributes:
        boundary: the number of the first autograd node after the forward.
        is_on: whether it is on its thread's stack, or was until it ended out of turn.
        is_over: whether ops are no longer looked at.
        spent_ns: what looking took.
    """

    def __init__(
        self, running: RunningModules, *, intended: Sequence[str], guard: Guard, budget_ns: int
    ) -> None:
        """Take who knows the modules, what `DetailRecorder` calls `intended`, and how long it may take."""
        super().__init__(
            deadline_s=math.inf,
            writable=(),
            bad={},
            tracker=running,
            outermost=frozenset(),
            intended=intended,
        )
        self.boundary = torch_private.next_sequence_number()
        self.is_on = self.is_over = False
        self.spent_ns = 0
        self._guard, self._budget_ns = guard, budget_ns
        self._thread = threading.get_ident()
        self._left_at: int | None = None
        self._forwards: list[range] = []
        """Numbers of the nodes that were made meanwhile, when it was left and entered again."""
        self._held: list[Tensor] = []
        """Bad values: memory that is freed and used again would be taken for them."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Have functions compiled as they are without it; what runs compiled is not seen."""
        return True

    def enter(self) -> bool:
        """Look at what this thread does from now on; False where somebody else's mode does already."""
        if self.is_over or not torch_private.push_mode(self):
            return False
        number = torch_private.next_sequence_number()
        if self._left_at is not None and number is not None:
            self._forwards.append(range(self._left_at, number))
        self.is_on = True
        return True

    def leave(self) -> None:
        """Look no further. From another thread it takes effect with the next op, as in the midst of one."""
        if not self.is_on:
            return
        self.is_on = False
        if threading.get_ident() != self._thread or not torch_private.remove_mode(self):
            self.is_over = True
        else:
            self._left_at = torch_private.next_sequence_number()

    def is_of_a_forward(self, number: int) -> bool:
        """Whether an autograd node was made while a forward ran, and nobody looked."""
        return any(number in forward for forward in self._forwards)

    @unseen_by_dynamo
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, and look at it."""
        kwargs = kwargs or {}
        if self.is_over or not self._is_plain(types):
            out = _call(func, args, kwargs)
        else:
            begun = time.perf_counter_ns()
            op = self._guard.run(_PART, self._before, func, args, kwargs)
            self.spent_ns += time.perf_counter_ns() - begun
            out = _call(func, args, kwargs)
            if op is not None:
                begun = time.perf_counter_ns()
                self._guard.run(_PART, self._after, *op, out)
                self.spent_ns += time.perf_counter_ns() - begun
        if self.is_over and threading.get_ident() == self._thread:
            self._leave_soon()
        return out

    def cause_of(self, tensor: Tensor) -> Cause | None:
        """See `DetailRecorder`; what was made out of sight counts as an argument: no op is blamed for it."""
        cause = super().cause_of(tensor)
        if cause is None or cause.producer is not None or cause.source != "outside":
            return cause
        return Cause(kinds=cause.kinds, producer=None, source="argument")

    def origin_of(self, losses: Iterable[Tensor]) -> int | None:
        """The op that made a loss bad, by its number; None where the loss is finite or no one op did."""
        causes = [cause for loss in losses if (cause := self.cause_of(loss)) is not None]
        verdict = find_origin(self.records, causes) if causes else None
        if verdict is None or (verdict.weak and not verdict.is_emptied):
            return None
        return verdict.record

    def place_of(self, number: int) -> Place | None:
        """Where the op ran that made the autograd node of a number."""
        return self._places.of_number(number)

    def _is_plain(self, types: Any) -> bool:
        """Whether this is the script's own thread, with tensors that have their values in memory."""
        return threading.get_ident() == self._thread and all(
            kind.__torch_dispatch__ is Tensor.__torch_dispatch__ for kind in types
        )

    def _before(self, func: Any, args: Any, kwargs: Any) -> tuple[Op, Read | None] | None:
        node = torch_private.current_node()
        has_graph = torch.is_grad_enabled()
        if node is None and not has_graph and self._tracker.current is not None:
            # The model is evaluated meanwhile.
            return None
        if self.count >= MAX_OPS or self.spent_ns > self._budget_ns or is_capturing():
            self.is_over = True
            return None
        info = self._infos.get(func) or self._inspect(func)
        if info.is_collective or torch_private.is_jit_tracing():
            # What a collective writes may be on its way still.
            return None
        index, self.count = self.count, self.count + 1
        inputs = list(tensors_in((*args, *kwargs.values())))
        own = None
        if node is None or has_graph:
            own = self._forward_place(info, node, inputs)
        op = Op(index, info, (func, args, kwargs), inputs, node, own)
        return op, self._read(op) if info.written else None

    def _after(self, op: Op, read: Read | None, out: Any) -> None:
        self._forget_rewritten(op.info, out, op.inputs)
        if op.info.is_view or op.info.is_uninitialised:
            return
        made = [tensor for tensor in tensors_in((out,)) if classify(tensor) != Kinds.NONE]
        if made:
            self._held += made
            self._record(op, read or self._read(op), out)

    def _leave_soon(self) -> None:
        """Leave at the next call or return of this thread: torch puts the mode back when an op is done."""
        if sys.getprofile() is not None:
            return

        def leave(_frame: FrameType, _event: str, _argument: Any) -> None:
            if torch_private.remove_mode(self):
                sys.setprofile(None)

        sys.setprofile(leave)


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an op. For a tensor that stands for a number a mode gets the number: not all ops take those."""
    if not any(isinstance(value, int | float | complex) for value in args):
        return func(*args, **kwargs)
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        tensors = _as_tensors(func, args)
        if tensors is None:
            raise
    return func(*tensors, **kwargs)


def _as_tensors(func: Any, args: Any) -> list[Any] | None:
    """The arguments with tensors for numbers where the op takes tensors; None where that changes nothing."""
    schema = schema_of(func)
    wanted = [] if schema is None else [str(argument.type) == "Tensor" for argument in schema.arguments]
    numbers = [
        position
        for position, (value, is_tensor) in enumerate(zip(args, wanted, strict=False))
        if is_tensor and isinstance(value, int | float | complex)
    ]
    if not numbers:
        return None
    replaced = list(args)
    for position in numbers:
        dtype = torch.float64 if isinstance(args[position], float) else None
        replaced[position] = torch.tensor(args[position], dtype=dtype)
    return replaced
