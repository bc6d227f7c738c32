"""What a traced step says of itself, as one process writes it and the other reads it. Loads no torch."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor, by what its bytes come to."""

    key: str
    """What it is asked for by."""
    name: str
    """In words: "parameter 0.weight", "argument input"."""
    dtype: str
    shape: tuple[int, ...]
    digest: str
    """Of its bytes; empty where they cannot be read, and are not compared."""

    @property
    def identity(self) -> tuple[str, tuple[int, ...], str]:
        """Equal for tensors that are the same to the last bit."""
        return self.dtype, self.shape, self.digest


class TracedOp(msgspec.Struct, frozen=True, kw_only=True):
    """One op that computes something, in the order in which they ran."""

    call: int
    """Which call of the model, from 0, in the step."""
    op: str
    phase: str
    """`forward` or `backward`; a derivative has the place of the op that it belongs to."""
    module: str | None
    """Qualified name; None outside of every module."""
    file: str
    line: int
    """0 where it is not known."""
    function: str
    reads: tuple[str, ...]
    """Which values from outside it reads, as `Value.name`."""
    outputs: tuple[Value, ...]


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A whole step."""

    run: str
    step: int
    values: tuple[Value, ...]
    """What the step starts from: parameters, buffers, arguments, random states, gradients of the outputs."""
    ops: tuple[TracedOp, ...]
    difference: str = ""
    """How its outputs differ from those of the run; then the code here is not what ran."""
    notes: tuple[str, ...] = ()
