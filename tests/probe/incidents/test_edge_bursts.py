"""Bursts of gradients that grew step by step: information where they come back, else a warning as ever."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
import torch
from detector_series import _train, observe_norms, on_one_thread, run_detectors
from test_new_task import Notebook
from torch import Tensor, nn
from torch.nn import functional as F

from probe.delivery.recorder.recorder import Recorder
from probe.detectors import DetectorThresholds, Observation
from probe.guard import Guard
from probe.incidents.evidence import LateEvidence
from probe.incidents.incidents import IncidentReporter
from probe.settings.config import ProbeConfig
from probe.wire import Event, RunStart

KINDS = {"gradient_explosion", "loss_spike", "loss_divergence"}
AT = 120
"""Step from which on the synthetic series do what the test wants."""


def judged(
    steps: Sequence[Observation], *, ends: bool = True, config: ProbeConfig | None = None
) -> list[Event]:
    """The newest state of each event of a run whose steps are judged one by one, in their order."""
    notebook = Notebook()
    reporter = IncidentReporter(
        RunStart(run="run", rank=0, incarnation=1), "net", config=config or ProbeConfig(quiet=True),
        recorder=cast(Recorder, notebook), guard=Guard(),
    )  # fmt: skip
    for step in steps:
        reporter.judge(step, 0.0, LateEvidence(()))
    if ends:
        reporter.close(step=steps[-1].step, time=1.0)
    return sorted(notebook.latest.values(), key=lambda event: event.step)


def warned(steps: Sequence[Observation], *, ends: bool = True) -> list[tuple[str, int]]:
    """Kind and step of each warning or worse."""
    return [(e.kind, e.step) for e in judged(steps, ends=ends) if e.severity != "info"]


def bursts(steps: Sequence[Observation]) -> list[Event]:
    """The bursts that came back."""
    return [e for e in judged(steps) if e.severity == "info" and e.kind == "gradient_explosion"]


# -------------------------------------------------------------------------------------- real trainings


def alarm_in(steps: Sequence[Observation]) -> int:
    """The step at which the detectors find something, whatever becomes of it."""
    return next(step for step, finding in run_detectors(steps) if finding.kind in KINDS)


def net(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def waves(seed: int, widths: Sequence[int], *, lr: float, momentum: float = 0.0) -> list[Observation]:
    """Full-batch descent on a sum of sines, for 500 steps."""
    torch.manual_seed(seed)
    inputs = torch.randn(96, 10)
    targets = torch.sin(inputs @ torch.randn(10, 2))
    model = net(10, *widths, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return _train(model, optimizer, lambda step: F.mse_loss(model(inputs), targets), 500)


def classes(seed: int, *, lr: float) -> list[Observation]:
    """Full-batch descent on the cross-entropy of three classes."""
    torch.manual_seed(seed)
    inputs = torch.randn(128, 10)
    targets = torch.sin(2 * inputs @ torch.randn(10, 3)).argmax(1)
    model = net(10, 64, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return _train(model, optimizer, lambda step: F.cross_entropy(model(inputs), targets), 500)


@pytest.mark.parametrize(
    ("seed", "widths", "lr"),
    [
        (19, (64,), 0.35),
        pytest.param(1, (64,), 0.35, marks=pytest.mark.faults),
        pytest.param(3, (64,), 0.35, marks=pytest.mark.faults),
        (1, (64,), 0.5),
        (0, (64, 64, 64), 0.1),
        pytest.param(3, (64, 64, 64), 0.1, marks=pytest.mark.faults),
        pytest.param(1, (64, 64, 64), 0.2, marks=pytest.mark.faults),
        (7, (256,), 0.3),
        pytest.param(4, (32, 32), 0.25, marks=pytest.mark.faults),
    ],
)
def test_descent_at_the_edge_of_stability_has_information_alone(
    seed: int, widths: tuple[int, ...], lr: float
) -> None:
    steps = on_one_thread(lambda seed: waves(seed, widths, lr=lr))(seed)
    assert warned(steps) == []


def test_burst_that_came_back_is_told_with_its_own_step_and_words() -> None:
    steps = on_one_thread(lambda seed: waves(seed, (64,), lr=0.35))(19)
    (event,) = bursts(steps)
    assert steps[event.step].total_grad_norm == pytest.approx(event.evidence.value)
    assert "came back within" in event.message and "edge of what is stable" in event.message
    assert event.ended and any("lower the learning rate" in advice for advice in event.advice)


@pytest.mark.parametrize("lr", [0.5, 4.0])
def test_classification_at_the_edge_has_no_warning(lr: float) -> None:
    assert warned(on_one_thread(lambda seed: classes(seed, lr=lr))(0)) == []


@pytest.mark.parametrize("lr", [0.02, 0.05])
def test_momentum_at_the_edge_has_no_warning(lr: float) -> None:
    assert warned(on_one_thread(lambda seed: waves(seed, (64, 64), lr=lr, momentum=0.9))(1)) == []


@pytest.mark.parametrize(("seed", "widths", "lr"), [(1, (64, 64, 64), 0.5), (0, (64,), 1.2)])
def test_descent_with_too_high_a_rate_diverges_and_warns(
    seed: int, widths: tuple[int, ...], lr: float
) -> None:
    steps = on_one_thread(lambda seed: waves(seed, widths, lr=lr))(seed)
    assert not math.isfinite(steps[-1].loss or 0.0)
    found = warned(steps)
    assert found[0][0] in KINDS and ("nonfinite_loss" in dict(found))
    assert found[0][1] == alarm_in(steps)


def test_recurrent_net_whose_gradient_explodes_warns_at_that_step() -> None:
    def train(seed: int) -> list[Observation]:
        torch.manual_seed(seed)
        recurrent, head = nn.RNN(4, 16, batch_first=True, nonlinearity="relu"), nn.Linear(16, 1)
        model = nn.ModuleList([recurrent, head])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def loss_of(step: int) -> Tensor:
            if step == 80:
                with torch.no_grad():
                    recurrent.weight_hh_l0.mul_(2.5 / torch.linalg.matrix_norm(recurrent.weight_hh_l0, 2))
            inputs = torch.rand(8, 20, 4)
            return F.mse_loss(head(recurrent(inputs)[0][:, -1]), inputs.mean((1, 2))[:, None])

        return _train(model, optimizer, loss_of, 100)

    found = warned(on_one_thread(train)(0))
    assert ("gradient_explosion", 80) in found or ("loss_spike", 80) in found


def test_corrupt_batch_at_the_edge_warns_at_that_step() -> None:
    def train(seed: int) -> list[Observation]:
        torch.manual_seed(seed)
        inputs = torch.randn(96, 10)
        targets = torch.sin(inputs @ torch.randn(10, 2))
        model = net(10, 64, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return _train(
            model, optimizer, lambda step: F.mse_loss(model(inputs), targets * (60 if step == AT else 1)), 200
        )

    assert ("gradient_explosion", AT) in warned(on_one_thread(train)(0))


# ---------------------------------------------------------------------------------------------- series


def series(
    factors: Sequence[float], *, losses: Sequence[float] | None = None, noise: float = 0.02
) -> list[Observation]:
    """Steps about a level of 1, then gradients so many times as large; the loss rises with their square."""
    random = np.random.default_rng(2)
    heights = np.array([1.0] * AT + list(factors))
    if losses is None:
        losses = [1.0 + 0.006 * (factor - 1.0) ** 2 for factor in factors]
    values = np.array([1.0] * AT + list(losses)) * np.exp(noise * random.standard_normal(len(heights)))
    norms = np.outer(heights, [1.0, 0.3]) * np.exp(noise * random.standard_normal((len(heights), 2)))
    return [
        observe_norms(step, row, loss=float(loss), rate=0.1)
        for step, (row, loss) in enumerate(zip(norms, values, strict=True))
    ]


def grown(by: float, steps: int) -> list[float]:
    return [by**step for step in range(1, steps + 1)]


def burst(by: float = 1.5, steps: int = 9) -> list[float]:
    """Up, and down again in the same way."""
    up = grown(by, steps)
    return [*up, *up[-2::-1]]


def first_warning(steps: Sequence[Observation]) -> tuple[str, int] | None:
    found = warned(steps)
    return found[0] if found else None


def alarm_of(factors: Sequence[float]) -> int:
    """The step at which the detectors find something, whatever becomes of it."""
    return alarm_in(series(factors))


@pytest.mark.parametrize("by", [1.2, 1.5, 2.0])
def test_gradual_burst_that_comes_back_is_information(by: float) -> None:
    steps = series([*burst(by, round(math.log(40.0) / math.log(by))), *[1.0] * 60])
    assert warned(steps) == []
    assert len(bursts(steps)) == 1


def test_oscillation_that_is_low_at_every_other_step_is_information() -> None:
    factors = [height if at % 2 else 0.7 * height for at, height in enumerate(burst(1.4, 11))]
    assert warned(series([*factors, *[1.0] * 60])) == []


def test_bursts_of_the_same_height_are_information_each() -> None:
    one = [*burst(), *[1.0] * 40]
    steps = series(one * 5)
    assert warned(steps) == []
    assert len(bursts(steps)) >= 2


def test_burst_is_in_the_journal_while_its_verdict_waits() -> None:
    (event,) = judged(series(grown(1.5, 9)), ends=False)
    assert (event.severity, event.kind, event.ended) == ("info", "gradient_explosion", False)
    assert "whether it comes back" in event.message


@pytest.mark.parametrize(
    "after",
    [
        [38.0] * 80,
        [38.0 * 1.3**step for step in range(1, 40)],
        [38.0 * 1.02**step for step in range(1, 80)],
        [*[38.0] * 3, *[12.0] * 80],
        [],
        [30.0, 20.0],
    ],
    ids=["plateau", "grows on", "creeps on", "half-way", "ends at once", "ends on its way"],
)
def test_growth_that_does_not_come_back_warns_of_its_first_step(after: list[float]) -> None:
    factors = [*grown(1.5, 9), *after]
    found = first_warning(series(factors))
    assert found is not None and found[0] in {"gradient_explosion", "loss_spike"}
    assert found[1] == alarm_of(factors)
    assert all("whether it comes back" not in event.message for event in judged(series(factors)))


def test_growth_that_becomes_nan_warns_of_both_at_once() -> None:
    steps = series(grown(1.5, 10))
    bad = replace(observe_norms(len(steps), [math.nan, 1.0], rate=0.1), loss=math.nan)
    found = dict(warned([*steps, bad], ends=False))
    assert found["gradient_explosion"] < len(steps) and found["nonfinite_loss"] == len(steps)


@pytest.mark.parametrize("factors", [[40.0], [5.0, 40.0], [2.0, 9.0, 40.0]])
def test_jump_that_comes_back_warns_at_its_step(factors: list[float]) -> None:
    steps = series([*factors, *[1.0] * 60])
    assert first_warning(steps[: AT + len(factors)]) == ("gradient_explosion", AT + len(factors) - 1)
    assert first_warning(steps) == ("gradient_explosion", AT + len(factors) - 1)


def test_burst_whose_loss_comes_back_only_half_way_warns() -> None:
    losses = [1.0 + 0.006 * (factor - 1.0) ** 2 for factor in grown(1.5, 9)] + [6.0] * 80
    factors = [*grown(1.5, 9), *[2.0] * 80]
    steps = series(factors, losses=losses)
    assert alarm_in(steps) in [step for _, step in warned(steps)]


def test_bursts_that_get_larger_each_time_warn_at_the_third() -> None:
    factors = [part for steps in (8, 9, 10) for part in [*burst(1.5, steps), *[1.0] * 40]]
    steps = series(factors)
    assert len(bursts(steps)) == 2
    (found, *_) = warned(steps)
    assert found[0] in {"gradient_explosion", "loss_spike"} and found[1] > AT + 15 + 17 + 2 * 40


def test_burst_after_a_raised_learning_rate_warns() -> None:
    steps = series([*burst(), *[1.0] * 60])
    raised = [replace(one, highest_rate=0.5 if one.step >= AT else 0.1) for one in steps]
    found = first_warning(raised)
    assert found is not None and found[1] == alarm_of(burst())


def test_burst_above_an_absolute_limit_warns() -> None:
    config = ProbeConfig(quiet=True, thresholds=DetectorThresholds(explosion_norm=30.0))
    events = judged(series([*burst(), *[1.0] * 60]), config=config)
    assert any(event.severity == "warning" for event in events)


CASES: dict[str, Callable[[], list[float]]] = {
    "back": lambda: [*burst(), *[1.0] * 60],
    "plateau": lambda: [*grown(1.5, 9), *[38.0] * 60],
    "twice": lambda: [*burst(), *[1.0] * 40, *burst(), *[1.0] * 40],
}


@pytest.mark.parametrize("name", CASES)
def test_burst_in_batches_of_any_length_gives_the_same_events(name: str) -> None:
    from test_new_task import Judged, Series

    factors = CASES[name]()
    given = Series(factors, 192, noise=0.02)
    given.losses[200:] = 1.0 + 0.006 * (np.array(factors) - 1.0) ** 2
    whole, one_by_one = Judged(given), Judged(given, range(1, len(given.steps)))
    parts = Judged(given, range(7, len(given.steps), 13))
    assert whole.told == parts.told == one_by_one.told
    assert whole.alarms == parts.alarms == one_by_one.alarms
