"""Builds a session whole, bottom-up: nobody gets a part after it was made, and the hooks are installed last.

Called by `session.py` on the thread that watches a model.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from torch import nn
from torch.optim.optimizer import Optimizer

from ..actions.profiling.profile_desk import ProfileDesk
from ..actions.profiling.profile_parts import ProfileMarks, ProfileParts
from ..actions.progress_board import ProgressBoard
from ..actions.rules.entry_points import add_installed_rules
from ..actions.rules.rule_book import RuleBook
from ..actions.step_hooks import StepHooks
from ..actions.tracked_watch import TrackedWatch
from ..attach.hooks import Attachment
from ..attach.layout import ModelLayout, describe_model, unwrap
from ..attach.observation.gradient_meters import GradientMeters
from ..attach.watched_model import WatchedModel
from ..delivery.recorder.late_parts import LateParts
from ..delivery.recorder.recorder import Recorder
from ..delivery.recorder.start_facts_watch import StartFactsWatch
from ..detectors.sampled_bank import SampledDetectorBank
from ..errors import JournalError
from ..guard import Guard, outcome_of
from ..incidents.incidents import IncidentReporter
from ..measure.update_meter import UpdateMeter
from ..memory.leak_watch import LOOKS, LeakWatch
from ..memory.run_snapshots import RunSnapshots
from ..settings.config import ProbeConfig
from ..step.step_meters import StepMeters
from ..threads.pieces import give_way
from ..threads.watchdog import LoopMark
from .attention import Attention
from .control_watch import ControlWatch
from .early_watch import EarlyWatch
from .epochs import EpochWatch
from .evaluation import EvaluationLoss
from .failed_forward import FailedForward
from .fast_path import FastPath
from .followed_modules import FollowedModules
from .followed_records import FollowedRecords
from .followed_training import FollowedTraining
from .hook_watch import HookWatch
from .loader_watch import LoaderWatch
from .logged_values import LoggedValues
from .measure_schedule import MeasureSchedule
from .member_series import Place
from .news_watch import Lookout, NewsWatch
from .run_beginning import begin_run, look_for, member_start
from .sample_judge import SampleJudge
from .session_parts import SessionParts
from .step_judge import StepJudge
from .step_measures import StepMeasures
from .step_pipeline import StepPipeline
from .step_tracker import StepTracker
from .step_writer import StepWriter
from .tracker_parts import TrackerParts
from .training_loop import TrainingLoop
from .unused_forwards import UnusedForwards
from .verdict_timing import VerdictTiming

if TYPE_CHECKING:
    from .followed_late import LateFollowing


_logger = logging.getLogger(__name__)


def build_if_possible(
    model: nn.Module,
    optimizer: Optimizer | None,
    config: ProbeConfig,
    guard: Guard,
    place: Place | None = None,
) -> SessionParts | None:
    """As `build_session`, but what else fails, as the model's own code may, is logged: then return None."""
    parts, error = outcome_of(build_session, model, optimizer, config, guard, place=place)
    if isinstance(error, ValueError):
        raise error
    if error is not None:
        failed = f"attaching to `{type(model).__name__}` failed ({type(error).__name__}: {error})"
        why = str(error) if isinstance(error, JournalError) else failed
        _logger.error("nanscope: this run is not recorded: %s", why)
    return parts


