"""Verdicts after the update: the same numbers, nothing read too early, an origin at the next occurrence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from journals import Journal, read_journal
from torch import Tensor, nn

import probe
from probe.loop import step_queue
from probe.measure.kernels import binding
from probe.measure.statistics.statistics import MeasuringPlan, PendingStatistics, tensor_statistics
from probe.measure.statistics.torch_statistics import plan_by_torch, start_by_torch
from probe.step.losses import LossMeter

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
STEPS, LATE_FROM = 70, 25
"""By then, what is looked at in the first steps alone is over."""


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured as on a device: by torch, with one copy of all results."""
    monkeypatch.setattr(binding, "kernel", lambda: None)


def large_model() -> nn.Sequential:
    """Every tensor is too large for the ways that are the CPU's alone."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(150, 150, bias=False),
        nn.Tanh(),
        nn.Linear(150, 120, bias=False),
        nn.LayerNorm(120, bias=False),
    )


class Branch(nn.Module):
    """The last layer's gradient is NaN in the steps that are asked for; the loss is not."""

    def __init__(self) -> None:
        super().__init__()
        self.body = large_model()
        self.is_bad = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).square().sum()
        if self.is_bad:
            hidden = hidden + torch.sqrt(hidden * 0.0)  # guilty
        return hidden / 1000.0


def train(
    spool: Path,
    *,
    bad: tuple[int, ...] = (),
    clip: Callable[[Any], object] | None = None,
    goes_back: bool = True,
    each_step: Callable[[int, probe.Probe], None] = lambda step, run: None,
    **options: Any,
) -> tuple[Journal, dict[str, Tensor]]:
    """Train; after a bad step the script loads the weights of before. Returns journal and final weights."""
    model = Branch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(3)
    watched = {
        "spool": spool,
        "run": "run",
        "connect": "",
        "level": "basic",
        "overhead_limit": 0.0,
        **options,
    }
    with probe.watch(model, optimizer, **watched) as run:
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            before = {name: value.clone() for name, value in model.state_dict().items()}
            model.is_bad = step in bad
            model(torch.randn(4, 150, generator=generator)).backward()
            if clip is not None:
                clip(model.parameters())
            optimizer.step()
            each_step(step, run)
            if model.is_bad and goes_back:
                model.load_state_dict(before)
    return read_journal(spool / "run"), model.state_dict()


def by_norm(parameters: Any) -> object:
    return torch.nn.utils.clip_grad_norm_(parameters, 0.5)


def by_value(parameters: Any) -> object:
    return torch.nn.utils.clip_grad_value_(parameters, 0.001)


def twice(parameters: Any) -> object:
    parameters = list(parameters)
    by_norm(parameters)
    return torch.nn.utils.clip_grad_norm_(parameters, 0.25)


@pytest.mark.parametrize("clip", [None, by_norm, by_value, twice])
@pytest.mark.usefixtures("by_torch")
def test_late_numbers_are_those_of_a_verdict_before_the_update(
    tmp_path: Path, clip: Callable[[Any], object] | None
) -> None:
    late, late_weights = train(tmp_path / "late", clip=clip, verdict="after_update")
    early, early_weights = train(tmp_path / "early", clip=clip, verdict="before_update")
    assert [frame.step for frame in late.frames] == list(range(STEPS))
    assert all(torch.equal(late_weights[name], early_weights[name]) for name in early_weights)
    for one, other in zip(late.frames, early.frames, strict=True):
        same = ("loss", "loss_raw", "grad_norm", "samples", "lr", "grad_norm_clipped", "clip_fired")
        assert one.scalars.keys() & set(same) == other.scalars.keys() & set(same)
        for name in other.scalars.keys() & set(same):
            assert one.scalars[name] == pytest.approx(other.scalars[name], rel=1e-6), name
        columns = {column.name: column for column in one.columns}
        assert list(columns) == [column.name for column in other.columns]
        for column in other.columns:
            values = [np.frombuffer(c.data, np.float32) for c in (columns[column.name], column)]
            np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-12)


