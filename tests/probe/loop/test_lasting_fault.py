"""A run that stays non-finite: its steps only count in the open event, and are followed as healthy ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from armed_training import ARMED_AT, Planted, Training, begin, calls_state, watched_training, why_not
from both_ways import assert_same, recorded
from followed_kinds import Accumulating, OwnLoss, Scaled, ScaledAndClipped, Single
from journals import Journal
from thinned import some
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.errors import AnomalyError
from probe.forensics.loss import loss_origin
from probe.incidents.incidents import IncidentReporter
from probe.loop import fast_path
from probe.loop.fast_path import ARMED_AFTER
from probe.measure.kernels import hot_binding
from probe.wire import Event

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]

BAD_AT = 101
LEARNED = ARMED_AFTER + 4
"""After so many bad steps C follows them."""


class Clipped(Single):
    """By torch's function."""

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        super().update()


class ClippedByUs(Single):
    """By the norm that is measured anyway."""

    def update(self) -> None:
        self.run.clip_gradients(0.05)
        super().update()


class SkippedByNorm(Training):
    """Makes no update of gradients that are not finite, and does not look at the loss."""

    def step(self, *changes: Any) -> torch.Tensor:
        inputs, targets = self.batch()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(inputs), targets)
        loss.backward()
        if torch.isfinite(nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)):
            self.optimizer.step()
        return loss


class SkippedByLoss(Training):
    """Makes no update of a loss that is not finite; its backward has been made."""

    def clears(self) -> None:
        self.optimizer.zero_grad()

    def step(self, *changes: Any) -> torch.Tensor:
        inputs, targets = self.batch()
        self.clears()
        loss = F.cross_entropy(self.model(inputs), targets)
        loss.backward()
        if torch.isfinite(loss):
            self.optimizer.step()
        return loss


