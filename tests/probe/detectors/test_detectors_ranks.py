"""Replicas compared by their norms: who differs, from when on, and who is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from probe.detectors.ranks.replicas import RankFinding, ReplicaSample, ReplicaWatch

NAMES = ("a.weight", "a.bias", "b.weight", "b.bias")
LAYERS = ("a", "a", "b", "b")
EVERY = 10
"""Steps between two samples of the parameters."""

Change = Callable[[int, int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(rank, step, gradients, parameters) -> what this rank has of them."""


def replicas(
    ranks: int, steps: int, change: Change | None = None, *, seed: int = 0
) -> Iterable[tuple[int, int, ReplicaSample]]:
    """What ranks with the same gradients and parameters report: (rank, step, sample)."""
    generator = np.random.default_rng(seed)
    parameters = generator.lognormal(size=len(NAMES))
    for step in range(0, steps, EVERY):
        gradients = generator.lognormal(size=len(NAMES))
        parameters = parameters * (1 + 1e-3 * generator.normal(size=len(NAMES)))
        for rank in range(ranks):
            own = gradients, parameters
            if change is not None:
                own = change(rank, step, *own)
            yield rank, step, ReplicaSample(time=0.05 * step, gradients=own[0], parameters=own[1])


def judge(
    samples: Iterable[tuple[int, int, ReplicaSample]], ranks: int, *, expected: int | None = None
) -> list[RankFinding]:
    """All findings, each in its latest state."""
    watch = ReplicaWatch(expected or ranks, parameter_names=NAMES, layer_of=LAYERS)
    for rank in range(ranks):
        watch.lineup.join(rank)
    found: list[RankFinding] = []
    for rank, step, sample in samples:
        watch.reach(rank, step, sample.time, float(np.linalg.norm(sample.gradients)))
        watch.add(rank, step, sample)
        found += watch.findings()
    found += watch.findings(everything=True)
    return list({(item.kind, item.rank, item.step, item.subject): item for item in found}.values())


