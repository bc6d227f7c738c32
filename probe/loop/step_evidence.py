"""What is at hand of a step for its replay and its bundle; made by the judge on the training thread."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..attach.observation.module_statistics import ModuleStatistics
from ..attach.watched_model import WatchedModel
from ..forensics.bundle.black_box import BlackBox
from ..forensics.capture import RootCapture
from ..incidents.evidence import StepEvidence
from ..step.frames import MeasuredStep
from ..step.open_step import FinishedStep, OpenStep, why_not_replayable


def evidence_of_step(
    finished: FinishedStep,
    measured: MeasuredStep,
    *,
    model: WatchedModel,
    black_box: BlackBox,
    with_context: bool,
) -> StepEvidence:
    """Return what there is of a step whose update has not been made.

    Args:
        finished: the step.
        measured: its numbers; its frame is in no journal yet.
        model: that was trained.
        black_box: has what the steps before were called with.
        with_context: whether what the modules returned is told, line by line.
    """
    opened, modules = finished.opened, measured.modules
    return StepEvidence(
        root=model.root,
        captures=[capture for capture in opened.captures if not capture.is_abandoned],
        parameters=model.parameters,
        given=opened.given,
        loss=opened.loss,
        stage=finished.stage,
        was_scaled=finished.was_scaled,
        loss_scale=measured.scalars.get("amp_scale"),
        micro_step=opened.backwards - 1 if opened.backwards > 1 else None,
        no_replay_reason=why_not_replayable(opened) or model.no_replay_reason,
        context=_context_of(modules) if modules and with_context else (),
        frames=lambda: [measured.build()],
        past_batches=black_box.before(measured.step),
    )


def evidence_of_exception(
    opened: OpenStep, failed: RootCapture | None, *, model: WatchedModel, black_box: BlackBox
) -> StepEvidence:
    """Return what there is of a step that ends in an exception.

    Args:
        opened: what was gathered of it.
        failed: of the forward that raised it, where one did.
        model: that was trained.
        black_box: has what the steps before were called with.
    """
    captures = [capture for capture in opened.captures if not capture.is_abandoned]
    return StepEvidence(
        root=model.root,
        captures=captures if failed is None else [*captures, failed],
        parameters=model.parameters,
        loss=opened.loss,
        stage="local",
        was_scaled=False,
        micro_step=None,
        no_replay_reason=model.no_replay_reason,
        past_batches=black_box.before(sys.maxsize),
    )


def _context_of(modules: ModuleStatistics) -> Sequence[str]:
    # For events alone.
    from ..attach.observation.context import describe_outputs

    return describe_outputs(modules)