@pytest.mark.usefixtures("by_torch")
def test_nothing_is_read_before_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, started, read = 0, [], []
    start = MeasuringPlan.start

    def watched_start(self: MeasuringPlan, tensors: Any) -> Any:
        pending = start(self, tensors)
        inner, number = pending._read, updates

        def counted() -> Any:
            read.append(updates - number)
            return inner()

        started.append(number)
        pending._read = counted
        return pending

    monkeypatch.setattr(MeasuringPlan, "start", watched_start)
    # The recorder's thread reads them where a step takes long; the training thread is what matters here.
    monkeypatch.setattr(step_queue, "JUDGE_S", 1e9)

    def note_update(step: int, run: probe.Probe) -> None:
        nonlocal updates
        updates += 1

    train(tmp_path, verdict="after_update", each_step=note_update)
    gradients = [number for number in range(LATE_FROM, STEPS) if number in started]
    assert gradients == list(range(LATE_FROM, STEPS))
    assert set(read) == {1}


@pytest.mark.usefixtures("by_torch")
def test_late_event_names_step_and_parameters_and_the_next_one_the_origin(tmp_path: Path) -> None:
    journal, weights = train(tmp_path, bad=(55, 60), verdict="after_update")
    first, second = [
        event
        for event in {event.id: event for event in journal.events}.values()
        if event.kind == "nonfinite_gradient"
    ]
    assert (first.step, first.ended, first.count, first.origin) == (55, True, 1, None)
    assert first.severity == "critical"
    assert "Gradients of 3 of 3 parameters are not finite at step 55" in first.message
    assert "judged after its update" in first.message
    assert first.propagated_to == ["body.0.weight", "body.2.weight", "body.3.weight"]
    assert (second.step, second.count) == (60, 1)
    assert second.origin is not None
    assert "Sqrt" in second.origin.op
    assert "guilty" in second.stacks.forward[-1].code
    bad = next(frame for frame in journal.frames if frame.step == 55)
    assert math.isnan(bad.scalars["grad_norm"])
    assert all(value.isfinite().all() for value in weights.values())


def test_ruined_weights_are_told_as_after_a_verdict_before_the_update(tmp_path: Path) -> None:
    """The step after the late one is judged before its update already, and its loss is no news."""

    def told(verdict: str) -> list[tuple[str, int, bool]]:
        journal, _ = train(tmp_path / verdict, bad=(55,), verdict=verdict, goes_back=False)
        events = {event.id: event for event in journal.events if event.severity == "critical"}.values()
        return [(event.kind, event.step, "judged after its update" in event.message) for event in events]

    early, late = told("before_update"), told("after_update")
    assert [event[:2] for event in late] == [event[:2] for event in early]
    assert [is_late for *_, is_late in early] == [False] * len(early)
    assert [is_late for *_, is_late in late] == [True] + [False] * (len(early) - 1)


def test_values_that_cannot_be_read_end_the_late_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, reads = PendingStatistics.read, 0

    def failing(self: PendingStatistics) -> Any:
        nonlocal reads
        reads += 1
        if reads == 5:
            raise RuntimeError("the device has gone")
        return read(self)

    monkeypatch.setattr(PendingStatistics, "read", failing)
    journal, _ = train(tmp_path, bad=(55,), verdict="after_update")
    assert [frame.step for frame in journal.frames] == list(range(STEPS))
    event = next(event for event in journal.events if event.kind == "nonfinite_gradient")
    assert (event.step, event.origin is not None) == (55, True)
    assert "the device has gone" in caplog.text
    caplog.clear()


def test_last_step_of_a_run_is_judged(tmp_path: Path) -> None:
    journal, _ = train(tmp_path, bad=(STEPS - 1,), verdict="after_update")
    assert next(event.step for event in journal.events if event.kind == "nonfinite_gradient") == STEPS - 1


def test_bad_loss_of_a_late_step_is_told(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with probe.watch(
        model, optimizer, spool=tmp_path, run="run", connect="", verdict="after_update", overhead_limit=0.0
    ):
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).sum()
            (loss * math.inf if step == 55 else loss).backward()
            optimizer.step()
    events = read_journal(tmp_path / "run").events
    first = next(event for event in events if event.severity == "critical")
    assert (first.kind, first.step) == ("nonfinite_loss", 55)
    assert "judged after its update" in first.message


def test_logged_values_stay_with_their_steps(tmp_path: Path) -> None:
    journal, _ = train(tmp_path, verdict="after_update", each_step=lambda step, run: run.log(mine=step))
    logged = [(f.step, f.scalars["log/mine"]) for f in journal.frames if "log/mine" in f.scalars]
    assert logged == [(step, float(step)) for step in range(STEPS)]