def build_session(
    model: nn.Module,
    optimizer: Optimizer | None,
    config: ProbeConfig,
    guard: Guard,
    *,
    place: Place | None = None,
) -> SessionParts:
    """Build a session's parts.

    Args:
        model: the model, in its wrapper, if any.
        optimizer: that was given to `watch`.
        config: the options.
        guard: of the session.
        place: where a further member of a run is recorded; None begins a run.

    Raises:
        ValueError: the model has no trainable parameters.
        JournalError: the spool cannot be written.
    """
    if place is None:
        layout = describe_model(model, name=config.model_name or "")
        start, recorder = begin_run(model, layout, config, sys._getframe(1))
    else:
        start, recorder = member_start(place.start, model, config, sys._getframe(1)), place.recorder
        layout = describe_model(model, number=place.layout, name=start.model, member=start.member)
        config = dataclasses.replace(config, first_step=place.first_step)
    before, name = tuple(recorder.watches), layout.record.model
    with ExitStack() as unfinished:
        # A part that cannot be built must not leave the recorder's thread behind.
        if place is None:
            unfinished.callback(recorder.close, outcome="finished", last_step=None)
        else:
            recorder.event(start)
        recorder.event(layout.record)
        incidents = IncidentReporter(start, name, config=config, recorder=recorder, guard=guard)
        parts = _tracker_parts(
            model, layout, optimizer, config=config, recorder=recorder, incidents=incidents, guard=guard
        )
        tracker, progress = StepTracker(parts, guard), ProgressBoard()
        control = ControlWatch(recorder, tracker, incidents, parts.snapshots)
        look_for(tracker, parts, control, progress, recorder=recorder, start=start, model=name, config=config)
        # Not what looks for the whole run.
        watches = tuple(watch for watch in recorder.watches if watch not in before)
        if place is None:
            recorder.look_with(StartFactsWatch.of(recorder.folder.parent, start))
        add_installed_rules(parts.rules.add_rule, guard)
        tracker.start()
        unfinished.pop_all()
    return SessionParts(
        run=start.run,
        model=name,
        name=start.name,
        recorder=recorder,
        incidents=incidents,
        tracker=tracker,
        snapshots=parts.snapshots,
        training_values=parts.training_values,
        progress=progress,
        control=control,
        start=start,
        first_step=config.first_step,
        watches=watches,
        taker=parts.taker,
    )


