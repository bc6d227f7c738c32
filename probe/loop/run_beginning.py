"""Begins a run: what describes it, what writes it, and what looks at its training from the recorder's thread.

Called by `session_builder.py`, on the thread that watches a model.
"""

from __future__ import annotations

import os
from types import FrameType

import msgspec
import torch
from torch import nn

from ..actions.progress_board import ProgressBoard
from ..attach.layout import ModelLayout
from ..delivery.recorder.gap_watch import GapWatch
from ..delivery.recorder.hang_watch import HangWatch
from ..delivery.recorder.hyperparameters import hyperparameters_of
from ..delivery.recorder.recorder import Recorder
from ..delivery.recorder.run_facts import describe_run, notebook_cell
from ..delivery.recorder.run_id import group_of, run_id_of_thread
from ..settings.config import ProbeConfig, options_given
from ..wire import RunStart
from .control_watch import ControlWatch
from .progress_watch import ProgressWatch
from .step_tracker import StepTracker
from .tracker_parts import TrackerParts


def begin_run(
    model: nn.Module, layout: ModelLayout, config: ProbeConfig, frame: FrameType
) -> tuple[RunStart, Recorder]:
    """Describe the run of this process, and begin to write it; `frame` is one below the script's.

    Raises:
        JournalError: the spool cannot be written.
    """
    run = run_id_of_thread(config.run, os.environ)
    start = describe_run(
        run=run,
        name=config.name,
        level=config.level,
        group=group_of(run, notebook_cell()),
        model=layout.record.model,
        options=options_given(config),
        config=hyperparameters_of(config.config, model, frame),
        run_folder=config.spool.resolve() / run,
    )
    recorder = Recorder(config.spool, start, connect=config.connect, cap_bytes=config.journal_cap_bytes)
    return start, recorder


def member_start(start: RunStart, model: nn.Module, config: ProbeConfig, frame: FrameType) -> RunStart:
    """Describe a further model of a run: its hyperparameters and seed may be others."""
    names, source = hyperparameters_of(config.config, model, frame)
    return msgspec.structs.replace(
        start, config=dict(names), config_source=source, torch_seed=torch.initial_seed()
    )


def look_for(
    tracker: StepTracker,
    parts: TrackerParts,
    control: ControlWatch,
    progress: ProgressBoard,
    *,
    recorder: Recorder,
    start: RunStart,
    model: str,
    config: ProbeConfig,
) -> None:
    """Have the recorder's thread look at the training of a session."""

    def last_step() -> int | None:
        return tracker.last_step

    names = parts.logged.names
    gaps = GapWatch(start, model, recorder=recorder, names=names, last_step=last_step)
    recorder.last_words = gaps.last_words
    recorder.look_with(
        HangWatch(
            start,
            model,
            config=config,
            recorder=recorder,
            mark=tracker.mark,
            last_step=last_step,
            is_own=lambda: tracker.is_in_own_code,
        ),
        gaps,
        control,
        ProgressWatch(
            progress,
            last_step=last_step,
            epochs=lambda: tracker.epochs.count,
            place=tracker.epochs.place,
            first_step=config.first_step,
        ),
    )
