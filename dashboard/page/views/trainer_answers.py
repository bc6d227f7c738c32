"""What trainers have answered to a request, in sentences that stand beside its control. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from probe.delivery.control.control_relay import PATIENCE_S

from ...ingest.control_desk import TrainerAnswer

_RANKS: Final = 5
"""Ranks that a sentence names."""


def answer_text(answers: Sequence[TrainerAnswer], *, done: str) -> str:
    """Say who has accepted, who refuses and why, and who has not answered.

    Args:
        answers: One for each trainer, by rank; not empty.
        done: What has been done, a sentence without its period, where somebody has accepted.
    """
    accepted = [one for one in answers if one.answer is not None and not one.answer.problem]
    refused: dict[str, list[int]] = {}
    for one in answers:
        if one.answer is not None and one.answer.problem:
            refused.setdefault(one.answer.problem, []).append(one.rank)
    silent = [one.rank for one in answers if one.answer is None]
    parts = []
    if accepted:
        of = f", on {len(accepted):,} of {len(answers):,} ranks" if len(accepted) < len(answers) else ""
        parts.append(f"{done}{of}.")
    for problem, ranks in refused.items():
        who = f" by {_ranks(ranks)}" if len(answers) > 1 else ""
        parts.append(f"Refused{who}: {problem.rstrip('.')}.")
    if silent:
        who = f" from {_ranks(silent)}" if len(answers) > 1 else ""
        parts.append(f"No answer{who} within {PATIENCE_S:g} s: the training is stopped, or busy in C code.")
    return " ".join(parts)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_RANKS]))
    more = f" and {len(ranks) - _RANKS:,} more" if len(ranks) > _RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