class ClearedByHand(SkippedByLoss):
    """And drops gradients itself."""

    def clears(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None


class ClearedLate(SkippedByNorm):
    """And clears after the next forward."""

    def step(self, *changes: Any) -> torch.Tensor:
        inputs, targets = self.batch()
        loss = F.cross_entropy(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        if torch.isfinite(nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)):
            self.optimizer.step()
        return loss


def poison(training: Training, value: float = math.nan) -> None:
    """Make one weight bad; all of them are after the next update."""
    with torch.no_grad():
        next(training.model.parameters()).view(-1)[0] = value


@contextmanager
def healed(training: Training) -> Iterator[None]:
    """Put the weights of before back, and momenta of nothing."""
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    yield
    with torch.no_grad():
        for parameter, value in zip(training.model.parameters(), before, strict=True):
            parameter.copy_(value)
            training.optimizer.state[parameter]["momentum_buffer"].zero_()


@pytest.fixture(autouse=True)
def waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time C begins after as few equal steps as the first time."""
    monkeypatch.setattr(fast_path, "_LONGEST_WAIT", ARMED_AFTER)


@pytest.fixture
def judged_alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that were judged by themselves."""
    steps: list[int] = []
    judge = IncidentReporter.judge

    def counted(incidents: IncidentReporter, observation: Any, *args: Any) -> Any:
        steps.append(observation.step)
        return judge(incidents, observation, *args)

    monkeypatch.setattr(IncidentReporter, "judge", counted)
    return steps


def events_of(journal: Journal) -> list[Event]:
    """The newest state of each event of the loss."""
    newest = {event.id: event for event in journal.events if event.kind == "nonfinite_loss"}
    return sorted(newest.values(), key=lambda event: event.step)


def stay_bad(training: Training, count: int = 60) -> None:
    training.steps(5)
    poison(training)
    training.steps(count)


KINDS: dict[str, type[Training]] = {
    "micro-steps": Accumulating,
    "clipped by us": ClippedByUs,
    "own loss": OwnLoss,
    "left out": SkippedByNorm,
    "scaled": ScaledAndClipped,
    "clipped": Clipped,
    "plain": Training,
}


@pytest.mark.parametrize("kind", some([*KINDS], 5))
def test_bad_steps_that_c_follows_are_recorded_as_in_the_slow_way(tmp_path: Path, kind: str) -> None:
    followed = 0

    def act(training: Training) -> None:
        nonlocal followed
        training.steps(BAD_AT - ARMED_AT)  # no update is looked at until step 150: NaN has other bits there
        poison(training)
        training.steps(45)
        if training.is_followed:
            followed = int(calls_state().steps)

    journal = assert_same(tmp_path, act, kind=KINDS[kind])
    assert followed >= 45 - LEARNED - 2, why_not()
    (event,) = events_of(journal)
    assert (event.step, event.count, event.last_step) == (BAD_AT, 45, BAD_AT + 44)
    bad = [frame for frame in journal.frames if frame.step >= BAD_AT]
    assert all(math.isnan(frame.scalars["loss"]) for frame in bad if "loss" in frame.scalars)
    counts = [column for frame in bad for column in frame.columns if column.name == "grad_nan_count"]
    assert len(counts) == 45


@pytest.mark.parametrize("kind", some([SkippedByLoss, *KINDS.values()], 6))
def test_few_steps_of_a_lasting_fault_are_judged_by_themselves(
    judged_alone: list[int], kind: type[Training]
) -> None:
    with watched_training(in_c=False, kind=kind) as training:
        judged_alone.clear()
        stay_bad(training)
    assert 1 <= len(judged_alone) <= 3


@pytest.mark.parametrize("kind", [SkippedByNorm, SkippedByLoss, ClearedLate, ClearedByHand])
def test_steps_whose_update_is_left_out_are_recorded_whole(tmp_path: Path, kind: type[Training]) -> None:
    journal, _ = recorded(tmp_path, stay_bad, in_c=True, kind=kind)
    bad = [frame for frame in journal.frames if frame.step >= ARMED_AT + 5]
    assert [frame.step for frame in bad] == list(range(ARMED_AT + 5, ARMED_AT + 65))
    assert all(math.isnan(frame.scalars["loss"]) for frame in bad)
    unknown = [frame for frame in bad if "grad_nan_count" not in {column.name for column in frame.columns}]
    # That gradients are dropped by hand is known from the second one on.
    assert len(unknown) <= (kind is ClearedByHand)
    (event,) = events_of(journal)
    assert (event.count, event.last_step) == (60, ARMED_AT + 64)


def own_frames(training: Training, steps: int = 5) -> int:
    """How much Python of ours a step enters on the training thread, where nothing more than usual is due."""
    package, counts = str(Path(probe.__file__).parent), []

    def count(frame: FrameType, kind: str, _: object) -> None:
        counts[-1] += kind == "call" and frame.f_code.co_filename.startswith(package)

    for _ in range(steps):
        counts.append(0)
        sys.setprofile(count)
        try:
            training.steps(1)
        finally:
            sys.setprofile(None)
    return min(counts)


@pytest.mark.parametrize("kind", [Clipped, Scaled, ScaledAndClipped, SkippedByNorm, SkippedByLoss])
def test_a_bad_step_enters_no_more_python_of_ours_than_a_healthy_one(kind: type[Training]) -> None:
    with watched_training(in_c=True, kind=kind) as training:
        healthy = own_frames(training)
        stay_bad(training, 45)
        assert training.is_followed, why_not()
        assert own_frames(training) <= healthy


def test_a_fault_that_begins_before_the_first_looks_end_is_followed_too() -> None:
    training = begin(SkippedByNorm, Planted, {})
    with training.run:
        training.steps(10)
        poison(training)
        training.steps(500)
        assert training.is_followed, why_not()


@pytest.mark.parametrize("in_c", [True, False])
def test_what_is_finite_of_bad_steps_is_judged(tmp_path: Path, in_c: bool) -> None:
    def act(training: Training) -> None:
        training.steps(40, lambda loss: loss + math.nan)
        assert training.is_followed is in_c
        training.steps(40, lambda loss: loss * 0 + math.nan)

    journal, _ = recorded(tmp_path, act, in_c=in_c)
    (event,) = events_of(journal)
    assert event.count == 80
    assert {one.kind for one in journal.events if one.severity == "warning"} == {"zero_gradient"}


def test_steps_that_count_in_no_event_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a report is written there

    def act(training: Training) -> None:
        stay_bad(training, 40)
        assert training.run._incidents is not None
        training.run._incidents.forget_also.clear()  # as if it came while the next steps are arranged
        training.run.clear()
        training.steps(20)

    first, second = events_of(recorded(tmp_path, act, in_c=True)[0])
    assert (first.count, second.step, second.count) == (40, ARMED_AT + 45, 20)


def test_a_loss_that_is_known_to_be_bad_is_not_examined_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examined: list[object] = []
    monkeypatch.setattr(loss_origin, "examine_loss", lambda *given, **options: examined.append(given))
    with watched_training(in_c=False) as training:
        stay_bad(training)
    assert 1 <= len(examined) <= 3


class Guilty(Planted):
    """`bad` is called with the hidden values of every forward, a replay's too, as long as it is there."""

    bad: Callable[[Tensor], Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        self.fault = self.bad
        return super().forward(inputs)


def bad_root(hidden: Tensor) -> Tensor:
    return hidden + torch.sqrt(hidden.sum() * 0 - 1.0)


def test_a_run_that_heals_has_a_new_event_with_an_origin(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        assert isinstance(training.model, Guilty)
        with healed(training):
            poison(training)
            training.steps(60)
        training.steps(30)
        training.model.bad = bad_root
        training.steps(3)

    journal, _ = recorded(tmp_path, act, in_c=True, model=Guilty)
    first, second = events_of(journal)
    assert (first.count, first.ended) == (60, True)
    assert (second.step, second.count) == (ARMED_AT + 90, 3)
    assert "already non-finite before the forward" in first.message, first.message
    assert second.origin is not None
    assert "sqrt" in second.origin.op


def test_a_short_recovery_in_between_is_one_event(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        with healed(training):
            poison(training)
            training.steps(40)
        training.steps(4)
        poison(training)
        training.steps(40)

    (event,) = events_of(recorded(tmp_path, act, in_c=True)[0])
    assert event.count == 80


@pytest.mark.parametrize("in_c", [True, False])
def test_what_was_cleared_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_c: bool) -> None:
    monkeypatch.chdir(tmp_path)  # a report is written there

    def act(training: Training) -> None:
        stay_bad(training, 40)
        training.run.clear()
        training.steps(40)

    first, second = events_of(recorded(tmp_path, act, in_c=in_c)[0])
    assert first.step == ARMED_AT + 5
    assert second.step - ARMED_AT in (45, 46)
    assert "already non-finite before the forward" in second.message


def test_gradients_that_become_finite_are_no_longer_followed_as_bad_ones(judged_alone: list[int]) -> None:
    with watched_training(in_c=True) as training:
        stay_bad(training, 40)
        assert training.is_followed, why_not()
        judged_alone.clear()
        training.steps(1)
        training.steps(1, lambda loss: loss.detach() * 0 + 1.0 + 0.0 * sum_of(training.model))
        assert not training.is_followed
        training.steps(3)
    assert judged_alone


def sum_of(model: nn.Module) -> torch.Tensor:
    return torch.stack([torch.nan_to_num(one).sum() for one in model.parameters()]).sum()


def test_mode_raise_judges_each_step() -> None:
    model = Planted()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    raised = 0
    with probe.watch(model, optimizer, mode="raise"):
        for step in range(8):
            optimizer.zero_grad()
            if step == 3:
                with torch.no_grad():
                    model.first.weight[0, 0] = math.nan
            try:
                F.cross_entropy(model(torch.randn(4, 20)), torch.randint(5, (4,))).backward()
                optimizer.step()
            except AnomalyError:
                raised += 1
    assert raised == 5
