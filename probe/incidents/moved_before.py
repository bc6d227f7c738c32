"""One line on what moved before an event, and what was set otherwise. Asked when an event begins."""

from __future__ import annotations

from ..detectors.why import RecentSteps, chain, in_order
from ..forensics.bundle.black_box import BlackBox
from .evidence import LateEvidence, StepEvidence


def moved_before(
    recent: RecentSteps, box: BlackBox, step: int, evidence: StepEvidence | LateEvidence
) -> str | None:
    """Return the line; None where nothing but the event's own series moved."""
    captures = () if isinstance(evidence, LateEvidence) else evidence.captures
    newest = [held for capture in captures if (held := capture.arguments) is not None]
    size = box.size_change(step, newest)
    changes = [*recent.changes(step), *([] if size is None else [size])]
    return chain(in_order([*recent.explain(step), *box.moves(step)]), changes)
