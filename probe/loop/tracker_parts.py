"""What a step tracker is given: the parts that follow one model's training, each of them whole.

Made by `session_builder.py`, read by `step_tracker.py`; the classes say what each of them does.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..actions.profiling.profile_desk import ProfileDesk
from ..actions.rules.rule_book import RuleBook
from ..actions.step_hooks import StepHooks
from ..attach.hooks import Attachment
from ..attach.watched_model import WatchedModel
from ..detectors.training_values import TrainingValues
from ..incidents.incidents import IncidentReporter
from ..memory.run_snapshots import RunSnapshots
from ..step.phase_times import PhaseTimes
from ..threads.watchdog import LoopMark
from .attention import Attention
from .epochs import EpochWatch
from .failed_forward import FailedForward
from .fast_path import FastPath
from .followed_records import FollowedRecords
from .logged_values import LoggedValues
from .measure_schedule import MeasureSchedule
from .step_measures import StepMeasures
from .step_pipeline import StepPipeline
from .training_loop import TrainingLoop
from .verdict_timing import VerdictTiming


class TrackerParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one session, in the order in which they are made."""

    model: WatchedModel
    schedule: MeasureSchedule
    measures: StepMeasures
    timing: VerdictTiming
    pipeline: StepPipeline
    loop: TrainingLoop
    hooks: StepHooks
    phases: PhaseTimes
    attachment: Attachment
    attention: Attention
    failed: FailedForward
    fast: FastPath
    records: FollowedRecords
    logged: LoggedValues
    incidents: IncidentReporter
    rules: RuleBook
    profiles: ProfileDesk
    epochs: EpochWatch
    snapshots: RunSnapshots
    training_values: TrainingValues
    mark: LoopMark
    taker: Callable[[], object]
    """Takes what C has written before it leaves the ring."""
