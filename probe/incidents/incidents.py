"""Turns what the detectors find at a step into events: stacks, origin by replay, advice, episodes.

Called by the judge on the training thread, before the optimizer's update; for quiet steps on the
recorder's thread, under `lock`. The only place that decides what an event says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from torch.optim.optimizer import Optimizer

from ..delivery.recorder.recorder import Recorder
from ..detectors.advice import advice_of
from ..detectors.advice_when import EARLY_STEPS, Known
from ..detectors.bank import DetectorBank
from ..detectors.base import Finding, Observation, ObservationBatch
from ..detectors.episodes import MOST_PATIENCE, EpisodeTracker
from ..detectors.judged_step import JudgedStep
from ..detectors.new_task import NewTaskWatch, settled
from ..detectors.scaler import ScalerWatch
from ..detectors.why import RecentSteps
from ..forensics.bundle.black_box import BlackBox
from ..forensics.incident_texts import REPLAYED_KINDS, describe, has_origin
from ..guard import Guard
from ..settings.config import ProbeConfig
from ..threads.pieces import give_way
from ..threads.stacks import RawFrame, capture_stack, format_loop_stack
from ..wire import Event, RunStart, Stacks
from .consequences import NONFINITE, WarnedSteps, fold_nonfinite
from .error_events import ErrorEvents
from .event_writer import evidence_of
from .evidence import LateEvidence, StepEvidence
from .failure_texts import TEXT_LIMIT
from .lasting import LastingFault, count_steps, lasting_fault
from .moved_before import NOTHING_BEFORE, Before, known_of, look_before, moved_before
from .replays import locate_origin, replay_fields, why_no_replay
from .verdict import NOTHING_FOUND, Verdict, first_critical, is_alarming, suspicion_of

if TYPE_CHECKING:
    from ..forensics.replay import Replay

_Moment = tuple[float, StepEvidence | LateEvidence]
"""UNIX seconds of a step, and what is at hand of it."""
_SAMPLED_PATIENCE: Final = 3
"""Samples without a finding after which an episode of a sampled kind is over."""


class IncidentReporter(ErrorEvents):
    """Runs the detectors and writes the events of one session."""

    def __init__(
        self, start: RunStart, model: str, *, config: ProbeConfig, recorder: Recorder, guard: Guard
    ) -> None:
        super().__init__(start, model, config=config, recorder=recorder, guard=guard)
        self.lock = threading.RLock()
        """Held by who judges, for two milliseconds at a time as long as nothing is found."""
        self._detectors = DetectorBank(config.thresholds, pause=give_way)
        self.recent, self._scaler = RecentSteps(), ScalerWatch()
        self._new_tasks = NewTaskWatch[_Moment](may_burst=config.thresholds.explosion_norm is None)
        self.black_box = BlackBox(steps=config.black_box_steps, limit_bytes=config.black_box_mib * 2**20)
        """What the newest steps were called with; put there by what finishes a step."""
        self._episodes = EpisodeTracker(most_patience=MOST_PATIENCE)
        self._sampled_episodes = EpisodeTracker(patience=_SAMPLED_PATIENCE, most_patience=MOST_PATIENCE)
        self.warned = WarnedSteps()
        self._provisional: Event | None = None
        """Written while its verdict waits."""
        self._replays = 0
        self._awaits_origin = False
        """Whether the newest event of a NaN or Inf was judged too late for a replay."""
        self._nonfinite_step: int | None = None
        """The newest step whose loss or gradients were not finite."""
        self._looks = 0
        self.optimizers: Callable[[], Sequence[Optimizer]] = tuple
        """Gives those that were seen to update the model."""
        self.forget_also: list[Callable[[], None]] = []
        """Called, under `lock`, when what was found is cleared."""

    @property
    def detectors(self) -> DetectorBank:
        """Some of them are to be told of the first losses."""
        return self._detectors

    def note_classes(self, is_one: bool) -> None:
        """Of the first batches: whether one has examples of one class alone, as where data are sorted."""
        self._new_tasks.note_classes(is_one=is_one)

    def note_look(self) -> None:
        """Something of ours, a look at all objects for instance, has made the step take longer."""
        self._looks += 1

    @contextmanager
    def judging(self, guard: Guard, *, wait_s: float = -1.0) -> Iterator[bool]:
        """Judge on the thread that asks: alone, and with the failures and the time on its own guard.

        Args:
            guard: of the thread.
            wait_s: how long to wait while another thread judges; negative: until it is done. The recorder's
                thread may not: who judges waits for it where a bundle is written.

        Yields:
            Whether it may judge.
        """
        if not self.lock.acquire(timeout=wait_s):
            yield False
            return
        try:
            before, self._guard = self._guard, guard
            try:
                yield True
            finally:
                self._guard = before
        finally:
            self.lock.release()

    def judge(self, observation: Observation, time: float, evidence: StepEvidence | LateEvidence) -> Verdict:
        """Detect, write and log what is wrong at a step, whose update has not been made as a rule."""
        replays = self.replays
        self.recent.note(observation)
        findings = _merged(self._detectors.observe(observation))
        jumped = self.recent.note_jumps(self._detectors.take_jumps())
        if evidence.was_scaled:
            findings = self._scaler.judge(findings, observation, scale=evidence.loss_scale)
        kinds = frozenset(finding.kind for finding in findings)
        if kinds & REPLAYED_KINDS and self._can_tell_more(observation, evidence):
            self._awaits_origin = False
            for event in [e for kind in REPLAYED_KINDS for e in self._episodes.end(self._model, kind)]:
                self._recorder.event(event)
        if kinds:
            findings = fold_nonfinite(findings, observation, episodes=self._episodes, model=self._model)
        judged = JudgedStep(
            observation.step,
            observation.loss,
            observation.total_grad_norm,
            observation.input_elements,
            observation.highest_rate,
            findings,
            (time, evidence),
        )
        may_wait, lasting = isinstance(evidence, LateEvidence), None
        begun, alarms = self._write_judged(judged, may_wait=may_wait)
        if not (begun or may_wait or self._new_tasks.waits):
            lasting = lasting_fault(findings, observation, episodes=self._episodes, model=self._model)
        return Verdict(
            kinds=kinds,
            critical=first_critical(begun, findings),
            suspicion=self._suspicion_of(begun) or jumped,
            alarms=tuple(alarms),
            replayed=self.replays > replays,
            lasting=lasting,
        )

    def count(
        self,
        fault: LastingFault,
        batch: ObservationBatch,
        times: Sequence[float],
        stacks: Sequence[Sequence[RawFrame]],
    ) -> Verdict:
        """Count successive steps that are bad as those before them; judge what is finite of them.

        Args:
            fault: what all of them have. Its events may have been cleared meanwhile.
            batch: the steps.
            times: UNIX seconds of each.
            stacks: of the training loop, when each was measured.
        """
        is_open = None not in self._running(fault.nonfinite)
        if not (is_open and fault.is_whole):
            return self.judge_quiet(batch, times, stacks, known=fault.nonfinite if is_open else ())
        self.recent.note(batch)
        self._scaler.note_updates()
        self._detectors.pass_bad(batch)
        self._nonfinite_step = batch.steps[-1]
        episodes, warned, model = self._episodes, self.warned, self._model
        for event in count_steps(fault, batch, times, episodes=episodes, warned=warned, model=model):
            self._recorder.event(event)
        kinds = frozenset(finding.kind for finding in fault.findings)
        return Verdict(kinds=kinds, critical=first_critical((), fault.findings), alarms=tuple(batch.steps))

    def _write_judged(
        self, judged: JudgedStep[_Moment] | None, *, may_wait: bool = True
    ) -> tuple[list[Event], list[int]]:
        """Write what stands once this step is known; None: no more steps come.

        Returns:
            Events that begin, and the steps with a warning or worse.
        """
        watch, begun, alarms = self._new_tasks, list[Event](), list[int]()
        for one in watch.close() if judged is None else watch.take(judged, may_wait=may_wait):
            begun += self._write(one.findings, one.step, *one.context)
            if is_alarming(one.findings):
                alarms.append(one.step)
        if self._provisional is not None and (watch.has_just_begun or not watch.waits):
            self._settle(self._provisional, begun)
        if judged is not None and watch.has_just_begun:
            self._note_waiting(judged)
        return begun, alarms

    def _note_waiting(self, judged: JudgedStep[_Moment]) -> None:
        """Have the journal know of a jump whose verdict waits, unless an event of its kind is open."""
        finding = self._new_tasks.provisional()
        if self._episodes.running(self._model, finding.kind) is None:
            self._provisional, _ = self._event(finding, judged.context[0], judged.step, judged.context[1])
            self._recorder.event(self._provisional)

    def _suspicion_of(self, begun: Sequence[Event]) -> str | None:
        """Why modules' numbers would say more: also of a jump whose verdict has just begun to wait."""
        reason, noted = suspicion_of(begun), self._provisional
        if reason is None and noted is not None and self._new_tasks.has_just_begun:
            return f"{noted.kind} at step {noted.step}"
        return reason

    def _settle(self, noted: Event, begun: Sequence[Event]) -> None:
        """The verdict stands, as a rule as the same event's newest state."""
        self._provisional = None
        if all(event.id != noted.id for event in begun):
            self._recorder.event(msgspec.structs.replace(noted, message=settled(noted.message), ended=True))

    def _running(self, findings: Sequence[Finding]) -> list[Event | None]:
        """The open event of each one's kind."""
        return [self._episodes.running(self._model, finding.kind) for finding in findings]

    def _can_tell_more(self, observation: Observation, evidence: StepEvidence | LateEvidence) -> bool:
        """Whether the origin that the running event lacks may be found: then an event of its own is due."""
        if isinstance(evidence, LateEvidence) or not self._awaits_origin:
            return False
        # Bad parameters are what the first occurrence has left.
        return (norms := observation.parameter_norm) is None or bool(np.isfinite(norms).all())

    def judge_quiet(
        self,
        batch: ObservationBatch,
        times: Sequence[float],
        stacks: Sequence[Sequence[RawFrame]],
        *,
        known: Sequence[Finding] = (),
    ) -> Verdict:
        """Detect, write and log what is wrong at successive steps: all values are finite, or known not to be.

        Args:
            batch: the steps.
            times: UNIX seconds of each.
            stacks: of the training loop, when each was measured.
            known: what is not finite of each, and only counts in an event that is open.
        """
        self.recent.note(batch)
        self._scaler.note_updates()
        found = dict(self._detectors.observe_batch(batch))
        suspicion = self.recent.note_jumps(self._detectors.take_jumps())
        critical, alarms = None, list[int]()
        is_quiet = not (found or self._new_tasks.waits)
        if is_quiet and self._episodes.pass_quiet(batch.steps, self._model):
            self._new_tasks.note_quiet(batch)
            return NOTHING_FOUND if suspicion is None else Verdict(suspicion=suspicion)
        for index, time in enumerate(times):
            if findings := _merged(found.get(index, [])):
                findings = [*known, *(one for one in findings if not known or one.kind not in NONFINITE)]
            moment: _Moment = time, LateEvidence(stacks[index])
            judged = JudgedStep.at(batch, index, findings, moment)
            begun, alarming = self._write_judged(judged)
            critical = first_critical(begun, findings)
            suspicion = self._suspicion_of(begun) or suspicion
            alarms += alarming
        return Verdict(
            kinds=frozenset(finding.kind for findings in found.values() for finding in findings),
            critical=critical,
            suspicion=suspicion,
            alarms=tuple(alarms),
        )

    def report_sampled(
        self,
        findings: Sequence[Finding],
        step: int,
        time: float,
        *,
        stack: Sequence[RawFrame],
        is_whole: bool = True,
        is_bad: bool = False,
    ) -> Verdict:
        """Write and log what the detectors of sampled numbers have found at a finished step.

        Args:
            findings: at most one of a kind.
            step: number of the step.
            time: UNIX seconds.
            stack: of the training loop, where something was found.
            is_whole: whether all detectors have looked, so that what they have not found is not there.
            is_bad: whether loss, gradients or parameters of the step are not finite.
        """
        running = (self._episodes.running(self._model, kind) for kind in NONFINITE)
        if step == self._nonfinite_step or (is_bad and any(running)):
            # The event of the loss, the gradients or the parameters is about the same fault.
            findings = [finding for finding in findings if finding.kind != "nonfinite_activation"]
        late = LateEvidence(stack)
        begun = self._track(self._sampled_episodes, findings, step, time, late, is_whole=is_whole)
        for event in begun:
            self._announce(event)
        return Verdict(kinds=frozenset(finding.kind for finding in findings), suspicion=suspicion_of(begun))

    def _write(
        self, findings: list[Finding], step: int, time: float, evidence: StepEvidence | LateEvidence
    ) -> list[Event]:
        """Write the events that begin, go on or end at a step; announce and return those that begin."""
        begun = self._track(self._episodes, findings, step, time, evidence)
        for event in begun:
            self._announce(event)
        self.warned.note(step, findings, self._running(findings))
        if any(finding.kind in NONFINITE for finding in findings):
            self._nonfinite_step = step
        return begun

    def _track(
        self,
        episodes: EpisodeTracker,
        findings: Sequence[Finding],
        step: int,
        time: float,
        evidence: StepEvidence | LateEvidence,
        *,
        is_whole: bool = True,
    ) -> list[Event]:
        """Write the events that begin, go on or end at a step; return those that begin."""
        begun: list[Event] = []

        def make_event(finding: Finding) -> Event:
            event, replay = self._event(finding, time, step, evidence)
            begun.append(event)
            if replay is not None:
                fields = replay_fields(event, replay)
                begun.append(self._new_event("replayed", event.kind, **fields))
            return event

        model = self._model
        states = episodes.update(step, time, findings, model=model, make_event=make_event, is_whole=is_whole)
        states += [event for event in begun if event.kind == "replayed"]
        if isinstance(evidence, LateEvidence) and any(map(has_origin, begun)):
            self._awaits_origin = True
        for event in states:
            self._recorder.event(event)
        return begun

    @property
    def replays(self) -> int:
        """How many steps took longer so far for a replay, a bundle or a look at all objects."""
        return self._replays + self._bundles.begun + self._looks

    def close(self, *, step: int, time: float) -> None:
        """End the episodes that are still open."""
        with self.lock:
            self._write_judged(None)
            events = self._episodes.close(step, time) + self._sampled_episodes.close(step, time)
        for event in events:
            self._recorder.event(event)

    def bring_up_to_date(self, *, time: float) -> None:
        """Write how long the episodes that are going on have lasted: else only at steps 2, 4, 8, ..."""
        with self.lock:
            episodes = self._episodes, self._sampled_episodes
            events = [event for one in episodes for event in one.brought_up_to_date(time)]
        for event in events:
            self._recorder.event(event)

    def clear(self, *, steps: int, before: int = 0, time: float) -> None:
        """End what is going on and write the event from which on counts begin anew.

        Args:
            steps: that the numbers count so far.
            before: of those, the ones before the session's first step.
            time: UNIX seconds.
        """
        step = max(before, steps - 1)
        with self.lock:
            self.close(step=step, time=time)
            for forget in self.forget_also:
                forget()
        self.note(
            "cleared",
            "run",
            f"Cleared after {steps - before} steps: counts and rates start from 0; nothing recorded is lost",
            step=step,
            time=time,
            value=float(steps),
        )

    def _event(
        self, finding: Finding, time: float, step: int, evidence: StepEvidence | LateEvidence
    ) -> tuple[Event, Replay | None]:
        replay = self._replay(finding, evidence)
        origin = None if replay is None else replay.origin
        # The one that the origin was found in; else the newest.
        micro_step = None if replay is None else replay.micro_step
        before = self._guard.run("why", look_before, self.recent, self.black_box, step, evidence)
        before = before or NOTHING_BEFORE
        event = self._new_event(
            finding.kind,
            finding.subject,
            step=step,
            time=time,
            micro_step=evidence.micro_step if micro_step is None else micro_step,
            severity=finding.severity,
            message="\n".join(
                [
                    describe(finding, step, replay, self._why_no_replay(finding, evidence)),
                    *self._why(finding, step, before),
                    *([] if isinstance(evidence, LateEvidence) else evidence.context),
                ]
            )[:TEXT_LIMIT],
            evidence=evidence_of(finding, () if replay is None else replay.tensors),
            origin=origin,
            noticed_in=None if replay is None else replay.noticed_in,
            propagated_to=replay.propagated_to if replay and replay.propagated_to else list(finding.affected),
            stacks=Stacks(
                forward=replay.forward if replay else [],
                backward=replay.backward if replay else [],
                training_loop=(
                    format_loop_stack(evidence.stack)
                    if isinstance(evidence, LateEvidence)
                    else capture_stack()
                ),
            ),
            advice=advice_of(finding, self._known(finding, step, evidence, before, replay)),
        )
        if replay is not None and replay.came_from_another_rank:
            # Else the ranks that it was spread to could use up the bundles that the run may have.
            return event, replay
        return self._with_bundle(event, evidence), replay

    def _known(
        self,
        finding: Finding,
        step: int,
        evidence: StepEvidence | LateEvidence,
        before: Before,
        replay: Replay | None,
    ) -> Known:
        return known_of(
            finding,
            replay,
            before,
            optimizers=self.optimizers(),
            has_one_class=self._new_tasks.has_one_class,
            is_early=step < self._config.first_step + EARLY_STEPS,
            is_scaled=evidence.was_scaled,
            is_after_nonfinite=self._nonfinite_step is not None and self._nonfinite_step < step,
            is_everywhere=self.recent.are_all(finding.affected),
        )

    def _why(self, finding: Finding, step: int, before: Before) -> list[str]:
        """One line on what moved before the event, where more than the event's own series did."""
        if finding.severity == "info":
            return []
        line = self._guard.run("why", moved_before, self.recent, self.black_box, step, before)
        return [] if line is None else [line]

    def _replay(self, finding: Finding, evidence: StepEvidence | LateEvidence) -> Replay | None:
        if isinstance(evidence, LateEvidence):
            return None
        if self._why_no_replay(finding, evidence) is not None:
            return None
        self._replays += 1
        return self._guard.run(
            "replay",
            locate_origin,
            evidence.root,
            evidence.captures,
            parameters=evidence.parameters,
            gradients=evidence.gradients(),
            loss=evidence.loss,
            stage=evidence.stage,
            limit_s=self._config.replay_limit_s,
            intended=self._config.intended_infinities,
        )

    def _why_no_replay(self, finding: Finding, evidence: StepEvidence | LateEvidence) -> str | None:
        return why_no_replay(finding, evidence, self._config, replays=self._replays)


def _merged(findings: list[Finding]) -> list[Finding]:
    if not findings:
        return findings
    # What they mean together is asked of few steps.
    from ..detectors.verdicts import merge_nonfinite

    return merge_nonfinite(findings)
