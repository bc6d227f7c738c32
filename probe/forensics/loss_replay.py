"""Runs a forward, the lines that made its loss, and the backward once more, to find the line that went wrong.

Called where a replay of the model alone has found that the fault lies outside of it. Claims nothing unless
the loss comes out as it was, bit by bit, and the model's outputs too as far as they are at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..errors import ReplayError
from .arguments import find_outputs
from .capture import RootCapture
from .dispatch import GuardedMode, OutputScan
from .loss_code import RESULT, find_loss_code
from .module_state import preserved, state_as_before
from .modules import ModuleTracker
from .origin import find_origin
from .outputs import compare_outputs
from .recorder import DetailRecorder, OpNote
from .rerun import ambient, autocast_off

_MAX_MODULES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFault:
    """The op that went wrong between the model's outputs and the loss, or in its derivative."""

    note: OpNote
    value_kind: str


class LossReplay:
    """The forwards of one backward together with the loss that was made of them.

    Args:
        roots: modules to name, and to put back as they were.
        captures: of the forwards, in the order of the calls; the newest knows where backward was called.
        loss: what backward was called on, as it was.
        frame: of the present call, inside the function that called backward.
        parameters: to send gradients to.
        deadline_s: on `time.monotonic`.

    Raises:
        ReplayError: the lines cannot be told, or would not give the same.
    """

    def __init__(
        self,
        roots: Sequence[nn.Module],
        captures: Sequence[RootCapture],
        *,
        loss: Tensor,
        frame: FrameType | None,
        parameters: Sequence[nn.Parameter],
        deadline_s: float,
    ) -> None:
        self._captures, self._loss, self._parameters = captures, loss, parameters
        self._deadline_s = deadline_s
        self._code = find_loss_code(captures[0].call_site, captures[-1].backward_site, frame)
        self._roots = [*roots, *_modules_in(self._code.namespace, roots)]
        self._tracker = ModuleTracker(roots)

    def find(self) -> LossFault | None:
        """Return the op that made the first bad value; None where that is not one op of the loss."""
        is_bad = not bool(torch.isfinite(self._loss).all())
        with self._restored() as writable:
            scan = OutputScan(deadline_s=self._deadline_s, writable=writable)
            loss = self._run(scan)
            if not is_bad:
                self._send_back(loss, scan)
            bad = scan.bad_ops()
        if not bad:
            return None
        with self._restored() as writable:
            recorder = DetailRecorder(
                deadline_s=self._deadline_s,
                writable=writable,
                bad=bad,
                tracker=self._tracker,
                outermost=frozenset({self._run.__code__, self._send_back.__code__}),
            )
            loss = self._run(recorder)
            ends = [loss] if is_bad else [g for g in self._send_back(loss, recorder) if g is not None]
            causes = [cause for end in ends if (cause := recorder.cause_of(end)) is not None]
            verdict = find_origin(recorder.records, causes)
        if verdict is None or verdict.record is None or verdict.weak:
            return None
        note = recorder.notes[verdict.record]
        if note.place.module is not None or not note.place.frames:
            return None
        return LossFault(note=note, value_kind=recorder.records[verdict.record].created)

    def _run(self, mode: GuardedMode) -> Tensor:
        """Run the cut out lines under the mode, and compare what they give with the step's own."""
        first = self._captures[0]
        if first.state is None:
            raise ReplayError(first.declined or "the capture was never finished")
        state = first.state._replace(autocast=()) if self._code.enters_blocks else first.state
        namespace = dict(self._code.namespace)
        watching = self._tracker.watching([capture.root for capture in self._captures])
        with ambient(state), self._tracker.running(), watching as returned, mode:
            exec(self._code.code, namespace)  # noqa: S102 - the script's own lines, as they ran before
        loss = namespace[RESULT]
        if not isinstance(loss, Tensor) or not _is_same(loss.detach(), self._loss):
            raise ReplayError("the lines of the loss give another loss than in the step")
        if len(returned) != len(self._captures):
            raise ReplayError("the lines of the loss call the model more or less often than in the step")
        for capture, output in zip(self._captures, returned, strict=True):
            check = compare_outputs(capture.outputs, find_outputs(output))
            if check.difference or not check.is_finite:
                raise ReplayError(check.difference or "the model's outputs are not finite")
        return loss

    def _send_back(self, loss: Tensor, mode: GuardedMode) -> Sequence[Tensor | None]:
        """Backward through loss and model; nothing accumulates."""
        mode.begin_backward()
        with autocast_off(), torch.enable_grad(), self._tracker.running(), mode:
            found: Sequence[Tensor | None] = torch.autograd.grad(
                loss, self._parameters, torch.ones_like(loss), allow_unused=True
            )
        return found

    @contextmanager
    def _restored(self) -> Iterator[list[Tensor]]:
        copies = [copy for capture in reversed(self._captures) for copy in capture.state_copies]
        with preserved(self._roots), state_as_before(self._roots, copies) as writable:
            yield writable


def _modules_in(namespace: Mapping[str, Any], roots: Sequence[nn.Module]) -> list[nn.Module]:
    """Modules that the lines may call besides the model: a loss that keeps buffers, say."""
    known = {id(module) for root in roots for module in root.modules()}
    values = [*namespace.values(), *getattr(namespace.get("self"), "__dict__", {}).values()]
    found = [value for value in values if isinstance(value, nn.Module) and id(value) not in known]
    return found[:_MAX_MODULES]


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
