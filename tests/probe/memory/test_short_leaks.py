"""Leaks of trainings of some hundred steps, most of which C follows: found by the training's own pace.

The recorder's thread looks for news four times a second, which is once or never in such a training: here it
never does.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from early_arming import early_arming
from small_training import batches, seeded_model
from test_leaks_session import events
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.delivery.recorder.late_parts import LateParts
from probe.loop import fast_path, news_watch
from probe.loop.news_watch import NewsWatch
from probe.memory.heap_meter import Pacer, heap_reader
from probe.memory.leak_watch import LOOKS
from probe.memory.object_watch import ObjectPacer
from probe.memory.time_slices import LookBudget, TimeSlice

pytestmark = [
    pytest.mark.fresh_process,
    pytest.mark.skipif(heap_reader() is None, reason="malloc does not tell what is in use"),
]
STEPS = 300
ELEMENTS = 65_536
"""256 KiB: 32 MiB after 128 steps."""
Step = Callable[[int, nn.Module, Tensor], None]


readings = 60


def note_turn(pacer: Pacer, started_ns: int, took_ns: int, *, is_rising: bool = False) -> None:
    """The first readings are at every step, and there are no others."""
    pacer._turns += 1
    pacer.next_ns = 0 if pacer._turns < readings else 2**62


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at every step at first, however long it takes; then no reading, and nothing by the recorder."""
    for pacer in (Pacer, ObjectPacer):
        monkeypatch.setattr(pacer, "note", note_turn)
    monkeypatch.setattr(LookBudget, "allows", lambda self: True)
    monkeypatch.setattr(news_watch, "_FIRST_S", math.inf)
    monkeypatch.setattr(LookBudget, "open_slice", lambda self: TimeSlice(10**11))
    monkeypatch.setattr(NewsWatch, "look", lambda self: [])
    # The first look ends before C follows the steps, as in the product.
    monkeypatch.setattr(fast_path, "ARMED_AFTER", 80)
    for name in LOOKS:
        importlib.import_module(name)


def leaks_of(spool: Path, keep: Step, before: Callable[[nn.Module], None]) -> list[Any]:
    """Train for 300 steps, most of them in C; return the events of leaks."""
    model = seeded_model()
    before(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        early_arming(in_c=True, at_once=False) as followed,
        probe.watch(model, optimizer, overhead_limit=0.0) as run,
    ):
        for number, (inputs, targets) in enumerate(batches(STEPS)):
            output = model(inputs)
            loss = F.cross_entropy(output, targets)
            optimizer.zero_grad()
            loss.backward()
            keep(number, model, output)
            optimizer.step()
    assert followed.steps > STEPS / 2
    return [event for event in events(spool, run.run) if event.kind == "memory_leak"]


def large() -> Tensor:
    return torch.zeros(ELEMENTS)


outputs: list[Tensor] = []
by_step: dict[int, dict[str, Tensor]] = {}
states: deque[Tensor] = deque()
seen: list[Tensor] = []


def keeps_outputs(number: int, model: nn.Module, output: Tensor) -> None:
    outputs.append(output.detach().mean() + large())


def keeps_a_dict_by_step(number: int, model: nn.Module, output: Tensor) -> None:
    by_step[number] = {"state": large()}


def keeps_a_deque_of_states(number: int, model: nn.Module, output: Tensor) -> None:
    states.append(large())


def keeps_in_a_hook(number: int, model: nn.Module, output: Tensor) -> None:
    """The hook does."""


def remember(module: nn.Module, inputs: Any, output: Tensor) -> None:
    seen.append(output.detach().mean() + large())


def remembers(model: nn.Module) -> None:
    model[1].register_forward_hook(remember)  # type: ignore[operator, index]


def nothing(model: nn.Module) -> None:
    """It is a plain model."""


@pytest.mark.parametrize(
    ("keep", "before", "name"),
    [
        (keeps_outputs, nothing, "outputs"),
        (keeps_a_dict_by_step, nothing, "by_step"),
        (keeps_a_deque_of_states, nothing, "states"),
        (keeps_in_a_hook, remembers, "seen"),
    ],
)
def test_short_leak_is_found_soon_after_it_holds_enough(
    spool: Path, keep: Step, before: Callable[[nn.Module], None], name: str
) -> None:
    try:
        (leak,) = leaks_of(spool, keep, before)
    finally:
        globals()[name].clear()
    assert leak.subject == name
    # 5 % of the process may be more than 32 MiB.
    assert 120 <= leak.step <= 200


losses: list[Tensor] = []


def keeps_losses(number: int, model: nn.Module, output: Tensor) -> None:
    losses.append(output.square().mean())


@pytest.mark.parametrize(("keep", "name"), [(keeps_losses, "losses"), (keeps_outputs, "outputs")])
def test_short_leak_whose_first_look_is_in_steps_that_c_follows_is_found(
    spool: Path, monkeypatch: pytest.MonkeyPatch, keep: Step, name: str
) -> None:
    """As where the modules that a look needs are loaded late: slices need not wait for each other."""
    asked = 0

    def are_loaded(looks: LateParts) -> bool:
        nonlocal asked
        asked += 1
        return asked > 100

    monkeypatch.setattr(sys.modules[__name__], "readings", STEPS)
    monkeypatch.setattr(LateParts, "are_loaded", are_loaded)
    try:
        (leak,) = leaks_of(spool, keep, nothing)
    finally:
        globals()[name].clear()
    assert leak.subject == name


replay: list[Tensor] = []
history: dict[str, list[float]] = {}
cache: list[Tensor] = []


def fills_a_replay_buffer(number: int, model: nn.Module, output: Tensor) -> None:
    if len(replay) < 110:
        replay.append(large())
    else:
        replay[number % 110] = large()


def keeps_metrics(number: int, model: nn.Module, output: Tensor) -> None:
    for name in ("loss", "accuracy", "norm"):
        history.setdefault(name, []).append(float(output.detach().mean()) + number)


def caches_keys_for_an_epoch(number: int, model: nn.Module, output: Tensor) -> None:
    if number % 100 == 99:
        cache.clear()
    cache.append(large())


@pytest.mark.parametrize("keep", [fills_a_replay_buffer, keeps_metrics, caches_keys_for_an_epoch])
def test_short_training_that_keeps_a_bounded_amount_is_silent(spool: Path, keep: Step) -> None:
    try:
        assert leaks_of(spool, keep, nothing) == []
    finally:
        for kept in (replay, history, cache):
            kept.clear()
