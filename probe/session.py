"""`Probe`, the handle that `watching.watch` returns: one session from its attaching to its end.

Once it is attached, nothing of ours reaches the training script (see `guard.py`), except `AnomalyError` where
`mode="raise"` asked for it. Used on the thread that trains.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from .actions import running_sessions as registry
from .actions.analysis.analysis_calls import AnalysisCalls
from .actions.analysis.memory_calls import MemoryCalls
from .actions.analysis.report_calls import ReportCalls
from .actions.event_calls import EventCalls
from .actions.notebook.notebook_calls import NotebookCalls
from .actions.optimisation.optimisation_calls import OptimizationCalls
from .actions.own_report import own_report
from .actions.profiling.profile_calls import ProfileCalls
from .actions.progress_board import ProgressBoard
from .actions.progress_calls import recording
from .actions.rules.rule_calls import RuleCalls
from .attach.layout import unwrap
from .attach.process_hooks import ProcessHooks
from .compat.lasting_objects import lasting
from .delivery.recorder.recorder import Recorder
from .delivery.recorder.run_facts import rank_and_world_size
from .delivery.run_words import Ending, start_line
from .delivery.stderr import say
from .detectors.training_values import TrainingValues
from .guard import Guard, finish_beside_interruptions, finish_beside_signals
from .incidents.incidents import IncidentReporter
from .incidents.seen_errors import SeenErrors
from .loop.control import Command, SetFeatures, SetLevel, commands_for
from .loop.failed_forward import Share
from .loop.member_series import Made, MemberSeries, end_when_left, series_of_process
from .loop.session_builder import build_if_possible
from .loop.session_facts import SessionFacts
from .loop.session_parts import SessionParts
from .loop.step_tracker import StepTracker
from .measure.kernels.binding import at_death
from .settings.config import Level, Mode, ProbeConfig, is_off_by_environment
from .settings.second_watch import refusals
from .step.log_values import deferred_values
from .step.open_step import LogValue
from .threads.unnoticed import is_replaying

_logger = logging.getLogger(__name__)
_FINISH_S: Final = 5.0
"""How long the end of the script waits for a session that another thread is closing."""
_BEGINNING_STEPS: Final = 5
"""A model that comes later trains on its own: a critic is updated so often before a generator."""
_sessions: dict[int, Probe] = {}
"""Running sessions by the identity of their (unwrapped) model."""
_unfinished: list[Probe] = []
"""Sessions that no longer watch and have yet to write their end."""
_ending = Ending()


def running_session(model: nn.Module) -> Probe | None:
    """Return the session that watches `model`, if one does."""
    return _sessions.get(id(unwrap(model)))


def running_sessions() -> list[Probe]:
    """Return the sessions that are recording, in the order in which they began."""
    return list(_sessions.values())


class Probe(
    SessionFacts,
    AnalysisCalls,
    MemoryCalls,
    OptimizationCalls,
    ProfileCalls,
    ReportCalls,
    RuleCalls,
    EventCalls,
    NotebookCalls,
):
    """One running session; made by `watching.watch`. A context manager: leaving the block closes it.

    Attributes:
        run: id of the run; "" for an inert handle.
        active: whether anything is being recorded.
        mode: what is done about an anomaly: "detect", "warn" or "raise".
        training_values: what the model was called with; None for an inert handle.
    """

    def __init__(self) -> None:
        self.run = ""
        self.active = False
        self.mode: Mode = "detect"
        self.training_values: TrainingValues | None = None
        self._progress = ProgressBoard()
        self._tracker: StepTracker | None = None
        self._recorder: Recorder | None = None
        self._incidents: IncidentReporter | None = None
        self._guard = Guard()
        self._key = 0
        self._model_reference: weakref.ref[nn.Module] | None = None
        self._errors = SeenErrors("")
        self._reported: tuple[int, str, int | None] | None = None
        self._reported_after: int | None = None
        self._last_step: int | None = None
        self._finishing = threading.RLock()
        self._is_finishing = False
        self._complained: set[str] = set()
        self._config: ProbeConfig | None = None
        self._first_step = 0
        """Number of the first step."""
        self._model_name, self._run_name = "", ""
        self._closed_level: Level = "basic"
        self._tell_refusal: Callable[[str], None] | None = None
        self._end_report: str | Path | None = None
        self._series: MemberSeries | None = None
        """Of the run, where further models may join it."""
        self._release: Callable[[], None] | None = None
        """Takes from the recorder what looks for this session alone."""
        self._reported_model: weakref.ref[nn.Module] | None = None
        """What the report at the end is of besides the journal."""

    @classmethod
    def inert(cls, model: nn.Module) -> Probe:
        """A handle that records nothing."""
        probe = cls()
        if isinstance(model, nn.Module):
            probe._model_reference = weakref.ref(unwrap(model))
        return probe

    @classmethod
    def attached(
        cls,
        model: nn.Module,
        optimizer: Optimizer | None,
        config: ProbeConfig,
        made: Made | None = None,
    ) -> Probe:
        """A session that records the model's training from now on; inert where no journal can be written.

        Args:
            model: the model, in its wrapper, if any.
            optimizer: that `watch` was given.
            config: the options.
            made: what tells whether it is a further member of a run; None for a run of its own.
        """
        guard = Guard()
        series = None if made is None else series_of_process.find(model, made)
        if series is not None:
            return cls._member(series, model, optimizer, config)
        with lasting():
            parts = build_if_possible(model, optimizer, config, guard)
        if parts is None:
            return cls()
        probe = cls.of_parts(parts, unwrap(model), mode=config.mode, guard=guard)
        probe._config, probe._end_report = config, config.report
        probe._first_step = config.first_step
        if not config.quiet and rank_and_world_size()[0] == 0:
            if not probe._joins_another(parts.recorder):
                kind = type(unwrap(model)).__name__
                called = kind if parts.model == kind else f"{parts.model} ({kind})"
                say(start_line(parts.recorder.folder.parent, called))
            _ending.let_speak(parts.recorder, may=True)
        if made is not None:
            probe._series = series_of_process.begin(made, parts.recorder, parts.start, probe, model)
        _process.watch_over()
        return probe

    @classmethod
    def _member(
        cls, series: MemberSeries, model: nn.Module, optimizer: Optimizer | None, config: ProbeConfig
    ) -> Probe:
        """The session of a further model of a run; those before it end, where they cannot go on."""
        root, guard = unwrap(model), Guard()
        for former in series.give_way():
            if isinstance(former, Probe):
                former._end_member()
        with lasting():
            parts = build_if_possible(model, optimizer, config, guard, series.place_for(root))
        if parts is None:
            return cls()
        probe = cls.of_parts(parts, root, mode=config.mode, guard=guard)
        probe._config, probe._first_step, probe._series = config, parts.first_step, series
        probe._end_report = config.report
        series.enter(probe)
        series.tell_of_cap(parts.incidents)
        _process.watch_over()
        return probe

    @classmethod
    def of_parts(cls, parts: SessionParts, root: nn.Module, *, mode: Mode, guard: Guard) -> Probe:
        """The session of a model whose parts are built: it is among the running ones from here on."""
        probe = cls()
        probe.run, probe.active, probe.mode, probe._guard = parts.run, True, mode, guard
        probe._recorder, probe._incidents, probe._tracker = parts.recorder, parts.incidents, parts.tracker
        probe._model_name, probe._run_name = parts.model, parts.name
        probe._shown_folder = parts.recorder.folder.parent
        probe._snapshots = parts.snapshots
        probe._release = partial(parts.recorder.release, parts.watches, parts.taker)
        probe.training_values = parts.training_values
        probe._errors = SeenErrors(parts.run, parts.recorder.group)
        probe._progress = parts.progress
        recording[probe] = None
        probe._key = id(root)
        _sessions[probe._key] = probe
        registry.enter(probe)
        if parts.control is not None:
            parts.control.clear = probe._clear_asked
        probe._model_reference = weakref.ref(root, at_death(probe._let_go))
        return probe

    def __repr__(self) -> str:
        if not self.run:
            return "<probe.Probe: nothing is recorded>"
        steps = self.steps_made
        state = "" if self.active else ", closed"
        return (
            f"<probe.Probe run {self.run} of {self._model_name}: "
            f"{steps:,} step{'' if steps == 1 else 's'}, level {self._level_now()}{state}>"
        )

    def _level_now(self) -> Level:
        if not self.run:
            return "off" if is_off_by_environment() else self._closed_level
        return self._closed_level if self._tracker is None else self._tracker.settings.level

    def log(self, **values: Any) -> None:
        """Record numbers with the most recent backward: `run.log(loss=..., lr=..., anything=...)`.

        Takes numbers and one-element tensors, without waiting for a device. `loss` replaces the loss that
        the probe found by itself; every other name becomes a series of its own.
        """
        if self._tracker is not None and not is_replaying():
            self._log_deferred(deferred_values(values, self._complain))

    def _clear_asked(self) -> None:
        """Somebody outside asks to forget what was found; on the recorder's thread."""
        self.clear()

    def end_epoch(self) -> None:
        """Say that an epoch has ended: it is counted, and memory is read.

        Nothing else needs to be said where an epoch is a pass over a DataLoader, which the probe sees; from
        the first call on only calls count.
        """
        if (tracker := self._tracker) is not None:
            tracker.epochs.end_epoch()

    def _log_deferred(self, values: Mapping[str, LogValue]) -> None:
        if (tracker := self._tracker) is not None:
            self._guard.run("log", tracker.log, dict(values))

    # -- for the user

    def set_level(self, level: Level, **features: int) -> None:
        """Measure more or less from the next step on, from any thread; on an inert handle nothing happens.

        Args:
            level: "off", "basic", "advanced" or "extreme".
            **features: single switches over it, each every how many steps, 0 for never (see
                `probe.settings.levels.Features`): `run.set_level("basic", activations=100)`.

        Raises:
            ValueError: no such level or feature, or a period out of range.
        """
        commands: list[Command] = [SetLevel(level)]
        if features:
            commands.append(SetFeatures(features))
        tracker = self._tracker
        for command in commands:
            if tracker is not None:
                tracker.post(command)

    def take_options(self, options: Mapping[str, Any], optimizer: Optimizer | None) -> None:
        """Follow what a second `watch` asks for, from the next step on; all of it, or nothing.

        Args:
            options: as `watch` takes them; None is "not given".
            optimizer: that the second call names.

        Raises:
            ValueError: another value of what cannot change in mid-run. Of a session that `dashboard run`
                began only a line says so, and the rest is done: the training goes on.
        """
        config, tracker = self._config, self._tracker
        if config is None or tracker is None:
            return
        names = {"run": self.run, "name": self._run_name, "model_name": self._model_name}
        refused = refusals(config, names, options)
        if optimizer is not None and not tracker.owns(optimizer):
            refused.append(
                f"optimizer={type(optimizer).__name__} updates nothing that the running session follows: "
                "give it, or None for every optimizer, to the first watch() of this model"
            )
        commands = commands_for(options, tracker.settings)
        for sentence in refused:
            if self._tell_refusal is None:
                raise ValueError(sentence)
            self._tell_refusal(sentence)
        for command in commands:
            tracker.post(command)
        if (quiet := options.get("quiet")) is not None and self._recorder is not None:
            _ending.let_speak(self._recorder, may=not quiet and rank_and_world_size()[0] == 0)

    def tell_refusals_to(self, tell: Callable[[str], None]) -> None:
        """Have a second `watch` tell what it is refused, where the script did not ask for the first."""
        self._tell_refusal = tell

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the watched model's gradients to a global L2 norm, as torch.nn.utils.clip_grad_norm_ does.

        Reuses the norm that the step is measured by: the gradients are read once for both, and multiplied
        only where the norm is above the limit. Gradients that are not finite are left as they are, where
        torch spreads one NaN over all of them.

        Args:
            max_norm: largest norm that is left.

        Returns:
            The norm before, a tensor with one element.

        Raises:
            ValueError: the session is closed or the model is gone.
            AnomalyError: in `mode="raise"`, where the gradients are not finite.
        """
        model = self._watched_model()
        if model is None:
            raise ValueError(
                "clip_gradients() needs the watched model, and this session watches none any more"
            )
        tracker = self._tracker
        if tracker is None:
            return nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return tracker.clip_gradients(float(max_norm))

    def flush(self) -> None:
        """Wait until everything recorded so far is judged and in the journal, and its bundles are written."""
        tracker, recorder, incidents = self._tracker, self._recorder, self._incidents
        if tracker is not None:
            tracker.judge_waiting()
        if incidents is not None:
            self._guard.run("flush", incidents.bring_up_to_date, time=time.time())
        if recorder is not None and not recorder.is_own_thread:
            recorder.beside.wait()
            recorder.flush()

    def close(self) -> None:
        """Stop recording and remove every hook; idempotent, and optional at the end of a script."""
        self._stop_watching()
        self._finish()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is not None:
                self._report_exception(error, trace)
        finally:
            self.close()

    def _joins_another(self, recorder: Recorder) -> bool:
        """Whether it is a further model of a training of which a line has said where it is recorded."""
        return any(
            other._recorder is not None
            and other._recorder.group == recorder.group
            and _ending.speaks(other._recorder)
            and other.steps_made <= _BEGINNING_STEPS
            for other in _sessions.values()
        )

    def _report_exception(self, error: BaseException, trace: TracebackType | None) -> None:
        """Record an exception that leaves the script, once; a Ctrl-C or a sys.exit is no fault."""
        tracker, incidents = self._tracker, self._incidents
        if not isinstance(error, Exception) or incidents is None or tracker is None:
            return
        # Not the exception itself: it holds the batches and graphs of all that it went through.
        reported = id(error), type(error).__qualname__, tracker.last_step
        if reported == self._reported:
            return
        self._reported, self._reported_after = reported, tracker.last_step
        if self._errors.is_of_another(error):
            return
        struck = finish_beside_signals(self._write_exception, error, trace, tracker)
        if struck is not None:
            raise struck

    def _write_exception(self, error: Exception, trace: TracebackType | None, tracker: StepTracker) -> None:
        incidents = self._incidents
        assert incidents is not None
        tracker.judge_waiting()
        self._guard.run(
            "exception",
            incidents.exception,
            error,
            trace,
            step=tracker.next_step,
            time=time.time(),
            evidence=tracker.evidence_of(error),
            model=self._watched_model(),
            optimizers=tracker.optimizers,
            samples=tracker.open_samples,
            errors=self._errors,
        )

    def _let_go(self) -> None:
        """The model is gone. The garbage collector calls this, on any thread and at any moment:
        writing must wait, for the lock that it takes may be held by this very thread."""
        self._stop_watching()
        if self._recorder is not None:
            end_when_left(self._recorder, self._series, partial(self._finish, may_wait=False))

    def _end_member(self) -> None:
        """Stop recording, for the run goes on with its next model."""
        model = self.watched_model
        self._stop_watching()
        self._finish(is_final=False)
        if self in _unfinished:
            _unfinished.remove(self)
        if self._series is not None and model is not None:
            self._series.note_end(self, model)

    def _stop_watching(self) -> None:
        """Remove every hook."""
        tracker = self._tracker
        if not self.active or tracker is None:
            return
        # First: what ends all sessions meanwhile has to find it here, or among those that run.
        _unfinished.append(self)
        if _sessions.get(self._key) is self:
            del _sessions[self._key]
        registry.leave(self)
        self.active = False
        recording.pop(self, None)
        # Not the reference that calls back: nobody is to hear of the model's end once nothing is recorded.
        model, self._model_reference = self.watched_model, None
        self._reported_model = None if model is None else weakref.ref(model)
        del model
        tracker.rules.end_pauses()
        tracker.stop()
        if not _sessions:
            _process.release()

    def _finish(self, *, may_wait: bool = True, is_final: bool = True) -> None:
        """Write what is pending and the end, once; who comes second waits for the first.

        Else the script could end while the recorder's thread, which ends with it, is still writing. What a
        Ctrl-C breaks off is taken up again at the end of the script.

        Args:
            may_wait: not on the recorder's thread, whose last act this is.
            is_final: whether the run ends, unless others record it; else a further model may join it.
        """
        recorder = self._recorder
        if recorder is None or self not in _unfinished:
            return
        if may_wait and recorder.is_own_thread:
            # The garbage collector came here, whatever the thread does.
            recorder.close_soon(lambda: self._finish(may_wait=False, is_final=is_final))
            return
        if not self._finishing.acquire(timeout=_FINISH_S if may_wait else 0):
            return
        try:
            self._finish_once(recorder, is_final=is_final)
        finally:
            self._finishing.release()

    def _finish_once(self, recorder: Recorder, *, is_final: bool) -> None:
        # A signal's handler may come back to here in between.
        if self._is_finishing or self not in _unfinished:
            return
        self._is_finishing = True
        try:
            self._close_tracker()
            others = [one for one in (*_sessions.values(), *_unfinished) if one is not self]
            is_shared = any(other._recorder is recorder for other in others)
            if is_shared or not is_final:
                release, self._release = self._release, None
                if release is not None:
                    release()
                if is_shared:
                    _unfinished.remove(self)
                return
            is_written = recorder.close(outcome=self._outcome(), last_step=self._last_step)
            while is_written and self in _unfinished:
                _unfinished.remove(self)
                self._write_end_report()
                self._guard.run("end line", _ending.end, recorder)
        finally:
            self._is_finishing = False

    def _write_end_report(self) -> None:
        """Write the report that `watch(report=...)` asked for; whatever comes of it, the script goes on."""
        path, self._end_report = self._end_report, None
        if path is not None:
            model = None if self._reported_model is None else self._reported_model()
            self.report_at_end(own_report(path, self.run), model=model)

    def _step_under_way(self) -> tuple[int, int] | None:
        tracker = self._tracker
        return None if tracker is None else (tracker.next_step, tracker.open_backwards)

    def _forget_found(self) -> None:
        tracker, incidents, model = self._tracker, self._incidents, self._watched_model()
        if tracker is not None and incidents is not None:
            self.flush()
            counted, before = self.steps_counted, self._first_step
            self._guard.run("clear", incidents.clear, steps=counted, before=before, time=time.time())
        self._guard.run("clear", self._forget_analysis, model)

    def _close_tracker(self) -> None:
        tracker, incidents = self._tracker, self._incidents
        if tracker is None:
            return
        tracker.close()
        self._last_step, self._closed_level = tracker.last_step, tracker.settings.level
        if self._region_records is not None:
            step = self._first_step if self._last_step is None else self._last_step
            self._guard.run("regions", self._region_records.close, step=step, now=time.time())
        if incidents is not None and self._last_step is not None:
            self._guard.run("close", tracker.rules.close, self._last_step, time.time())
            self._guard.run("close", incidents.close, step=self._last_step, time=time.time())
        self._tracker = self._incidents = None

    def _outcome(self) -> Literal["finished", "exception"]:
        """Training that went on after an exception, in a thread or a console, has not ended by it."""
        is_last = self._reported is not None and self._reported_after == self._last_step
        return "exception" if is_last else "finished"

    def _abandon(self) -> None:
        """In a forked child: record nothing more, touch no file, thread or socket of the parent."""
        if self._tracker is not None:
            self._tracker.detach()
        self.active = False
        recording.pop(self, None)
        self._tracker = self._incidents = self._recorder = None

    def _complain(self, name: str, problem: str) -> None:
        if name not in self._complained:
            self._complained.add(name)
            _logger.warning("nanscope: %s (not recorded)", problem)


def _close_all() -> None:
    """At the end of the process. A Ctrl-C meanwhile waits until all is written."""
    interruption: BaseException | None = None
    for session in [*_sessions.values(), *_unfinished]:
        struck = finish_beside_interruptions(session.close)
        interruption = struck or interruption
    if interruption is not None:
        raise interruption


def _report_all(error: BaseException, trace: TracebackType | None, *, of_this_thread: bool = False) -> None:
    followed = [(session, session._tracker) for session in _sessions.values() if session._tracker is not None]
    # One event: of models trained together it is about the one that raised it, or that is behind the others.
    for session, tracker in sorted(followed, key=lambda pair: (pair[1].share_in(error), pair[1].next_step)):
        if not of_this_thread or tracker.share_in(error) < Share.NONE:
            session._report_exception(error, trace)


def _abandon_all() -> None:
    for session in [*_sessions.values(), *_unfinished]:
        session._abandon()
        registry.leave(session)
    _sessions.clear()
    _unfinished.clear()
    series_of_process.forget()
    _ending.forget()


_process = ProcessHooks(report=_report_all, close=_close_all, abandon=_abandon_all)
