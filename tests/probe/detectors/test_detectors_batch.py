"""Batches of steps give the findings, and leave the histories, of the same steps one by one."""

from __future__ import annotations

import math
import tracemalloc
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from detector_series import TRAININGS, as_batch, lognormal, observe_norms
from hypothesis import given, settings
from hypothesis import strategies as st
from thinned import thinned

from probe.detectors import DetectorBank, DetectorThresholds, Finding, Observation
from probe.detectors.baselines import BLOCKS, RowHistory, SeriesHistory
from probe.detectors.layers import LayerIndex
from probe.detectors.why import RecentSteps

EAGER = DetectorThresholds(
    warmup_steps=8,
    zero_steps=3,
    vanishing_steps=2,
    explosion_factor=3.0,
    explosion_mads=4.0,
    vanishing_factor=0.1,
    loss_spike_factor=1.1,
    loss_spike_mads=4.0,
)
LIMITED = replace(EAGER, explosion_norm=1e3, vanishing_norm=1e-4)


# ------------------------------------------------------------------------------------------ the series


class Series:
    """A random training run with faults of every kind that a batch may meet."""

    def __init__(self, seed: int, steps: int) -> None:
        self._random = np.random.default_rng(seed)
        self._steps = steps
        self._per_layer = int(self._random.integers(1, 4))
        self._sigma = float(self._random.choice([0.0, 0.05, 0.3, 1.0]))
        self._trouble = float(self._random.choice([0.0, 0.01, 0.05]))
        self._loss_level = float(self._random.choice([0.0, 1.0, 2.0, -3.0]))
        self._alternates = self._random.random() < 0.3
        self._rate = 0.0 if self._trouble == 0.0 and self._sigma == 0.0 else 1e-3
        self._layout()

    def _layout(self) -> None:
        layers = int(self._random.choice([1, 2, 5, 20, 70]))
        self._count = layers * self._per_layer
        self._level = np.exp(self._random.normal(0.0, 2.0, self._count))
        self._factor = np.ones(self._count)
        self._left = 0
        self._names = observe_norms(0, np.ones(self._count), per_layer=self._per_layer)

    def observations(self) -> Iterator[Observation]:
        random, step = self._random, 0
        for _ in range(self._steps):
            if random.random() < self._trouble / 4:
                self._layout()
            if random.random() < self._trouble / 4:
                step = int(random.integers(0, step + 1))
            yield self._step(step)
            step += int(random.random() < 0.99)

    def _step(self, step: int) -> Observation:
        random = self._random
        if self._left == 0 and random.random() < self._trouble:
            chosen = random.random(self._count) < random.choice([0.2, 1.0])
            factor = random.choice([0.0, 1e-6, 0.02, 4.0, 50.0, 1e4])
            self._factor, self._left = np.where(chosen, factor, 1.0), int(random.choice([1, 4, 30]))
        norms = self._level * self._factor * np.exp(self._sigma * random.standard_normal(self._count))
        self._left = max(self._left - 1, 0)
        if not self._left:
            self._factor = np.ones(self._count)
        missing = np.zeros(self._count, dtype=np.bool_)
        if self._alternates:
            missing[: self._count // 2] = step % 3 == 2
        if random.random() < self._trouble:
            missing |= random.random(self._count) < 0.5
        if random.random() < self._trouble / 2:
            norms[random.integers(self._count)] = random.choice([math.nan, math.inf])
        return self._observation(step, norms, self._loss(), missing)

    def _loss(self) -> float | None:
        random = self._random
        loss = self._loss_level + 0.1 * random.standard_normal()
        if random.random() < self._trouble:
            return random.choice([None, 0.0, -1.0, loss * 3.0, loss * 100.0, math.nan])
        return float(loss)

    def _observation(
        self, step: int, norms: np.ndarray, loss: float | None, missing: np.ndarray
    ) -> Observation:
        rate = None if self._alternates else float(self._rate * 0.8 ** (step % 100))
        plain = observe_norms(step, norms, loss=loss, missing=missing, per_layer=self._per_layer, rate=rate)
        fields = {name: getattr(plain, name) for name in Observation.__dataclass_fields__}
        layout = ("parameter_names", "layer_names", "layer_of")
        fields |= {name: getattr(self._names, name) for name in layout}
        norm = norms * 3.0 if step % 10 == 0 else None
        if norm is not None and self._random.random() < self._trouble:
            norm[0] = math.nan
        return Observation(
            **fields | {"parameter_norm": norm, "grad_nan_count": None, "grad_inf_count": None}
        )


def split(observations: Sequence[Observation], random: np.random.Generator) -> list[list[Observation]]:
    """Cut into batches of one layout and random length; a batch may hold what it is not meant to."""
    parts: list[list[Observation]] = []
    for observation in observations:
        part = parts[-1] if parts else []
        if part and part[0].layer_of is observation.layer_of and random.random() > 0.06:
            part.append(observation)
        else:
            parts.append([observation])
    return parts


def judge(bank: DetectorBank, parts: list[list[Observation]]) -> list[tuple[int, list[Finding]]]:
    """Findings by position in the series; single steps and batches alternate as the parts say."""
    found: list[tuple[int, list[Finding]]] = []
    at = 0
    for part in parts:
        if len(part) == 1 and (findings := bank.observe(part[0])):
            found.append((at, findings))
        elif len(part) > 1:
            found += [(at + index, findings) for index, findings in bank.observe_batch(as_batch(part))]
        at += len(part)
    return found


def contents(value: Any) -> Any:
    """Everything that a detector remembers, as plain nested tuples."""
    if isinstance(value, SeriesHistory):
        kept = value._buffer[value._end - len(value) : value._end]
        return ("series", tuple(kept), repr(value.baseline()._replace(start=0)), value._stale)
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes())
    if isinstance(value, list | tuple | deque):
        return tuple(contents(item) for item in value)
    if hasattr(value, "__dict__"):
        return tuple((name, contents(item)) for name, item in sorted(vars(value).items()))
    return repr(value)