@pytest.mark.parametrize(
    "options",
    [
        {"level": "advanced"},
        {"verdict": "auto"},
        {"verdict": "before_update"},
    ],
)
@pytest.mark.usefixtures("by_torch")
def test_verdict_comes_before_the_update_where_it_is_asked_for_or_costs_no_wait(
    tmp_path: Path, options: dict[str, str]
) -> None:
    journal, _ = train(tmp_path, bad=(55,), **{"verdict": "after_update", **options})
    event = next(event for event in journal.events if event.kind == "nonfinite_gradient")
    assert event.origin is not None


def test_user_clipping_of_ours_waits_for_the_norm_and_the_verdict(tmp_path: Path) -> None:
    def clip(parameters: Any) -> object:
        return runs[-1].clip_gradients(0.5)

    runs: list[probe.Probe] = []
    model = Branch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(
        model, optimizer, spool=tmp_path, run="run", connect="", verdict="after_update", overhead_limit=0.0
    ) as run:
        runs.append(run)
        for step in range(STEPS):
            optimizer.zero_grad()
            model.is_bad = step == 55
            model(torch.ones(4, 150)).backward()
            clip(None)
            optimizer.step()
            if model.is_bad:
                break
    event = next(e for e in read_journal(tmp_path / "run").events if e.kind == "nonfinite_gradient")
    assert event.origin is not None


@pytest.mark.parametrize("other", [{"mode": "raise"}, {"recovery": "skip"}])
def test_what_acts_before_the_update_cannot_have_a_late_verdict(other: dict[str, str]) -> None:
    with pytest.raises(ValueError, match='cannot have verdict="after_update"'):
        probe.watch(nn.Linear(2, 2), verdict="after_update", connect="", **other)


# ---------------------------------------------------------------------------------------- what is started


def tensors(*, bad: float | None = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    made = [
        1e-6 + 1e-3 * torch.randn(200, 100, generator=generator),
        torch.randn(20_000, generator=generator).half(),
        1e-25 * torch.randn(130, 130, generator=generator),
        1e25 * torch.randn(17_000, generator=generator),
        torch.full((20_000,), 3.0),
    ]
    if bad is not None:
        made[1][7] = bad
    return made


def test_started_statistics_are_those_of_the_moment_that_they_were_started_at() -> None:
    given: list[Tensor | None] = [*tensors(), None]
    read = start_by_torch(given, plan_by_torch(given))
    for tensor in given[:-1]:
        assert tensor is not None
        tensor.zero_()
    assert read is not None
    (block, missing, is_finite, total), _ = read()
    exact = [tensor.double().numpy() for tensor in tensors()]
    assert missing.tolist() == [False] * 5 + [True]
    assert is_finite
    for index, values in enumerate(exact):
        expected = (np.linalg.norm(values), np.abs(values).max(), values.mean(), values.std())
        for row, value in enumerate(expected):
            tolerance = 1e-9 * (np.abs(values).max() if row > 1 else 0.0)
            assert block[row, index] == pytest.approx(value, rel=1e-9, abs=tolerance)
    assert total == pytest.approx(math.sqrt(sum(np.square(values).sum() for values in exact)), rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_started_statistics_tell_of_bad_elements(bad: float) -> None:
    given: list[Tensor | None] = [*tensors(bad=bad)]
    read = start_by_torch(given, plan_by_torch(given))
    assert read is not None
    (block, _, is_finite, total), _ = read()
    assert not is_finite
    assert total is not None and not math.isfinite(total)
    assert [math.isfinite(value) for value in block[1]] == [True, False, True, True, True]


@pytest.mark.parametrize("unusual", [torch.ones(3), torch.eye(200).to_sparse(), torch.ones(200, 200) * 1j])
@pytest.mark.usefixtures("by_torch")
def test_what_can_be_measured_by_waiting_only_is_measured_at_once(unusual: Tensor) -> None:
    given: list[Tensor | None] = [*tensors(), unusual]
    assert start_by_torch(given, plan_by_torch(given)) is None
    pending = MeasuringPlan(given).start(given)
    expected = tensor_statistics(given)
    given[0].zero_()  # type: ignore[union-attr]
    assert pending.read().has_counts
    np.testing.assert_array_equal(pending.read().block, expected.block)


def test_started_loss_is_that_of_the_moment() -> None:
    def losses() -> Iterator[Tensor]:
        for value in (2.0, 4.0):
            yield torch.tensor(value, requires_grad=True) / 2

    meter, given = LossMeter(), list(losses())
    for loss in given:
        meter.add(loss, None)
    read = meter.start_read()
    meter.reset()
    for loss in given:
        loss.detach().zero_()
    assert read() == (3.0, 3.0)
