"""A loss that jumps with the size of the input: falling it is a new task, else the warning it always was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from probe.delivery.recorder.recorder import Recorder
from probe.detectors.base import ObservationBatch
from probe.guard import Guard
from probe.incidents.evidence import LateEvidence, StepEvidence
from probe.incidents.incidents import IncidentReporter
from probe.settings.config import ProbeConfig
from probe.wire import Event, RunStart

AT: Final = 200
SHORT, LONG = 192, 448
WARNINGS: Final = {"loss_spike", "gradient_explosion", "loss_divergence"}


class Notebook:
    """Stands in for a `Recorder`: keeps the newest state of each event."""

    folder = Path("/nowhere")
    is_own_thread = False

    def __init__(self) -> None:
        self.latest: dict[str, Event] = {}

    def event(self, record: Event) -> None:
        self.latest[record.id] = record


class Series:
    """200 steps about a level of 1, then what the test wants; gradients are as high as the loss."""

    def __init__(self, after: Sequence[float], sizes: Sequence[int] | int, *, noise: float = 0.05) -> None:
        random = np.random.default_rng(5)
        values = np.concatenate([np.ones(AT), np.array(after, dtype=np.float64)])
        self.losses = values * np.exp(noise * random.standard_normal(len(values)))
        after_sizes = [sizes] * len(after) if isinstance(sizes, int) else list(sizes)
        self.sizes = [SHORT] * AT + after_sizes
        self.norms = self.losses.copy()
        self.rates = [1e-3] * len(values)
        self.steps = list(range(len(values)))

    def batch(self) -> ObservationBatch:
        norms = np.stack([self.norms, 0.1 * self.norms], axis=1)
        return ObservationBatch(
            steps=self.steps, losses=self.losses.tolist(), total_grad_norms=norms.max(axis=1).tolist(),
            grad_norm=norms, grad_max_abs=norms / 2, missing=None, parameter_norms=[None] * len(norms),
            parameter_names=("w", "b"), layer_names=("a", "b"), layer_of=np.arange(2),
            lowest_rates=self.rates, highest_rates=self.rates, input_elements=self.sizes,
        )  # fmt: skip


class Judged:
    """What a fresh reporter makes of a series that is judged in parts."""

    def __init__(
        self, series: Series, cuts: Sequence[int] = (), *, ends: bool = True, classes: Sequence[bool] = ()
    ) -> None:
        self.notebook = Notebook()
        recorder = cast(Recorder, self.notebook)
        self.reporter = IncidentReporter(
            RunStart(run="run", rank=0, incarnation=1), "net", config=ProbeConfig(quiet=True),
            recorder=recorder, guard=Guard(),
        )  # fmt: skip
        for is_one in classes:
            self.reporter.note_classes(is_one)
        self.alarms: list[int] = []
        self.suspicions: list[str] = []
        batch = series.batch()
        edges = [0, *sorted(cuts), len(batch)]
        for start, stop in pairwise(edges):
            if start < stop:
                part = batch.part(start, stop)
                verdict = self.reporter.judge_quiet(part, [0.0] * len(part), [()] * len(part))
                self.alarms += verdict.alarms
                self.suspicions += [verdict.suspicion] if verdict.suspicion else []
        if ends:
            self.reporter.close(step=series.steps[-1], time=1.0)

    @property
    def told(self) -> list[tuple[str, str, int]]:
        return sorted((event.severity, event.kind, event.step) for event in self.notebook.latest.values())

    @property
    def warned(self) -> set[tuple[str, int]]:
        return {(kind, step) for severity, kind, step in self.told if severity != "info"}


def falling(times: float, share: float, steps: int = 120, floor: float = 0.5) -> list[float]:
    """A loss so many times as high that loses a share of what it has at each step."""
    return [floor + (times - floor) * (1.0 - share) ** step for step in range(steps)]


# ---------------------------------------------------------------------------------------------- new tasks


@pytest.mark.parametrize("times", [5.0, 20.0, 100.0, 1000.0, 20_000.0])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_new_task_whose_loss_falls_is_one_information_of_its_first_step(times: float, share: float) -> None:
    judged = Judged(Series(falling(times, share), LONG))
    assert judged.told == [("info", "loss_spike", AT)]
    assert judged.alarms == []
    (event,) = judged.notebook.latest.values()
    assert "192 -> 448 elements" in event.message and "a new task?" in event.message


def test_new_task_in_heavy_noise_is_information() -> None:
    series = Series(falling(20.0, 0.02, steps=200), LONG, noise=0.3)
    assert Judged(series).warned == set()


def test_new_task_under_gradient_clipping_is_information() -> None:
    series = Series(falling(30.0, 0.02), LONG)
    series.norms = np.minimum(series.norms, 1.0)
    assert Judged(series).told == [("info", "loss_spike", AT)]


def test_new_tasks_one_after_the_other_are_one_information_each() -> None:
    lengths = [LONG] * 150 + [900] * 150
    series = Series(falling(20.0, 0.1, steps=150) + falling(20.0, 0.1, steps=150), lengths)
    assert Judged(series).told == [("info", "loss_spike", AT), ("info", "loss_spike", AT + 150)]


def test_new_task_that_ends_while_its_verdict_waits_is_judged_by_what_is_known() -> None:
    noisy = Series(falling(20.0, 0.04, steps=14), LONG, noise=0.1)
    assert Judged(noisy).warned == set()


@pytest.mark.parametrize("cuts", [(), (AT,), (AT + 1,)])
def test_jump_is_in_the_journal_while_its_verdict_waits(cuts: Sequence[int]) -> None:
    """A process that is killed meanwhile writes nothing more."""
    judged = Judged(Series(falling(20.0, 0.05, steps=5), LONG), cuts, ends=False)
    assert judged.told == [("info", "loss_spike", AT)]
    (event,) = judged.notebook.latest.values()
    assert event.message.splitlines()[0].startswith("Loss ") and "fault or a new task" in event.message
    assert not event.ended and judged.alarms == []
    assert f"loss_spike at step {AT}" in judged.suspicions or not cuts


@pytest.mark.parametrize("after", [falling(20.0, 0.05), [20.0] * 90, [20.0] * 3 + [1.0] * 60])
@pytest.mark.parametrize(
    "kinds", [{"loss_spike"}, {"gradient_explosion"}, {"loss_spike", "gradient_explosion"}]
)
def test_verdict_takes_the_place_of_what_was_written_while_it_waited(
    after: list[float], kinds: set[str]
) -> None:
    series = Series(after, LONG)
    if "gradient_explosion" not in kinds:
        series.norms = np.minimum(series.norms, 1.2)
    if "loss_spike" not in kinds:
        # Less than a spike, and far more for the gradients.
        series.losses[AT:] = 1.0 + 0.4 * (series.losses[AT:] - 1.0) / 19.0
        series.norms[AT:] *= 50.0
    judged = Judged(series)
    assert judged.told
    assert all("fault or a new task" not in event.message for event in judged.notebook.latest.values())
    assert all(event.ended for event in judged.notebook.latest.values())


def test_corrupt_batch_within_a_new_task_still_warns() -> None:
    after = falling(20.0, 0.03)
    after[30] = 4000.0
    assert ("loss_spike", AT + 30) in Judged(Series(after, LONG)).warned


# ------------------------------------------------------------------------------------ what must still warn


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("times", [20.0, 1000.0])
def test_corrupt_batches_of_another_size_warn(steps: int, times: float) -> None:
    series = Series([times] * steps + [1.0] * 60, [LONG] * steps + [SHORT] * 60)
    assert ("loss_spike", AT) in Judged(series).warned


@pytest.mark.parametrize("steps", [1, 3])
def test_corrupt_batches_at_the_first_steps_of_a_new_size_warn(steps: int) -> None:
    assert ("loss_spike", AT) in Judged(Series([50.0] * steps + [1.2] * 60, LONG)).warned


@pytest.mark.parametrize("times", [5.0, 20.0, 100.0, 1000.0])
@pytest.mark.parametrize("growth", [0.0, 0.003, 0.05])
def test_jump_that_stays_or_rises_warns_of_its_first_step(times: float, growth: float) -> None:
    after = [times * (1.0 + growth) ** step for step in range(120)]
    assert ("loss_spike", AT) in Judged(Series(after, LONG)).warned


@pytest.mark.parametrize("times", [5.0, 20.0, 1000.0])
def test_jump_that_falls_at_the_same_size_of_the_input_warns_at_once(times: float) -> None:
    judged = Judged(Series(falling(times, 0.05, steps=1), SHORT), ends=False)
    assert ("loss_spike", AT) in judged.warned


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_jump_right_before_the_end_warns(steps: int) -> None:
    assert ("loss_spike", AT) in Judged(Series(falling(20.0, 0.05, steps=steps), LONG)).warned


def test_jump_at_a_raised_learning_rate_warns_at_once() -> None:
    series = Series(falling(20.0, 0.05, steps=2), LONG)
    series.rates[AT:] = [1e-2] * 2
    assert ("loss_spike", AT) in Judged(series, ends=False).warned


def test_sizes_that_always_change_are_no_sign_of_a_new_task() -> None:
    series = Series(falling(20.0, 0.05), LONG)
    series.sizes = [64 * (3 + step % 7) for step in series.steps]
    assert ("loss_spike", AT) in Judged(series).warned


def test_warning_that_waited_has_all_its_steps_and_alarms_in_order() -> None:
    judged = Judged(Series([20.0] * 30, LONG))
    (event,) = (one for one in judged.notebook.latest.values() if one.kind == "loss_spike")
    assert (event.severity, event.count, event.last_step) == ("warning", 30, AT + 29)
    closed = Judged(Series([20.0] * 90, LONG))
    assert closed.alarms == sorted(closed.alarms) and closed.alarms[0] == AT
    assert any("What changed before" in one.message for one in closed.notebook.latest.values())


# ---------------------------------------------------------------------------------- what never waits


def test_verdict_that_is_wanted_before_the_update_does_not_wait() -> None:
    """As `mode="raise"` and a recovery of explosions have it: each step comes with its evidence."""
    series = Series(falling(20.0, 0.05, steps=1), LONG)
    judged = Judged(series, ends=False, cuts=())
    early = Judged(Series([], ()), ends=False)
    evidence = StepEvidence(
        root=nn.Linear(1, 1), captures=(), parameters={}, loss=None, stage="local", was_scaled=False,
        micro_step=None, no_replay_reason="a test",
    )  # fmt: skip
    early.reporter.judge(series.batch().at(AT), 0.0, evidence)
    assert judged.warned == set()
    assert ("loss_spike", AT) in early.warned


def test_nan_while_a_verdict_waits_is_told_at_once_and_so_is_the_jump() -> None:
    judged = Judged(Series(falling(20.0, 0.05, steps=4), LONG), ends=False)
    bad = Series([*falling(20.0, 0.05, steps=4), math.nan], LONG).batch().at(AT + 4)
    judged.reporter.judge(bad, 0.0, LateEvidence(()))
    assert ("nonfinite_loss", AT + 4) in judged.warned and ("loss_spike", AT) in judged.warned


def test_steps_that_begin_anew_while_a_verdict_waits_have_it_told_before() -> None:
    series = Series([20.0, *[1.0] * 20], LONG)
    series.steps[AT + 1 :] = range(50, 70)
    assert ("loss_spike", AT) in Judged(series, ends=False).warned


# ------------------------------------------------------------------------------------------- any cuts

SERIES: Final = {
    "falls": falling(20.0, 0.05),
    "falls slowly": falling(20.0, 0.004),
    "stays": [20.0] * 120,
    "rises": [20.0 * 1.05**step for step in range(120)],
    "back": [20.0] * 3 + [1.0] * 117,
    "spike in it": [*falling(20.0, 0.05)[:40], 900.0, *falling(20.0, 0.05)[41:]],
}


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(SERIES)),
    noise=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 10**6),
    again=st.booleans(),
)
def test_batches_in_any_cuts_give_the_same_events(name: str, noise: float, seed: int, again: bool) -> None:
    series = Series(SERIES[name], LONG, noise=noise)
    if again:
        series.steps[AT + 25 :] = range(40, 40 + len(series.steps) - AT - 25)
    random = np.random.default_rng(seed)
    cuts = sorted(set(random.integers(1, len(series.steps), size=int(random.integers(1, 60))).tolist()))
    whole, one_by_one = Judged(series), Judged(series, range(1, len(series.steps)))
    parts = Judged(series, cuts)
    assert whole.told == parts.told == one_by_one.told
    assert whole.alarms == parts.alarms == one_by_one.alarms
    messages = [sorted(e.message for e in j.notebook.latest.values()) for j in (whole, parts, one_by_one)]
    assert [m.split("\n")[0] for m in messages[0]] == [m.split("\n")[0] for m in messages[2]]
