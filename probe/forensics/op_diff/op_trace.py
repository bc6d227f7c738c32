"""The dispatch mode that notes what each op of a replayed step gives: a digest of its bytes, and its place.

Active on the replaying thread, and on autograd's device threads during a backward on CUDA.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterable
from typing import Any, Final

import torch
from torch import Tensor

from ...compat import torch_engine, torch_memory, torch_nodes
from ...threads.stacks import format_frames
from ...threads.user_lines import op_line
from ..dispatch import OpInfo, tensors_in
from ..op_recorder import DetailRecorder, Op
from .trace_records import TracedOp, Value

FROM_THE_LOSS: Final = "from the loss"
_DIGEST_BYTES: Final = 16


class OpTrace(DetailRecorder):
    """Records every op; `kept` has the values that were asked for."""

    def __init__(self, *, call: int, first: int, keep: Collection[str], **options: Any) -> None:
        """Begin a call of the model.

        Args:
            call: its number in the step.
            first: number of its first op.
            keep: keys of the outputs whose values are wanted.
            options: of `DetailRecorder`.
        """
        super().__init__(bad={}, **options)
        self.ops: list[TracedOp] = []
        self.kept: dict[str, Tensor] = {}
        self._call, self._first, self._keep = call, first, keep

    def observe(self, index: int, info: OpInfo, call: Any, inputs: list[Tensor]) -> Any:
        """Run the op, and take down what comes out unless it computes nothing."""
        func, args, kwargs = call
        node = torch_engine.current_node()
        backward = node is not None and not torch.is_grad_enabled()
        if backward and torch_nodes.is_custom_node(node):
            backward = not torch_engine.is_in_forward(sys._getframe(1))
        if node is not None:
            self._places.enter_backward()
        own = None if backward else self._forward_place(info, node, inputs)
        reads = tuple(name for tensor in inputs if (name := self._source_of(tensor)))
        out = func(*args, **kwargs)
        self._forget_rewritten(info, out, inputs)
        if not (info.is_view or info.is_uninitialised):
            self._take(Op(index, info, call, inputs, node, own), reads, out)
        return out

    def take_gradients(self, gradients: Iterable[Tensor]) -> None:
        """Note which values come from outside of the model."""
        gradients = list(gradients)
        super().take_gradients(gradients)
        for tensor in gradients:
            if key := torch_memory.storage_key(tensor):
                self._memory.sources[key] = ("gradient", FROM_THE_LOSS)

    def _source_of(self, tensor: Tensor) -> str:
        """The name of what no op of the replay has made; "" of what one has."""
        key = torch_memory.storage_key(tensor)
        source, name = self._memory.sources.get(key, ("outside", ""))
        return f"{source} {name}" if name and key not in self._memory.writers else ""

    def _take(self, op: Op, reads: tuple[str, ...], out: Any) -> None:
        note = self._note(op, [])
        line = op_line(format_frames(note.place.frames))
        number = self._first + len(self.ops)
        outputs = []
        for position, tensor in enumerate(tensors_in((out,))):
            key = f"op {number} {position}"
            outputs.append(value_of(tensor, key=key, name=f"output {position}"))
            if key in self._keep:
                self.kept[key] = tensor.detach().clone()
            self._memory.writers[torch_memory.storage_key(tensor)] = op.index
        self.ops.append(
            TracedOp(
                call=self._call,
                op=op.info.name,
                phase="backward" if note.backward else "forward",
                module=note.place.module,
                file="" if line is None else line.file,
                line=0 if line is None else line.line,
                function="" if line is None else line.function,
                reads=reads,
                outputs=tuple(outputs),
            )
        )


def value_of(tensor: Tensor, *, key: str, name: str) -> Value:
    """Return what is said of a tensor. Synchronises."""
    return Value(
        key=key,
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        digest=_digest(tensor),
    )


def _digest(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return ""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