def spoil(guilty: Sequence[int], *, from_step: int, until: int = 10**9, factor: float = 1.01) -> Change:
    """The second parameter of these ranks is another."""

    def change(
        rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if rank in guilty and from_step <= step < until:
            parameters = parameters * np.array([1, factor, 1, 1])
        return gradients, parameters

    return change


def test_equal_replicas_are_silent_for_10000_steps() -> None:
    assert judge(replicas(64, 10_000), 64) == []


def test_float32_rounding_in_another_order_is_silent() -> None:
    noise = np.random.default_rng(1)

    def change(
        rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # Two roundings either way: what a sum in another order does to a norm.
        shake = 1 + 2.0**-24 * noise.integers(-2, 3, size=(2, len(NAMES)))
        return gradients * shake[0], parameters * shake[1]

    assert judge(replicas(16, 4000, change), 16) == []


@pytest.mark.parametrize("rank", [0, 13, 63])
def test_one_differing_rank_of_64_is_named_with_its_first_step_and_layer(rank: int) -> None:
    (finding,) = judge(replicas(64, 400, spoil([rank], from_step=200)), 64)
    assert (finding.kind, finding.severity, finding.rank) == ("rank_divergence", "critical", rank)
    assert (finding.step, finding.affected) == (200, ("a",))
    # 1 - 1 / 1.01: relative to the larger of both norms.
    assert finding.value == pytest.approx(1 - 1 / 1.01)
    assert finding.neighbours[-1] == (190, 0.0)
    assert finding.message.splitlines()[0].startswith(
        f"Rank {rank} is not a replica of rank {int(rank == 0)} "
    )
    assert f"63 of 64 ranks are equal; rank {rank} is not." in finding.message
    assert "At step 190 it was still equal." in finding.message
    assert finding.advice == "since a step"


def test_one_skipped_update_is_found_by_the_part_of_a_thousandth_that_it_leaves() -> None:
    (finding,) = judge(replicas(8, 200, spoil([5], from_step=100, factor=1 + 1e-5)), 8)
    assert (finding.rank, finding.step) == (5, 100)


def test_two_ranks_that_differ_from_the_start_are_one_event_that_accuses_neither() -> None:
    (finding,) = judge(replicas(2, 100, spoil([1], from_step=0)), 2)
    assert (finding.rank, finding.step, finding.severity) == (1, 0, "critical")
    assert "from the start" in finding.message and finding.advice == "from the start"
    assert "nothing shows which one is right" in finding.message


def test_64_ranks_of_which_no_two_are_alike_are_one_event() -> None:
    def change(
        rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return gradients, parameters * (1 + 0.01 * rank)

    (finding,) = judge(replicas(64, 100, change), 64)
    assert (finding.rank, finding.step) == (1, 0)


def test_two_bad_ranks_of_eight_are_an_event_each() -> None:
    found = judge(replicas(8, 100, spoil([2, 6], from_step=50)), 8)
    assert [(item.rank, item.step) for item in found] == [(2, 50), (6, 50)]


def test_difference_that_goes_away_ends_its_event() -> None:
    (finding,) = judge(replicas(4, 300, spoil([3], from_step=100, until=200)), 4)
    assert (finding.step, finding.last_step, finding.count, finding.ended) == (100, 190, 10, True)


def test_difference_in_a_single_sample_is_not_said() -> None:
    assert judge(replicas(4, 300, spoil([3], from_step=100, until=110)), 4) == []


def own_gradients(
    rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return gradients * (1 + 0.1 * rank), parameters * (1 + 0.01 * rank)


def test_ranks_with_gradients_of_their_own_are_told_of_once_as_information() -> None:
    (finding,) = judge(replicas(4, 2000, own_gradients), 4)
    assert (finding.severity, finding.subject, finding.step) == ("info", "gradients", 0)


@pytest.mark.parametrize("first_step", [0, 41_000])
def test_ranks_that_were_equal_at_first_are_told_of_from_their_first_difference_on(first_step: int) -> None:
    def change(
        rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        own = own_gradients(rank, step, gradients, parameters)
        return own[0], own[1] if step else parameters

    samples = [(rank, first_step + step, sample) for rank, step, sample in replicas(4, 2000, change)]
    (finding,) = judge(samples, 4)
    assert (finding.severity, finding.step) == ("info", first_step + EVERY)


def test_local_sgd_that_meets_at_sync_points_is_silent() -> None:
    def change(
        rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        drift = 1 + 1e-3 * rank * (step % 40 != 0)
        return gradients * (1 + 0.1 * rank), parameters * drift

    assert judge(replicas(4, 2000, change), 4) == []


def test_pipeline_stages_of_one_shape_are_compared_within_their_replicas() -> None:
    """Ranks 0 to 3 are one stage, 4 to 7 another: other gradients, other parameters; rank 6 goes bad."""

    def change(
        rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        stage = 1 + rank // 4
        return spoil([6], from_step=100)(rank, step, gradients * stage, parameters * stage)

    (finding,) = judge(replicas(8, 200, change), 8)
    assert (finding.rank, finding.step) == (6, 100)


def test_gradient_that_is_always_the_same_proves_no_averaging() -> None:
    """A loss that is linear in the weights, with the same data everywhere, and other seeds."""

    def change(
        rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(len(NAMES)), parameters * (1 + 0.1 * rank)

    assert judge(replicas(2, 500, change), 2) == []


def test_parameters_without_a_gradient_are_not_compared() -> None:
    missing = np.array([False, True, False, False])
    samples = [
        (
            rank,
            step,
            ReplicaSample(
                time=sample.time, gradients=sample.gradients, parameters=sample.parameters, missing=missing
            ),
        )
        for rank, step, sample in replicas(4, 200, spoil([2], from_step=0))
    ]
    assert judge(samples, 4) == []


def test_ranks_without_any_gradient_in_common_are_not_compared() -> None:
    samples = [
        (
            rank,
            step,
            ReplicaSample(
                time=sample.time,
                gradients=sample.gradients,
                parameters=sample.parameters * (1 + rank),
                missing=np.array([rank == 0, rank == 0, rank == 1, rank == 1]),
            ),
        )
        for rank, step, sample in replicas(2, 200)
    ]
    assert [item.severity for item in judge(samples, 2)] == ["info"]


def leaves_the_averaging(
    rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    if rank == 3 and step >= 100:
        return gradients * 1.5, parameters * 1.01
    return gradients, parameters


def test_rank_that_leaves_the_averaging_is_named() -> None:
    (finding,) = judge(replicas(4, 200, leaves_the_averaging), 4)
    assert (finding.rank, finding.step) == (3, 100)
    assert "does not take part in the averaging" in finding.message


def test_rank_that_counts_its_steps_from_elsewhere_is_not_accused() -> None:
    """With uneven inputs one rank has made three samples' steps fewer: the same numbers, later."""
    truth = {step: sample for _, step, sample in replicas(1, 1000)}
    samples = [
        (rank, step, truth[step if rank != 3 or step < 500 else step + 30])
        for step in range(0, 960, EVERY)
        for rank in range(4)
    ]
    watch = ReplicaWatch(4, parameter_names=NAMES, layer_of=LAYERS)
    found: list[RankFinding] = []
    late = [item for item in samples if item[0] == 3]
    early = [item for item in samples if item[0] != 3]
    # In time rank 3 is with the others: what it calls step 500 is their 530.
    for rank, step, sample in sorted(early + late, key=lambda item: (item[1] + 30 * (item[0] == 3), item[0])):
        watch.reach(rank, step, sample.time, float(np.linalg.norm(sample.gradients)))
        watch.add(rank, step, sample)
        found += watch.findings()
    assert found + watch.findings(everything=True) == []


@pytest.mark.parametrize("seed", range(5))
def test_order_of_arrival_and_repetition_change_nothing(seed: int) -> None:
    samples = list(replicas(8, 300, spoil([5], from_step=150)))
    expected = judge(samples, 8)
    shuffled = random.Random(seed)
    mixed: list[tuple[int, int, ReplicaSample]] = []
    for start in range(0, len(samples), 40):
        part = samples[start : start + 40] * 2
        shuffled.shuffle(part)
        # Each rank's own steps come in order, as a journal has them.
        part.sort(key=lambda item: item[1] if item[0] % 2 else 0)
        mixed += part
    found = judge(mixed, 8)
    assert [(item.rank, item.step, item.value) for item in found] == [
        (item.rank, item.step, item.value) for item in expected
    ]


@pytest.mark.parametrize("seed", range(5))
def test_renumbering_the_ranks_renumbers_the_finding(seed: int) -> None:
    order = list(range(16))
    random.Random(seed).shuffle(order)
    samples = [
        (order[rank], step, sample) for rank, step, sample in replicas(16, 200, spoil([5], from_step=100))
    ]
    (finding,) = judge(samples, 16)
    assert (finding.rank, finding.step) == (order[5], 100)


def test_rank_without_samples_does_not_keep_the_others_waiting_for_ever() -> None:
    samples = [item for item in replicas(8, 1000, spoil([5], from_step=100)) if item[0] != 7]
    (finding,) = judge(samples, 8)
    assert (finding.rank, finding.step) == (5, 100)


def test_part_of_the_ranks_without_a_majority_accuses_nobody() -> None:
    """Two of four ranks are on this machine: the other two may know better."""
    assert judge(replicas(2, 300, spoil([1], from_step=100)), 2, expected=4) == []


def test_nan_on_one_rank_is_left_to_the_detectors_of_nan() -> None:
    def change(
        rank: int, step: int, gradients: np.ndarray, parameters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        bad = np.nan if rank == 1 and step >= 100 else 1.0
        return gradients * bad, parameters * bad

    assert judge(replicas(4, 300, change), 4) == []


def test_waiting_samples_do_not_outgrow_their_room() -> None:
    watch = ReplicaWatch(2, parameter_names=NAMES, layer_of=LAYERS, cap_bytes=6400)
    for rank, step, sample in replicas(1, 2000):
        watch.add(
            rank, step, ReplicaSample(time=0.0, gradients=sample.gradients, parameters=sample.parameters)
        )
        watch.findings()
    # 512 bytes each, and 64 for the two rows of four float64.
    assert len(watch.lineup._waiting) == 11
