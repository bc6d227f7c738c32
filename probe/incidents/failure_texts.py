"""What the event of an exception that leaves the script says; of a lack of memory, what was alive."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

import msgspec
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from ..detectors.advice import advice_for
from ..detectors.advice_when import Known
from ..detectors.layers import in_words
from ..guard import Guard
from ..memory.live_memory import LiveMemory, describe_live_memory
from ..threads.stacks import stack_from_traceback
from ..threads.user_lines import at_line, user_line
from ..wire import Evidence, NoticedAt, Origin, Stacks
from ..wire.message_lines import NO_LINE
from .causes import find_cause
from .causes.scene import Cause
from .failure_locals import describe_locals
from .failure_part import failed_loss, failed_part
from .failure_place import arrives_late, blocking_command, failed_call

TEXT_LIMIT: Final = 4000
_LATE: Final = "a device reports an error some calls later, so that this line is only where it was noticed"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory could not be had, on a device or on the host."""
    # The CPU allocator raises a plain RuntimeError that names itself.
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


class _Told(msgspec.Struct):
    """What is found out about one exception."""

    lines: list[str]
    advice: list[str]
    evidence: Evidence = Evidence()
    origin: Origin | None = None

    def lead_with(self, cause: Cause, where: str) -> None:
        """Put the cause in front."""
        self.lines[0] = f"{cause.sentence[:1].upper()}{cause.sentence[1:]} {where}"
        self.advice = [*cause.advice]


def _known_of_memory(
    step: int, model: nn.Module | None, samples: int | None, live: LiveMemory | None
) -> Known:
    weights = [] if model is None else list(model.parameters())
    return Known(
        samples=samples,
        is_early=step == 0,
        is_on_device=any(weight.device.type != "cpu" for weight in weights) if weights else None,
        weights=frozenset(str(weight.dtype).removeprefix("torch.") for weight in weights),
        held_for_backward=None if live is None else live.may_be_for_backward(),
    )


def describe_failure(
    error: BaseException,
    trace: TracebackType | None,
    *,
    step: int,
    guard: Guard,
    model: nn.Module | None,
    optimizers: Sequence[Optimizer],
    samples: int | None,
) -> dict[str, Any]:
    """Return the fields of the event: kind, subject, severity, message, evidence, stacks, advice.

    Args:
        error: the exception.
        trace: its traceback.
        step: number of the step under way.
        guard: runs the look at what is alive.
        model: the naming root, and
        optimizers: those that update it: to say what was alive when memory ran out.
        samples: of the step under way, where they are known.
    """
    kind = "out_of_memory" if is_out_of_memory(error) else "exception"
    frames = stack_from_traceback(trace)
    is_late = arrives_late(error)
    text = "".join(traceback.format_exception_only(error)).strip()
    place = at_line(frames).replace(", ", ", noticed at ", 1) if is_late else at_line(frames)
    told = _Told([f"{text.splitlines()[0]} at step {step}{place}"], advice_for(kind))
    if kind == "out_of_memory":
        live = guard.run(
            "live_memory", describe_live_memory, error, trace, model=model, optimizers=optimizers
        )
        told.advice = advice_for(kind, _known_of_memory(step, model, samples, live))
        if live is not None:
            told.lines += live.lines(batch=samples)
            numbers = live.numbers()
            told.evidence = Evidence(value=live.asked_bytes, threshold=live.free_bytes, baseline=numbers)
    else:
        cause = guard.run(
            "cause", lambda: find_cause(error, trace, step=step, model=model, optimizers=optimizers)
        )
        if cause is not None:
            told.lead_with(cause, f"({type(error).__name__} at step {step}{place})")
        _add_place(told, error, trace, guard=guard, model=model, is_late=is_late)
    if is_late:
        told.lines.insert(1, f"{NO_LINE}{_LATE}. Run `{blocking_command(error)}` to see it.")
    line = user_line(frames) if is_late else None
    return {
        "origin": told.origin,
        "noticed_at": line and NoticedAt(file=line.file, line=line.line, function=line.function),
        "kind": kind,
        "subject": type(error).__name__,
        "severity": "critical",
        "message": "\n".join([*told.lines, text])[:TEXT_LIMIT],
        "evidence": told.evidence,
        "stacks": Stacks(training_loop=frames),
        "advice": told.advice,
    }


def _add_place(
    told: _Told,
    error: BaseException,
    trace: TracebackType | None,
    *,
    guard: Guard,
    model: nn.Module | None,
    is_late: bool,
) -> None:
    """Add in which module or part it was raised, and what the variables there were."""
    told.origin = None if is_late else guard.run("failed_call", failed_call, trace, model)
    if told.origin is not None:
        told.lines.append(f"Raised in {in_words(told.origin.module or '')}, by {told.origin.op}")
    elif not is_late:
        part = guard.run("failed_part", failed_part, error, trace)
        told.origin = guard.run("failed_loss", failed_loss, error, trace)
        told.lines += [] if part is None else [part]
    held = guard.run("locals", lambda: describe_locals(trace, with_values=not is_late))
    if held is not None:
        told.lines += held.lines
        told.evidence = Evidence(tensors=held.tensors)
