"""What an event's message says: where the bad value began, in one line, and what follows. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ..detectors.base import Finding
from ..threads.user_lines import at_op_line
from ..wire import Event, is_in_derivative
from ..wire.message_lines import NO_LINE, NOT_DETERMINED
from .nonfinite_kinds import EITHER_KIND

if TYPE_CHECKING:
    from .replay import Replay

JUDGED_LATE: Final = (
    'the step was judged after its update, without waiting for the device (verdict="before_update" always '
    "waits). The next 20 steps are judged before theirs: if it happens again, its origin can be found"
)
REPLAYED_KINDS: Final = frozenset({"nonfinite_loss", "nonfinite_gradient"})
"""Kinds of events with a single origin, which a replay of the step can find."""


def has_origin(finding: Finding | Event) -> bool:
    """Whether a replay of its step can find where it began.

    Not of an overflow, unless that goes on for long, and not of an evaluation's loss.
    """
    if finding.kind == "amp_overflow":
        return finding.severity != "info"
    return finding.kind == "nonfinite_gradient" or (finding.kind, finding.subject) == (
        "nonfinite_loss",
        "loss",
    )


def describe(finding: Finding, step: int, replay: Replay | None, no_replay: str | None) -> str:
    """First line answers everything; the finding's own sentence and the replay's details follow."""
    if replay is not None and replay.origin is not None:
        lines = [_origin_line(finding, step, replay), finding.message]
        if replay.why_no_line:
            lines.append(f"{NO_LINE}{replay.why_no_line}.")
        return "\n".join([*lines, f"Replay of the step: {replay.fidelity}."])
    if not has_origin(finding):
        return finding.message
    reason = (no_replay or "the replay failed, see the training's log") if replay is None else replay.reason
    return f"{finding.message}\n{NOT_DETERMINED}{reason}."


def _origin_line(finding: Finding, step: int, replay: Replay) -> str:
    """Write "NaN first at step 400 in `blocks.3.norm`, train.py:26, forward (sqrt)".

    A bad input comes of no operation: "NaN first at step 400 in the input of the root module, train.py:26".
    """
    assert replay.origin is not None
    origin = replay.origin
    seen = "Inf" if finding.value is not None and math.isinf(finding.value) else "NaN"
    what = f"{seen} {'came in' if replay.entered else 'first'} at step {step}"
    if replay.value_kind not in (seen, EITHER_KIND):
        how = "came in" if replay.entered else "began"
        what = f"{seen} at step {step} {how} as {replay.value_kind}"
    line = at_op_line(replay.backward if is_in_derivative(origin, replay.backward) else replay.forward)
    if origin.phase == "input":
        return f"{what} in the input of {module_text(origin.module or '')}{line}"
    already = f": {replay.entered}" if replay.entered else ""
    if origin.phase == "loss" and origin.module is None:
        return f"{what} in the loss{line} ({origin.op}){already}"
    where = "outside the model" if origin.module is None else f"in {module_text(origin.module)}"
    return f"{what} {where}{line}, {origin.phase} ({origin.op}){already}"


def module_text(module: str) -> str:
    """Write a module's name in a sentence; the root's own is empty."""
    return f"`{module}`" if module else "the root module"