def same(first: list[tuple[int, list[Finding]]], second: list[tuple[int, list[Finding]]]) -> bool:
    """Compare by text, for NaN is not equal to itself."""
    return repr(first) == repr(second)


# ------------------------------------------------------------------------------------------- the tests


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([DetectorThresholds(), EAGER, LIMITED]))
def test_bank_batches_find_and_learn_the_same_as_single_steps(
    seed: int, thresholds: DetectorThresholds
) -> None:
    observations = list(Series(seed, 260).observations())
    single, batched = DetectorBank(thresholds), DetectorBank(thresholds)
    expected = judge(single, [[observation] for observation in observations])
    found = judge(batched, split(observations, np.random.default_rng(seed)))
    assert same(found, expected)
    assert contents(batched) == contents(single)


@pytest.mark.parametrize(
    ("factor", "rows", "lasting"),
    thinned([0.0, 1e-6, 0.02, 50.0, 1e5], [slice(0, 3), slice(None)], [1, 3, 13, 90], every=4),
)
def test_bank_faults_that_end_where_a_batch_begins_are_the_same(
    factor: float, rows: slice, lasting: int
) -> None:
    observations = []
    for step, norms in enumerate(lognormal(1, steps=320, layers=12)):
        if 100 <= step < 100 + lasting or 240 <= step < 240 + lasting // 2:
            norms[rows] *= factor
        observations.append(observe_norms(step, norms, loss=9.0 if 100 <= step < 100 + lasting else 2.0))
    single, batched = DetectorBank(LIMITED), DetectorBank(LIMITED)
    expected = judge(single, [[observation] for observation in observations])
    cuts = sorted({*range(0, 100, 20), *range(100 + lasting, 320, 20), 100, 240, 240 + lasting // 2, 320})
    assert same(judge(batched, [observations[a:b] for a, b in pairwise(cuts)]), expected)
    assert contents(batched) == contents(single)


@pytest.mark.parametrize("name", sorted(TRAININGS))
def test_bank_batches_of_a_real_training_learn_the_same(name: str) -> None:
    observations = TRAININGS[name](3)
    single, batched = DetectorBank(EAGER), DetectorBank(EAGER)
    expected = judge(single, [[observation] for observation in observations])
    parts = [observations[start : start + 16] for start in range(0, len(observations), 16)]
    assert same(judge(batched, parts), expected)
    assert contents(batched) == contents(single)


@pytest.mark.parametrize(("layers", "size"), thinned([1, 3, 20, 70, 1100], [2, 16, 100], every=3))
def test_bank_healthy_batches_are_not_judged_step_by_step(
    layers: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = DetectorBank(DetectorThresholds())
    losses = 2.0 + 0.1 * np.random.default_rng(0).standard_normal(400)
    steps = [
        observe_norms(i, norms, loss=losses[i], per_layer=1)
        for i, norms in enumerate(lognormal(0, steps=400, layers=layers))
    ]
    single = DetectorBank(DetectorThresholds())
    judge(single, [[step] for step in steps])
    judge(bank, [[step] for step in steps[:100]])
    with monkeypatch.context() as patch:
        for detector in bank._detectors:
            patch.setattr(detector, "observe", None)
        assert not judge(bank, [steps[start : start + size] for start in range(100, 400, size)])
    assert contents(bank) == contents(single)


@pytest.mark.parametrize("kind", ["dead layer", "experts", "negative loss", "no loss"])
def test_bank_lasting_peculiarities_are_not_judged_step_by_step(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    norms = list(lognormal(0, steps=400, layers=8))
    missing = np.zeros((400, 8), dtype=np.bool_)
    losses: list[float | None] = list(2.0 + 0.1 * random.standard_normal(400))
    if kind == "dead layer":
        # Three times its longest life as a zero layer, and a ninth of its steps: no verdict for long.
        for step in norms[100:200:2]:
            step[3] = 0.0
        for step in norms[396:]:
            step[3] = 0.0
    elif kind == "experts":
        missing[np.arange(400), random.integers(0, 4, 400)] = True
    else:
        losses = [None if kind == "no loss" else -5.0 + 0.1 * random.standard_normal() for _ in range(400)]
    steps = [observe_norms(i, norms[i], loss=losses[i], missing=missing[i]) for i in range(400)]
    bank = DetectorBank(DetectorThresholds())
    judge(bank, [[step] for step in steps[:300]])
    for detector in bank._detectors:
        monkeypatch.setattr(detector, "observe", None)
    assert not judge(bank, [steps[start : start + 16] for start in range(300, 396, 16)] + [steps[396:]])


def test_bank_batch_with_a_spike_finds_it_at_its_index() -> None:
    steps = [
        observe_norms(i, (300.0 if i == 207 else 1.0) * norms, loss=9.0 if i == 203 else 2.0)
        for i, norms in enumerate(lognormal(5, steps=240))
    ]
    bank = DetectorBank(DetectorThresholds())
    assert not bank.observe_batch(as_batch(steps[:200]))
    found = bank.observe_batch(as_batch(steps[200:]))
    assert [(index, [finding.kind for finding in findings]) for index, findings in found] == [
        (3, ["loss_spike"]),
        (7, ["gradient_explosion"]),
    ]


def test_bank_empty_batch_and_model_without_parameters_find_nothing() -> None:
    bank = DetectorBank(DetectorThresholds())
    steps = [observe_norms(i, []) for i in range(5)]
    assert bank.observe_batch(as_batch(steps)) == []
    assert bank.observe_batch(as_batch([observe_norms(0, [1.0])]).part(0, 0)) == []


def test_observation_batch_at_is_the_step_it_was_made_of() -> None:
    missing = np.array([False, True])
    steps = [observe_norms(i, [1.0 + i, 2.0], loss=float(i), missing=missing) for i in range(3)]
    again = as_batch(steps).at(1)
    for name in ("step", "loss", "total_grad_norm", "parameter_names", "layer_names"):
        assert getattr(again, name) == getattr(steps[1], name)
    assert again.grad_norm is not None and (again.grad_norm == [2.0, 2.0]).all()
    assert again.missing is not None and (again.missing == missing).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400),
    st.integers(0, 2**32 - 1),
    st.sampled_from([(10, 1), (20, 4), (64, 4), (128, 7)]),
)
def test_series_history_extend_and_preview_are_successive_additions(
    values: list[float], seed: int, sizes: tuple[int, int]
) -> None:
    random, window, every = np.random.default_rng(seed), *sizes
    single, batched = (SeriesHistory(window=window, refresh_steps=every) for _ in range(2))
    while values:
        count = int(random.integers(1, 40))
        part, values = values[:count], values[count:]
        preview = batched.preview(part)
        low, high = batched.reach(np.array(part)) if len(batched) else (-math.inf, math.inf)
        for index, value in enumerate(part):
            seen = [baseline for baseline in preview if baseline.start <= index][-1]
            assert repr(seen._replace(start=0)) == repr(single.baseline()._replace(start=0))
            assert not low > seen.median and not high < seen.median
            single.add(value)
        batched.extend(part, preview if random.random() < 0.5 else ())
        assert contents(batched) == contents(single)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 15, 16, 17, 200, 1030]))
