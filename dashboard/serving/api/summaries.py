"""Counts of a run for the routes that answer them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from probe.wire import Event
from probe.wire.run_summary import CLEARED, RunCounts, count_run

from ...store.protocol import RankSummary

GENERAL_KINDS: Final = frozenset(
    """memory_leak hang killed exception out_of_memory high_resource_use performance_degradation
    high_anomaly_rate data_gap level_changed throttled replayed recovery snapshot profile control
    custom""".split()
)
"""Events about the process, the probe or what the script reports: not about the training's numbers."""
DIFFUSION_PREFIX: Final = "diffusion"
"""Kinds that begin so are about denoising steps."""


def count_rank(events: Iterable[Event], rank: RankSummary, *, is_whole: bool = False) -> RunCounts:
    """Count one rank's events, since the newest clearing or all of them."""
    return count_run(events, steps_of(rank), is_whole=is_whole)


def steps_of(rank: RankSummary) -> int:
    """Return how many steps a rank has made, by the number of its newest one; a resumed run counts all."""
    return 0 if rank.last_step is None else rank.last_step + 1


def debug_summary(events: Sequence[Event], rank: RankSummary) -> dict[str, Any]:
    """Return the counts by what events are about: each event is counted under one of the three.

    The share of steps with an anomaly is that of `count_rank`, whatever the anomaly is about.
    """
    training = _counted(events, rank, _is_about_training)
    return {
        "training_debugger": {
            "total_anomalies": training.total_anomalies,
            "debug_history_length": training.events,
            "total_steps": training.total_steps,
            "anomaly_rate": count_rank(events, rank).anomaly_rate,
            "gradient_explosion_rate": training.gradient_explosion_rate,
        },
        "diffusion_debugger": _debugger(_counted(events, rank, _is_about_diffusion)),
        "general_debugger": _debugger(_counted(events, rank, _is_general)),
    }


def _counted(events: Sequence[Event], rank: RankSummary, is_meant: Callable[[Event], bool]) -> RunCounts:
    # Counts begin anew at a `cleared`, whatever they are about.
    return count_rank([event for event in events if is_meant(event) or event.kind == CLEARED], rank)


def _debugger(counts: RunCounts) -> dict[str, int]:
    return {"total_anomalies": counts.total_anomalies, "debug_history_length": counts.events}


def _is_about_diffusion(event: Event) -> bool:
    return event.kind.startswith(DIFFUSION_PREFIX)


def _is_general(event: Event) -> bool:
    return event.kind in GENERAL_KINDS


def _is_about_training(event: Event) -> bool:
    return not (_is_general(event) or _is_about_diffusion(event))
