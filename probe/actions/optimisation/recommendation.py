"""Which mode to take, and why, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .benchmark_result import ModeResult
from .modes import OptimizationMode

_WORTH_SAYING: Final = 0.1
"""Fraction of a step's memory from which on a slower mode is named for it."""


def recommend(results: Collection[ModeResult]) -> tuple[OptimizationMode, str]:
    """Return the mode with the largest speed-up that is certain and whose numbers are right, and why.

    A mode whose interval contains 1, whose numbers are out of their limits or not known, or that failed is
    never taken.
    """
    others = [one for one in results if one.mode != "none" and one.error is None]
    sound = [one for one in others if one.is_within]
    faster = [one for one in sound if one.is_faster]
    if faster:
        best = max(faster, key=lambda one: one.speedup or 0.0)
        reason = (
            f"It is {best.speedup:.2f} times as fast (between {best.speedup_low:.2f} and "
            f"{best.speedup_high:.2f}), and its numbers are within their limits."
        )
        return best.mode, " ".join([reason, *_compile_time(best), *_memory(sound, best)])
    reasons = ["No mode is certainly faster with numbers within their limits."]
    reasons += [_refusal(one) for one in others if one.is_faster and not one.is_within]
    return "none", " ".join([*reasons, *_memory(sound, None)])


def _refusal(one: ModeResult) -> str:
    problem = "out of their limits" if one.is_within is False else "not comparable"
    return f"{one.mode} would be faster, but its numbers are {problem}."


def _compile_time(best: ModeResult) -> list[str]:
    gained = (best.step_s or 0.0) * ((best.speedup or 1.0) - 1)
    if not best.compile_s or not gained or best.compile_s < 1:
        return []
    steps = best.compile_s / gained
    return [f"Its first step takes {best.compile_s:.3g} s longer, made up for after {steps:,.0f} steps."]


def _memory(sound: list[ModeResult], best: ModeResult | None) -> list[str]:
    """Name the mode that saves most memory, where that is more than the recommended one does."""
    saving = max(sound, key=lambda one: one.memory_saved or 0.0, default=None)
    least = max(_WORTH_SAYING, (best.memory_saved or 0.0) if best else 0.0)
    if saving is None or saving is best or (saving.memory_saved or 0.0) <= least:
        return []
    pace = "" if saving.speedup is None else f", at {saving.speedup:.2f} times the speed"
    return [
        f"Where memory is short, {saving.mode} needs {saving.memory_saved:.0%} less of it in a step{pace}."
    ]
