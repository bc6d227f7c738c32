"""What changed before an event, against series whose changes are planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probe.detectors.base import Observation, ObservationBatch
from probe.detectors.why import Move, RecentSteps, chain

LAYERS = ("blocks.0", "blocks.1", "blocks.2", "head")


def observe(step: int, *, loss: float = 1.0, norms: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> Observation:
    """One step of four layers with one parameter each."""
    values = np.array(norms)
    return Observation(
        step=step,
        loss=loss,
        total_grad_norm=float(np.linalg.norm(values)),
        grad_norm=values,
        grad_max_abs=values,
        grad_nan_count=np.zeros(4),
        grad_inf_count=np.zeros(4),
        missing=np.zeros(4, dtype=np.bool_),
        parameter_norm=None,
        parameter_names=tuple(f"{layer}.weight" for layer in LAYERS),
        layer_names=LAYERS,
        layer_of=np.arange(4),
    )


def noisy(
    rng: np.random.Generator, step: int, *, factors: tuple[float, ...] = (1, 1, 1, 1), loss: float = 1.0
) -> Observation:
    scatter = rng.lognormal(0.0, 0.1, 5)
    return observe(step, loss=float(loss * scatter[4]), norms=tuple(np.array(factors) * scatter[:4]))


def series(recent: RecentSteps, step: int) -> list[tuple[str, int]]:
    return [(move.series, move.step) for move in recent.explain(step)]


def test_what_moved_first_is_named_first_with_its_size() -> None:
    rng, recent = np.random.default_rng(0), RecentSteps()
    for step in range(60):
        recent.note(noisy(rng, step))
    recent.note(noisy(rng, 60, factors=(1, 1, 50, 1)))
    recent.note(noisy(rng, 61, factors=(20, 30, 50, 1), loss=40.0))
    moves = recent.explain(61)
    assert [(move.series, move.step) for move in moves] == [
        ("blocks.2", 60),
        ("loss", 61),
        ("blocks.1", 61),
        ("blocks.0", 61),
    ]
    assert moves[0].times == pytest.approx(50, rel=0.4)
    assert moves[1].times == pytest.approx(40, rel=0.4)


def test_steps_after_the_event_and_quiet_series_are_not_named() -> None:
    rng, recent = np.random.default_rng(1), RecentSteps()
    for step in range(40):
        recent.note(noisy(rng, step))
    recent.note(noisy(rng, 40, loss=30.0))
    recent.note(noisy(rng, 41, factors=(100, 100, 100, 100)))
    assert series(recent, 40) == [("loss", 40)]


def test_a_batch_gives_the_same_as_its_steps() -> None:
    rng = np.random.default_rng(2)
    steps = [noisy(rng, step) for step in range(30)] + [noisy(rng, 30, factors=(1, 9, 1, 1))]
    one_by_one, together = RecentSteps(), RecentSteps()
    for observation in steps:
        one_by_one.note(observation)
    for part in (steps[:20], steps[20:]):
        together.note(
            ObservationBatch(
                steps=[one.step for one in part],
                losses=[one.loss for one in part],
                total_grad_norms=[one.total_grad_norm for one in part],
                grad_norm=np.array([one.grad_norm for one in part]),
                grad_max_abs=np.array([one.grad_max_abs for one in part]),
                missing=None,
                parameter_norms=[None] * len(part),
                parameter_names=part[0].parameter_names,
                layer_names=LAYERS,
                layer_of=part[0].layer_of,
            )
        )
    assert together.explain(30) == one_by_one.explain(30)
    assert series(together, 30) == [("blocks.1", 30)]


def test_values_that_are_not_finite_have_moved() -> None:
    rng, recent = np.random.default_rng(3), RecentSteps()
    for step in range(30):
        recent.note(noisy(rng, step))
    recent.note(noisy(rng, 30, factors=(1, np.nan, np.inf, 1)))
    assert sorted(series(recent, 30)) == [("blocks.1", 30), ("blocks.2", 30)]


def test_short_histories_and_other_layouts_explain_nothing() -> None:
    rng, recent = np.random.default_rng(4), RecentSteps()
    assert recent.explain(0) == []
    for step in range(10):
        recent.note(noisy(rng, step))
    recent.note(noisy(rng, 10, loss=100.0))
    assert recent.explain(10) == []
    for step in range(11, 60):
        recent.note(noisy(rng, step))
    other = noisy(rng, 60, loss=100.0)
    recent.note(replace(other, parameter_names=("a", "b", "c", "d")))
    assert recent.explain(60) == []


def test_steps_that_begin_again_are_a_history_of_their_own() -> None:
    rng, recent = np.random.default_rng(5), RecentSteps()
    for step in range(50):
        recent.note(noisy(rng, step))
    for step in range(20, 60):
        recent.note(noisy(rng, step, loss=100.0))
    assert recent.explain(59) == []


@pytest.mark.parametrize("seed", range(3))
def test_healthy_noise_moves_rarely(seed: int) -> None:
    rng, recent = np.random.default_rng(seed), RecentSteps()
    named = 0
    for step in range(2_000):
        recent.note(noisy(rng, step))
        if step % 20 == 0:
            named += len(recent.explain(step))
    assert named <= 2


def test_chain_reads_from_the_event_back_to_what_moved_first() -> None:
    moves = [Move("blocks.2", 811, 55.0), Move("loss", 812, 40.0, what="loss"), Move("blocks.0", 812, 3.2)]
    assert chain(moves) == (
        "What changed before (newest first): gradients at step 812: `blocks.0` 3.2x its median "
        "<- loss 40x its median at step 812 <- gradients at step 811: `blocks.2` 55x its median"
    )
    assert chain(moves[:1]) is None


def test_memory_stays_bounded() -> None:
    recent = RecentSteps()
    for step in range(1_000):
        recent.note(observe(step))
    assert sum(len(held.numbers) for held in recent._held) <= 97


def test_steps_whose_loss_or_gradients_are_unknown_have_not_moved() -> None:
    recent, random = RecentSteps(), np.random.default_rng(0)
    for step in range(64):
        known = observe(step, loss=float(random.normal(1.0, 0.01)))
        unknown = replace(known, loss=None, missing=np.ones(4, dtype=np.bool_))
        recent.note(known if step < 60 else unknown)
    assert series(recent, 63) == []
