"""Which steps in the ring may wait to be judged: those that the detectors themselves say nothing of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probe.delivery.recorder.ring import Ring
from probe.delivery.recorder.ring_format import (
    FRAME,
    HAS_LOSS,
    HAS_MISSING,
    HAS_NORM,
    HAS_PARAMETER_NORMS,
    PAD,
    RAW,
    RAW_HEAD,
    Template,
)
from probe.detectors import DetectorBank, DetectorThresholds, Observation, ObservationBatch
from probe.loop.calm_steps import MOST_STEPS, MOST_WAKES, CalmSteps
from probe.measure.kernels import calm_binding
from probe.measure.kernels.hot_binding import OWN_SCALARS

pytestmark = pytest.mark.skipif(not calm_binding.is_there(), reason="no compiled kernel")
LAYERS, PER_LAYER = 6, 2
COUNT = LAYERS * PER_LAYER
LAYER_OF = np.repeat(np.arange(LAYERS), PER_LAYER).astype(np.intp)
NAMES = tuple(f"layers.{i // 2}.{i}" for i in range(COUNT))
TEMPLATE = Template(layout=0, stage="local", scalars=[*OWN_SCALARS, "lr"])
NUMBER = 3
WARM_UP = 200
Fault = Callable[[Observation, int], Observation]


def observations(seed: int, steps: int, *, first: int = 0) -> list[Observation]:
    """Steps of a healthy run: norms that scatter, a loss that falls."""
    random = np.random.default_rng([seed, first])
    found = []
    for step in range(first, first + steps):
        norms = np.exp(0.3 * random.standard_normal(COUNT)).astype(np.float32).astype(np.float64)
        found.append(
            Observation(
                step=step,
                loss=2.0 + math.exp(-step / 100) + 0.05 * float(random.standard_normal()),
                total_grad_norm=float(np.linalg.norm(norms)),
                grad_norm=norms,
                grad_max_abs=norms / 2.0,
                grad_nan_count=None,
                grad_inf_count=None,
                missing=None,
                parameter_norm=np.ones(COUNT) if step % 10 == 0 else None,
                parameter_names=NAMES,
                layer_names=tuple(f"layers.{i}" for i in range(LAYERS)),
                layer_of=LAYER_OF,
                lowest_rate=1e-3,
                highest_rate=1e-3,
            )
        )
    return found


def batch(steps: Sequence[Observation]) -> ObservationBatch:
    def column(name: str) -> list[Any]:
        return [getattr(one, name) for one in steps]

    return ObservationBatch(
        steps=column("step"),
        losses=column("loss"),
        total_grad_norms=column("total_grad_norm"),
        grad_norm=np.array(column("grad_norm")),
        grad_max_abs=np.array(column("grad_max_abs")),
        missing=None,
        parameter_norms=column("parameter_norm"),
        parameter_names=NAMES,
        layer_names=steps[0].layer_names,
        layer_of=LAYER_OF,
        lowest_rates=column("lowest_rate"),
        highest_rates=column("highest_rate"),
    )


def payload(step: Observation, *, number: int = NUMBER, missing: bool = False) -> bytes:
    """The record that C writes of a step."""
    norms, parameters = step.grad_norm, step.parameter_norm
    assert norms is not None and step.loss is not None and step.total_grad_norm is not None
    flags = HAS_LOSS | HAS_NORM | HAS_MISSING * missing
    flags |= 0 if parameters is None else HAS_PARAMETER_NORMS
    scalars = np.array([0.01, 0.001, math.nan, math.nan, step.highest_rate])
    head = RAW_HEAD.pack(
        step.step, 0.0, number, COUNT, step.loss, step.loss, step.total_grad_norm, 1.0, flags, 5, *[0] * 6
    )
    block = np.stack([norms, norms / 2.0, norms, norms]).astype("<f4").tobytes()
    bits = b"\x80" + bytes((COUNT + 7) // 8 - 1) if missing else b""
    return (
        head
        + scalars.tobytes()
        + block
        + bits
        + (b"" if parameters is None else parameters.astype("<f4").tobytes())
    )


class Run:
    """A bank, a ring, and what says of its steps whether they may wait."""

    def __init__(self, seed: int = 0, *, thresholds: DetectorThresholds | None = None) -> None:
        self.seed, self.next_step = seed, WARM_UP
        self.bank, self.ring = DetectorBank(thresholds or DetectorThresholds()), Ring(None, 1 << 18)
        self.calm, self.waiting = CalmSteps(), list[Observation]()
        for start in range(0, WARM_UP, 20):
            self.bank.observe_batch(batch(observations(seed, 20, first=start)))
        self.note_judged()

    def note_judged(self) -> None:
        if not self.bank.is_calm:
            self.calm.forget()
            return
        self.calm.note_judged(self.bank.calm_limits, TEMPLATE, NUMBER, next_byte=self.ring.counters.head)

    def append(self, steps: int, change: Fault = lambda step, _: step) -> None:
        for index, healthy in enumerate(observations(self.seed, steps, first=self.next_step)):
            step = change(healthy, index)
            self.waiting.append(step)
            assert self.ring.append(RAW, payload(step))
        self.next_step += steps

    def judge(self) -> bool:
        """Judge what waits; whether anything is found, or has jumped."""
        waiting, self.waiting = self.waiting, []
        found = self.bank.observe_batch(batch(waiting))
        counters = self.ring.counters
        self.ring.take(
            end=counters.head, end_seq=counters.next_seq, records=0, next_seq=-1, store=lambda: None
        )
        has_found = bool(found) or bool(self.bank.take_jumps())
        self.note_judged()
        return has_found

    def wake(self, steps: int, change: Fault = lambda step, _: step) -> bool:
        """So many steps come; whether they may wait."""
        self.append(steps, change)
        return self.calm.may_wait(self.ring)


def scaled(step: Observation, factor: float, layers: slice = slice(None)) -> Observation:
    assert step.grad_norm is not None
    factors = np.ones(LAYERS)
    factors[layers] = factor
    norms = step.grad_norm * factors[LAYER_OF]
    total = float(np.linalg.norm(norms))
    return replace(step, grad_norm=norms, grad_max_abs=norms / 2.0, total_grad_norm=total)


FAULTS: dict[str, Fault] = {
    "explosion": lambda step, index: scaled(step, 1e3),
    "explosion of a layer": lambda step, index: scaled(step, 300.0, slice(2, 3)),
    "vanishing": lambda step, index: scaled(step, 1e-6),
    "vanishing of a layer": lambda step, index: scaled(step, 1e-6, slice(1, 2)),
    "zero gradient": lambda step, index: scaled(step, 0.0, slice(4, 5)),
    "loss spike": lambda step, index: replace(step, loss=30.0) if index == 3 else step,
    "decayed learning rate": lambda step, index: replace(step, lowest_rate=1e-9, highest_rate=1e-9),
    "jump of a layer": lambda step, index: scaled(step, 12.0, slice(3, 4)),
    "jump of the loss": lambda step, index: replace(step, loss=(step.loss or 0.0) + 0.9),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_step_of_which_something_is_found_does_not_wait(name: str) -> None:
    run, is_found = Run(), False
    may_wait = True
    for _ in range(120):
        may_wait = run.wake(8, FAULTS[name])
        if may_wait:
            continue
        is_found = run.judge()
        if is_found:
            break
    assert is_found and not may_wait


@pytest.mark.parametrize("name", FAULTS)
def test_what_waits_is_nothing_that_is_found(name: str) -> None:
    """Judged later with others, the first finding is of a step that did not wait."""
    run, judged = Run(), Run()
    for _ in range(120):
        waits = run.wake(5, FAULTS[name])
        judged.append(5, FAULTS[name])
        if judged.judge():
            assert not waits
            return
        if not waits:
            run.judge()
    pytest.fail("nothing was found")


@pytest.mark.parametrize("seed", range(6))
def test_healthy_steps_wait_for_a_second(seed: int) -> None:
    run, waited = Run(seed), []
    for _ in range(80):
        waited.append(run.wake(5))
        if not waited[-1]:
            assert not run.judge()
    assert sum(waited) >= 0.6 * len(waited)
    longest = max(len(part) for part in "".join("w" if one else " " for one in waited).split())
    assert longest == MOST_WAKES


def test_more_than_so_many_steps_do_not_wait() -> None:
    run = Run()
    assert run.wake(MOST_STEPS - 4)
    assert not run.wake(5)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (FRAME, b"a frame"),
        (RAW, payload(observations(0, 1, first=WARM_UP)[0], number=NUMBER + 1)),
        (RAW, payload(observations(0, 1, first=WARM_UP)[0], missing=True)),
        (RAW, payload(replace(observations(0, 1, first=WARM_UP)[0], parameter_norm=np.full(COUNT, np.inf)))),
        (RAW, payload(replace(observations(0, 1, first=WARM_UP)[0], loss=math.nan))),
    ],
    ids=["a frame", "another template", "a missing gradient", "infinite parameters", "no loss"],
)
def test_other_records_do_not_wait(kind: int, data: bytes) -> None:
    run = Run()
    assert run.wake(2)
    assert run.ring.append(kind, data)
    assert not run.calm.may_wait(run.ring)


def test_padding_and_the_end_of_the_ring_are_passed_over() -> None:
    run, kinds = Run(), set[int]()
    for _ in range(400):
        before = run.ring.counters.head % run.ring.capacity
        if not run.wake(3):
            assert not run.judge()
        kinds.add(PAD if run.ring.counters.head % run.ring.capacity < before else RAW)
    assert kinds == {PAD, RAW}


def test_what_has_left_the_ring_meanwhile_is_looked_at_too() -> None:
    """While a wake judges and writes, other steps come and leave the ring with those before them."""
    run = Run()
    for _ in range(30):
        run.wake(2)
        run.append(1)
        assert not run.judge()
        assert run.wake(1)


def test_what_was_written_over_is_not_looked_at() -> None:
    run = Run()
    assert run.wake(2)
    begun = run.ring.counters.head
    while run.ring.counters.head - begun <= run.ring.capacity // 2:
        run.append(1)
    counters = run.ring.counters
    run.ring.take(end=counters.head, end_seq=counters.next_seq, records=0, next_seq=-1, store=lambda: None)
    assert not run.calm.may_wait(run.ring)


def test_own_limits_and_what_goes_on_have_no_step_wait() -> None:
    assert not Run(thresholds=DetectorThresholds(explosion_norm=1e6)).wake(1)
    run = Run()
    run.append(2, FAULTS["zero gradient"])
    assert not run.judge()
    assert not run.wake(1)


def test_limits_are_gathered_seldom_and_ever_more_seldom_where_they_are_of_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, gathered = Run(), [0]
    limits = run.bank.calm_limits

    def gather() -> Any:
        gathered[0] += 1
        return limits()

    monkeypatch.setattr(run.bank, "calm_limits", gather)
    for _ in range(100):
        if not run.wake(4):
            run.judge()
    assert 1 <= gathered[0] <= 4
    gathered[0] = 0
    for _ in range(100):
        run.append(1, lambda step, _: replace(step, loss=(step.loss or 0.0) + 0.8))
        run.calm.may_wait(run.ring)
        run.judge()
    assert gathered[0] <= 12
