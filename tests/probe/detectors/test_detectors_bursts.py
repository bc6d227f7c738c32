"""Bursts of gradients that are a run's own way, and those that are none of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from detector_series import _train, describe, lognormal, observe_norms, on_one_thread, run_detectors
from torch import Tensor, nn
from torch.nn import functional as F

from probe.detectors import Observation


def bursting(heights: Sequence[float], *, layers: int = 3) -> list[Observation]:
    """Quiet lognormal norms; at every seventh step from 40 on the first layer bursts by these factors."""
    norms = np.array(list(lognormal(0, steps=40 + 7 * len(heights), layers=layers)))
    random = np.random.default_rng(0)
    losses = 1.0 + 0.1 * random.random(len(norms))
    for index, height in enumerate(heights):
        norms[40 + 7 * index, 0] *= height
    return [
        observe_norms(step, row, loss=float(loss))
        for step, (row, loss) in enumerate(zip(norms, losses, strict=True))
    ]


def explosions(observations: Sequence[Observation]) -> list[int]:
    return [step for step, finding in run_detectors(observations) if finding.kind == "gradient_explosion"]


def test_bursts_that_grow_out_of_earlier_ones_are_the_runs_own() -> None:
    assert explosions(bursting([4, 9, 14, 12, 18, 25, 30, 22, 40, 35])) == []


def test_a_burst_without_any_before_it_is_an_explosion() -> None:
    assert explosions(bursting([1, 1, 1, 1, 1, 1, 1, 300, 1, 1])) == [40 + 7 * 7]


def test_a_burst_of_forty_is_one_only_where_the_loss_is_extraordinary_too() -> None:
    calm = bursting([1, 1, 1, 1, 1, 1, 1, 40, 1, 1])
    fields = {name: getattr(calm[89], name) for name in Observation.__dataclass_fields__}
    hurt = [*calm[:89], Observation(**fields | {"loss": 1.4}), *calm[90:]]
    assert explosions(calm) == []
    assert explosions(hurt) == [89]


class Spotter(nn.Module):
    """Says whether a sequence holds a certain token."""

    def __init__(self, *, reads_last: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 12), nn.Linear(24, 2)
        self.recurrent = (nn.RNN if reads_last else nn.GRU)(12, 24, batch_first=True)
        self._reads_last = reads_last

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.recurrent(self.embed(tokens))[0]
        return self.head(states[:, -1] if self._reads_last else states.mean(1))


def spot(seed: int, *, reads_last: bool) -> list[Observation]:
    torch.manual_seed(seed)
    model = Spotter(reads_last=reads_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(step: int) -> Tensor:
        length = int(torch.randint(2, 20, (1,))) if reads_last else 14
        tokens = torch.randint(0, 10, (16, length))
        return F.cross_entropy(model(tokens), (tokens == 3).any(1).long())

    return _train(model, optimizer, loss_of, 260)


def fit_at_the_edge(seed: int) -> list[Observation]:
    """Full-batch descent with steps just as long as the curvature allows: now and then the loss rises."""
    torch.manual_seed(seed)
    x = torch.linspace(-1.0, 1.0, 40)[:, None]
    model = nn.Sequential(nn.Linear(1, 60), nn.Tanh(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
    return _train(model, optimizer, lambda step: F.mse_loss(model(x), torch.sin(4.0 * x)), 400)


RUNS: dict[str, Callable[[int], list[Observation]]] = {
    "GRU": lambda _: spot(3, reads_last=False),
    "last state of an RNN": lambda _: spot(3, reads_last=True),
    "edge of stability": lambda _: fit_at_the_edge(0),
}


@pytest.mark.parametrize("name", RUNS)
def test_trainings_that_burst_by_nature_are_quiet(name: str) -> None:
    findings = run_detectors(on_one_thread(RUNS[name])(0))
    assert not findings, describe(findings)
