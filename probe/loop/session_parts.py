"""What a session is made of. Built by `session_builder.py`, read by `session.py`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..actions.progress_board import ProgressBoard
from ..delivery.recorder.recorder import Recorder
from ..delivery.recorder.schedule import Watch
from ..detectors.training_values import TrainingValues
from ..incidents.incidents import IncidentReporter
from ..memory.run_snapshots import RunSnapshots
from ..wire import RunStart
from .control_watch import ControlWatch
from .step_tracker import StepTracker


class SessionParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is made of, whole from the beginning."""

    run: str
    model: str
    """What events and layouts call it."""
    name: str
    """What the page calls the run."""
    recorder: Recorder
    incidents: IncidentReporter
    tracker: StepTracker
    snapshots: RunSnapshots
    training_values: TrainingValues
    progress: ProgressBoard
    """Takes what the script tells of its progress."""
    start: RunStart
    """What the records of the session say of it."""
    first_step: int = 0
    """Number of its first step."""
    watches: tuple[Watch, ...] = ()
    """Those that look for this session alone."""
    taker: Callable[[], object] = lambda: None
    """What it has given to `Recorder.call_before_taking`."""
    control: ControlWatch | None = None
    """Follows what is asked from outside."""
