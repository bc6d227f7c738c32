"""What moved before an event, and what was set otherwise. Asked when an event begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..detectors.advice_when import Known
from ..detectors.changes import Change
from ..detectors.why import RecentSteps, chain, in_order
from ..forensics.bundle.black_box import BlackBox
from .evidence import LateEvidence, StepEvidence

if TYPE_CHECKING:
    from ..forensics.replay import Replay


def set_before(
    recent: RecentSteps, box: BlackBox, step: int, evidence: StepEvidence | LateEvidence
) -> list[Change]:
    """Return what the script or a person had set otherwise shortly before a step."""
    captures = () if isinstance(evidence, LateEvidence) else evidence.captures
    newest = [held for capture in captures if (held := capture.arguments) is not None]
    size = box.size_change(step, newest)
    return [*recent.changes(step), *([] if size is None else [size])]


def moved_before(
    recent: RecentSteps, box: BlackBox, step: int, evidence: StepEvidence | LateEvidence
) -> str | None:
    """Return the line; None where nothing but the event's own series moved."""
    changes = set_before(recent, box, step, evidence)
    return chain(in_order([*recent.explain(step), *box.moves(step)]), changes)


def known_of(replay: Replay | None, changes: Sequence[Change] | None) -> Known:
    """Return what the advice of an event is chosen by.

    Args:
        replay: of the step, if there was one.
        changes: what was set otherwise before it; None where that could not be said.
    """
    known = Known(changes=frozenset(change.what for change in changes or ()))
    if replay is None or replay.origin is None:
        return known
    reads = [tensor for tensor in replay.tensors if tensor.role != "output"]
    sizes = [abs(value) for tensor in reads for value in (tensor.min, tensor.max) if value is not None]
    return known._replace(
        phase=replay.origin.phase,
        op=replay.origin.op,
        dtypes=frozenset(tensor.dtype.removeprefix("torch.") for tensor in replay.tensors),
        largest=max(filter(math.isfinite, sizes), default=None),
        has_only_read=replay.origin.phase != "input" and (bool(replay.entered) or any(t.nan for t in reads)),
    )