def test_row_history_extend_is_successive_additions(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    single, batched = RowHistory(rows, window=50), RowHistory(rows, window=50)
    for _ in range(6):
        columns = random.normal(0.0, 3.0, (int(random.integers(1, BLOCKS + 1)), rows))
        columns[random.random(columns.shape) < random.choice([0.0, 0.1])] = math.nan
        columns = columns[:40]
        batched.extend(columns, batched.preview(columns))
        for column in columns:
            single.add(column)
        assert contents(batched) == contents(single)


def test_bank_pauses_between_detectors_and_finds_the_same() -> None:
    pauses: list[int] = []
    plain = DetectorBank(DetectorThresholds())
    paused = DetectorBank(DetectorThresholds(), pause=lambda: pauses.append(0))
    steps = [
        observe_norms(i, (300.0 if i == 207 else 1.0) * norms, loss=2.0)
        for i, norms in enumerate(lognormal(5, steps=240))
    ]
    batches = [as_batch(steps[start : start + 8]) for start in range(0, 240, 8)]
    found = [paused.observe_batch(batch) for batch in batches]
    assert any(found) and found == [plain.observe_batch(batch) for batch in batches]
    assert len(pauses) >= len(batches) * len(paused._detectors)


@pytest.mark.parametrize("per_layer", [1, 2, 3, 5])
def test_layer_norms_of_a_batch_are_those_of_its_steps_for_all_who_ask(per_layer: int) -> None:
    steps = [
        observe_norms(step, norms, per_layer=per_layer)
        for step, norms in enumerate(lognormal(per_layer, steps=6, layers=30))
    ]
    index, other = LayerIndex(), LayerIndex()
    index.update(steps[0], lambda: None, is_again=False)
    other.update(steps[0], lambda: None, is_again=False)
    batch = as_batch(steps)
    norms = index.norms_of(batch)
    assert other.norms_of(batch) is norms and not norms.flags.writeable
    layers = range(0, 30, per_layer)
    wanted = [[math.hypot(*one.grad_norm[at : at + per_layer]) for at in layers] for one in steps]
    assert np.allclose(norms, wanted, rtol=1e-14)
    # A part of a batch is another batch.
    assert np.array_equal(index.norms_of(batch.part(2, 4)), norms[2:4])


def test_bank_and_recent_steps_hold_little_of_two_thousand_parameters() -> None:
    random = np.random.default_rng(0)
    names = observe_norms(0, np.ones(2000), per_layer=2)
    batches = [
        as_batch(
            [replace(names, step=step, grad_norm=random.lognormal(0.0, 0.3, 2000)) for step in range(*part)]
        )
        for part in pairwise(range(0, 307, 9))
    ]
    bank, recent = DetectorBank(DetectorThresholds()), RecentSteps()
    tracemalloc.start()
    try:
        while batches:
            batch = replace(batches.pop(0), kept={})
            bank.observe_batch(batch)
            recent.note(batch)
        del batch
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Windows of 128, 96 and 84 steps of 1,000 layers in single precision: 1.2 MiB.
    assert held < 1.7 * 2**20
    # What one batch takes on the way stays with malloc on the recorder's thread.
    assert peak - held < 1.5 * 2**20
