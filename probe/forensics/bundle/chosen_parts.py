"""Chooses what of a failing step goes into its bundle, and copies it. Training thread, at a fault.

The model's state comes first, and takes what it takes: every update goes over it more often than a copy, and
after the update nobody has it. All else is copied up to a size and a time. What is beyond is left out, what
is worth least first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ...delivery.host_memory import read_memory
from ...errors import BundleError
from ...wire.findings import size_text
from .packed_step import FailingStep, PackedStep, Parts, pack_step

if TYPE_CHECKING:
    from .packer import CopiedTensors

COPY_BYTES: Final = 256 * 1024**2
"""The most that is copied of a step besides the model's state, unless somebody has asked for the bundle."""
COPY_S: Final = 0.05
"""The most of the training thread's processor time that this takes."""
_INPUTS_LEFT_OUT: Final = "its inputs were left out (bundle_inputs=False)"
_GET_ALL: Final = "`run.save_bundle()` or a watchpoint with the action bundle copies a whole step."


class Chosen(NamedTuple):
    """What goes into a bundle, copied."""

    packed: PackedStep | None = None
    tensors: CopiedTensors | None = None
    reason: str = "nothing of the step was at hand"
    """Why it cannot be replayed; "" where it can."""
    left_out: tuple[str, ...] = ()
    note: str = ""
    """What the event says of that; "" where nothing was too large."""


class _Limits(NamedTuple):
    """How much may be copied: in all, and besides the model's state; each with what is said above it."""

    whole: tuple[tuple[float, str], ...]
    rest: tuple[float, str]

    def of_whole(self, packed: PackedStep) -> str:
        """Why all of it together is too large; "" where it is not."""
        return self._above(packed.tensors.nbytes, self.whole)

    def why_above(self, packed: PackedStep) -> str:
        """Why it is too large; "" where it is not."""
        tensors = packed.tensors
        return self.of_whole(packed) or self._above(tensors.nbytes - tensors.state_nbytes, (self.rest,))

    @staticmethod
    def _above(size: int, limits: tuple[tuple[float, str], ...]) -> str:
        found = (f"{size_text(size)} are more than {what}" for most, what in limits if size > most)
        return next(found, "")


def choose_parts(step: FailingStep, *, with_inputs: bool, limit_bytes: int, is_asked: bool) -> Chosen:
    """Take in and copy as much of a step as it may wait for.

    Args:
        step: what went wrong.
        with_inputs: whether inputs and outputs of the model may go in.
        limit_bytes: of everything.
        is_asked: somebody has asked for the bundle: nothing else limits it.
    """
    reason = step.no_replay_reason or ("" if with_inputs else _INPUTS_LEFT_OUT)
    left_out = () if with_inputs else ("inputs and outputs",)
    parts = Parts(calls=not reason, batches=with_inputs)
    try:
        packed = pack_step(step, parts)
    except BundleError as error:
        reason, parts = reason or str(error), msgspec.structs.replace(parts, calls=False)
        try:
            packed = pack_step(step, parts)
        except BundleError as state_error:
            return Chosen(reason=reason, left_out=(*left_out, f"the model: {state_error}"))
    chosen = _copy_within(step, packed, parts, _limits(limit_bytes, is_asked=is_asked), is_asked=is_asked)
    return chosen._replace(reason=reason or chosen.reason, left_out=(*left_out, *chosen.left_out))


def _copy_within(
    step: FailingStep, packed: PackedStep, parts: Parts, limits: _Limits, *, is_asked: bool
) -> Chosen:
    """Copy what is packed, or as much of it as is within the limits."""
    from .packer import Copies

    copies = Copies(math.inf if is_asked else COPY_S)
    why = limits.of_whole(packed) and limits.of_whole(
        pack_step(step, msgspec.structs.replace(parts, calls=False, gradients=False, batches=False))
    )
    names, tensors = list[str](), None
    for name, less in _ways(parts, is_state_too_large=bool(why), has_batches=bool(packed.batches)):
        if less:
            names.append(name)
            parts = msgspec.structs.replace(parts, **less)
            packed = pack_step(step, parts)
        too_large = limits.why_above(packed)
        tensors = None if too_large else packed.tensors.copy(copies)
        if tensors is not None:
            break
        why = why or too_large or f"to copy them takes more than {COPY_S * 1e3:.0f} ms"
    if tensors is None or not (parts.state or parts.calls):
        return Chosen(None, None, f"{_ALL} were left out", (f"{_ALL}: {why}",), _note([_ALL], why, is_asked))
    is_whole = parts.state and "inputs" not in names
    reason = "" if is_whole else f"its {'inputs' if parts.state else 'weights'} were left out"
    left_out = [f"{', '.join(names)}: {why}"] if names else []
    return Chosen(packed, tensors, reason, (*left_out, *packed.without), _note(names, why, is_asked))


_ALL: Final = "all tensors"


def _ways(
    parts: Parts, *, is_state_too_large: bool, has_batches: bool
) -> Iterator[tuple[str, dict[str, bool]]]:
    """What is left out in turn, each time with what was left out before."""
    if is_state_too_large:
        yield "weights and gradients", {"state": False, "gradients": False}
    else:
        yield "", {}
    if has_batches:
        yield "the inputs of the steps before", {"batches": False}
    if not is_state_too_large:
        yield "gradients", {"gradients": False}
    if parts.calls:
        yield "outputs", {"outputs": False}
        yield "inputs", {"calls": False}


def _note(names: Sequence[str], why: str, is_asked: bool) -> str:
    """What the event says of what was left out."""
    if not names:
        return ""
    return f"Not in its bundle: {', '.join(names)} ({why}). {'' if is_asked else _GET_ALL}".rstrip()


def _limits(limit_bytes: int, *, is_asked: bool) -> _Limits:
    option = limit_bytes, f"bundle_limit_bytes ({size_text(limit_bytes)})"
    if is_asked:
        return _Limits((option,), (math.inf, ""))
    at_a_fault = COPY_BYTES, f"the {size_text(COPY_BYTES)} beside the weights that are copied at a fault"
    memory = read_memory()
    if memory is None:
        return _Limits((option,), at_a_fault)
    quarter = (memory.system_total_bytes - memory.system_used_bytes) // 4
    return _Limits((option, (quarter, f"a quarter of the free memory ({size_text(quarter)})")), at_a_fault)
