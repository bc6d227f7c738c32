"""Chooses what an event says of its meaning and of what to try, by the evidence.

Pure; called when an episode begins. The sentences are in `advice_texts.py` and `advice_ops.py`, what speaks
against one in `advice_when.py`, those of findings that know their cause in `cause_advice.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from .advice_texts import ADVICE, PHASES
from .advice_when import CHANGED, SORTED_DATA, Known, fits, is_unchanged
from .cause_advice import EDGE_BURST, NEW_TASK, UNSEEN_GRADIENTS

if TYPE_CHECKING:
    from .base import Finding

MAX_HINTS: Final = 8
_NOTHING: Final = Known()


def advice_of(finding: Finding, known: Known = _NOTHING) -> list[str]:
    """The same as `advice_for`, where the kind alone does not tell what is meant."""
    is_below = finding.value is not None and finding.value < min(finding.threshold or 0.0, 0.0)
    is_nan = None if finding.value is None or math.isfinite(finding.value) else math.isnan(finding.value)
    known = known._replace(
        severity=finding.severity, subject=finding.subject, is_below_zero=is_below, is_nan=is_nan
    )
    if finding.advice:
        return _hints(known) + list(finding.advice)
    if finding.kind == "data_gap":
        return list(UNSEEN_GRADIENTS)
    if finding.kind == "loss_spike" and finding.severity == "info":
        return list(NEW_TASK)
    if finding.kind == "gradient_explosion" and finding.severity == "info":
        return list(EDGE_BURST)
    return advice_for(finding.kind, known)


def advice_for(kind: str, known: Known = _NOTHING) -> list[str]:
    """Return what an event of this kind means and what to try, most specific first, at most 8 sentences.

    Args:
        kind: event kind.
        known: of the fault: a sentence that it speaks against is left out.

    Returns:
        Sentences; empty for a kind that explains itself.
    """
    of_kind = [sentence for sentence in ADVICE.get(kind, ()) if fits(sentence, known)]
    return (_of_changes(kind, known) + _hints(known) + of_kind)[:MAX_HINTS]


def _of_changes(kind: str, known: Known) -> list[str]:
    if kind not in ADVICE_OF_CHANGES:
        return []
    sorted_data = [SORTED_DATA] if known.has_one_class and is_unchanged(known) else []
    return [sentence for what, sentence in CHANGED.items() if what in known.changes] + sorted_data


ADVICE_OF_CHANGES: Final = frozenset(
    "nonfinite_loss nonfinite_gradient gradient_explosion loss_spike loss_divergence "
    "update_ratio_high".split()
)
"""Kinds that a change of the training explains."""


def _hints(known: Known) -> list[str]:
    of_op = [] if known.has_only_read else _op_hints(known.op or "")
    hints = [*of_op, PHASES.get(known.phase or "", "")]
    return [hint for hint in hints if hint and fits(hint, known)]


def _op_hints(op: str) -> list[str]:
    """The hints of the first entry whose word the op's bare name begins or ends with; none without one."""
    if not op:
        return []
    # Of operations that made what is not finite; no other advice needs them.
    from .advice_ops import OP_HINTS

    bare = _bare(op)
    for words, hints in OP_HINTS:
        if any(_matches(bare, word) for word in words):
            return list(hints)
    return []


def _bare(op: str) -> str:
    """`aten.sqrt_.default`, `aten::sqrt`, `SqrtBackward0`, `torch.sqrt` -> `sqrt`; nothing of a hook."""
    if "(hook" in op:
        return ""
    parts = [part for part in op.replace("::", ".").split(".") if part]
    if len(parts) >= 3 and parts[0] == "aten":
        parts = parts[:2]
    name = parts[-1] if parts else ""
    head, found, _ = name.partition("Backward")
    return (head if found else name).lower().strip("_")


def _matches(bare: str, word: str) -> bool:
    """Whether `word` stands in `bare` as a part of it: `_safe_softmax` has softmax, `logical_and` no log."""
    plain = word.replace("_", "")
    return plain == bare.replace("_", "") or f"_{word}_" in f"_{bare}_" or (len(plain) > 5 and plain in bare)