def _tracker_parts(
    root: nn.Module,
    layout: ModelLayout,
    optimizer: Optimizer | None,
    *,
    config: ProbeConfig,
    recorder: Recorder,
    incidents: IncidentReporter,
    guard: Guard,
) -> TrackerParts:
    """Build what follows the steps: measure -> judge -> write, the loop, then what wants to be called."""
    model = WatchedModel(unwrap(root), layout, optimizer)
    hooks, meters = StepHooks(), StepMeters(guard, recorder)
    updates, turns = UpdateMeter(), GradientMeters()
    schedule = MeasureSchedule(
        config.settings,
        guard=guard,
        incidents=incidents,
        releases={"update_ratios": updates.release, "gradient_cosine": turns.release},
        first_step=config.first_step,
    )
    measures = StepMeasures(
        model,
        schedule,
        meters,
        updates=updates,
        turns=turns,
        hooks=hooks,
        black_box=incidents.black_box,
        guard=guard,
    )
    recovery = None
    if config.recovery is not None:
        from ..actions.recovery.step_recovery import StepRecovery

        recovery = StepRecovery.of(
            config, model, incidents=incidents, guard=guard, optimizers=lambda: measures.optimizers
        )
    bank = SampledDetectorBank(config.sampled_thresholds, pause=give_way)
    incidents.forget_also.append(bank.anomaly_rate.clear)
    bank.anomaly_rate.are_explained = incidents.warned.are_explained
    samples = SampleJudge(bank, incidents, recorder.processors.share)
    timing = VerdictTiming(config, model, schedule)
    writer, looks = StepWriter(model, recorder), LateParts(LOOKS, recorder.do_once)
    judge = StepJudge(
        model,
        schedule,
        samples,
        timing,
        LeakWatch.of_this_process(can_look=looks.are_loaded, limits=config.resource_limits),
        mode=config.mode,
        judges_each=recovery is not None and recovery.judges_explosions,
        incidents=incidents,
        hooks=hooks,
        write=writer.write,
        guard=guard,
    )
    pipeline = StepPipeline(
        measures,
        judge,
        writer,
        schedule=schedule,
        meters=meters,
        hooks=hooks,
        incidents=incidents,
        guard=guard,
        first_step=config.first_step,
    )
    attachment = Attachment([root])
    loop = TrainingLoop(
        model, measures, pipeline, timing, attachment, hooks=hooks, config=config, recorder=recorder
    )
    attention, failed, mark = Attention(schedule, attachment), FailedForward(), LoopMark()

    def wants_every_step() -> bool:
        raises = config.mode == "raise"
        return hooks.want_steps or raises or not model.tells_of_updates or attention.is_elsewhere

    def measure_late() -> LateFollowing:
        # On CUDA as a rule, and there alone.
        from .followed_late import LateFollowing

        return LateFollowing(
            model, schedule, timing, loop, pipeline, black_box=incidents.black_box, guard=guard
        )

    records = FollowedRecords(judge.queue, samples, incidents=incidents, guard=guard)
    # First what C has written is queued, then what is queued is judged: in one wake.
    recorder.look_with(records, judge.queue)
    taker = partial(records.take, is_recorders_thread=True)
    recorder.call_before_taking(taker)
    lookout = Lookout(judge, schedule, mark)
    modules = FollowedModules(model, measures, schedule, recorder=recorder, records=records, guard=guard)
    followed = FollowedTraining(
        model,
        measures,
        schedule,
        meters,
        loop,
        pipeline,
        recorder=recorder,
        guard=guard,
        black_box=incidents.black_box,
        modules=modules,
        records=records,
        wants_every_step=wants_every_step,
        lookout=lookout,
        failed=failed,
        timing=timing,
        measure_late=measure_late,
        input_limit_bytes=config.black_box_mib * 2**20 // max(config.black_box_steps, 1),
        output_limit_bytes=config.capture_limit_bytes,
    )
    fast = FastPath(followed, guard, size_cap_bytes=config.capture_limit_bytes)

    incidents.forget_also += (judge.forget_fault, fast.ask_for_a_look)

    def last_step() -> int | None:
        following = fast.next_step
        return pipeline.last_step if following is None else following - 1

    recorder.look_with(
        NewsWatch(
            judge.queue,
            fast,
            judge,
            recorder,
            lookout,
            loss_bound=incidents.detectors.loss_bound,
            last_step=last_step,
        )
    )
    incidents.optimizers = lambda: measures.optimizers
    logged = LoggedValues(loop, pipeline, fast, hooks)
    EarlyWatch(
        model,
        bank,
        lambda: measures.optimizers,
        hooks=hooks,
        zeros=incidents.detectors.zeros,
        note_classes=incidents.note_classes,
        loss_bound=incidents.detectors.loss_bound,
        on_news=samples.look_for_news,
        guard=guard,
    )
    if recovery is not None:
        recovery.add_to(hooks)
    if config.input_policy is not None or config.output_policy is not None:
        from ..actions.recovery.enforcement import Enforcement

        policies = Enforcement(
            config.input_policy,
            config.output_policy,
            model=layout.record.model,
            incidents=incidents,
            guard=guard,
        )
        policies.add_to(hooks)
    unused = UnusedForwards(model, incidents, hooks=hooks, guard=guard)
    EvaluationLoss(
        hooks,
        log=logged.log,
        on_nonfinite=lambda: unused.look_at_buffers(last_step() or config.first_step),
        guard=guard,
    )
    snapshots = RunSnapshots(recorder, every=config.memory_snapshot_every, last_step=last_step)
    hook_watch = HookWatch(model, incidents, last_step=last_step, guard=guard)
    recorder.look_with(snapshots, TrackedWatch(last_step=last_step), hook_watch)
    LoaderWatch(incidents, attention, last_step=last_step, hooks=hooks, guard=guard)
    profiles = ProfileDesk(
        ProfileParts(
            model,
            meters,
            recorder=recorder,
            incidents=incidents,
            marks=ProfileMarks(hooks, incidents, logged.log),
            hooks=hooks,
        ),
        is_off=lambda: schedule.is_off,
        ask_for_a_look=fast.ask_for_a_look,
    )
    return TrackerParts(
        incidents=incidents,
        model=model,
        schedule=schedule,
        measures=measures,
        timing=timing,
        pipeline=pipeline,
        loop=loop,
        hooks=hooks,
        phases=meters.phases,
        attachment=attachment,
        attention=attention,
        failed=failed,
        fast=fast,
        records=records,
        logged=logged,
        rules=RuleBook(
            model,
            meters,
            config=config,
            recorder=recorder,
            incidents=incidents,
            hooks=hooks,
            profile=profiles.ask,
            guard=guard,
        ),
        profiles=profiles,
        epochs=EpochWatch(
            schedule,
            meters,
            attention,
            last_step=last_step,
            log=logged.log,
            on_end=snapshots.end_epoch,
            guard=guard,
            first_step=config.first_step,
        ),
        snapshots=snapshots,
        training_values=bank.training_values,
        mark=mark,
        taker=taker,
    )
