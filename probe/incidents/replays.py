"""When a step is replayed for the origin of an event, and what the event of a replay says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..detectors.advice import advice_for
from ..detectors.base import Finding
from ..forensics.incident_texts import JUDGED_LATE, has_origin
from ..settings.config import ProbeConfig
from ..wire import Event, Evidence
from .evidence import LateEvidence, StepEvidence
from .failure_texts import TEXT_LIMIT

if TYPE_CHECKING:
    from ..forensics.replay import Replay


def why_no_replay(
    finding: Finding, evidence: StepEvidence | LateEvidence, config: ProbeConfig, *, replays: int
) -> str | None:
    """Return why a step is not replayed for a finding; None where it is.

    Args:
        finding: at the step.
        evidence: what is at hand of it.
        config: of the session.
        replays: that there were so far.
    """
    if not has_origin(finding):
        return "this kind of event has no single origin"
    if not config.replay:
        return "replay is switched off (replay=False)"
    if replays >= config.max_replays:
        return f"the run's {config.max_replays} replays are used up (max_replays)"
    if isinstance(evidence, LateEvidence):
        return JUDGED_LATE
    return evidence.no_replay_reason


def replay_fields(cause: Event, replay: Replay) -> dict[str, Any]:
    """Return the fields of the event that says that a step was run again."""
    outcome = replay.fidelity if replay.origin is not None else f"{replay.fidelity}: {replay.reason}"
    return {
        "step": cause.step,
        "time": cause.time,
        "micro_step": cause.micro_step,
        "severity": "info",
        "message": (
            f"Step {cause.step} was replayed in {replay.duration_s * 1e3:.0f} ms to find the origin "
            f"of its {cause.kind} ({outcome}). The model's forward ran again; parameters, gradients, "
            "buffers and random state are as before."
        )[:TEXT_LIMIT],
        "evidence": Evidence(value=replay.duration_s),
        "origin": replay.origin,
        "advice": advice_for("replayed"),
        "ended": True,
    }


def locate_origin(*step: Any, **options: Any) -> Replay:
    """Replay a step."""
    # A healthy run replays nothing, and 20 modules stay unread. In the guard: the disk may be gone.
    from ..forensics import replay

    return replay.locate_origin(*step, **options)
