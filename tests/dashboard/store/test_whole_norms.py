"""The norm of a sharded model's gradient from its ranks' parts: at which steps, of which start.

The reference is `math.fsum` over what was fed. Real ranks are in `tests/setups/test_setups_distributed.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from store_engines import TWO_SERVERS_TOO, OpenStore
from store_reference import RUN, SMALL, make_frame, stream_key

from dashboard.store.protocol import StepRange, Store
from probe.wire import RunStart, encode

STORES = TWO_SERVERS_TOO

SECOND = 10**9


@pytest.fixture
def store(open_store: OpenStore, tmp_path: Path) -> Store:
    return open_store(tmp_path, raw_steps=512)


def start(store: Store, rank: int, ranks: Sequence[int], *, at: int = 1000) -> None:
    """A start of a rank whose model lies on these ranks; `at` is its time, UNIX seconds."""
    layout = msgspec.structs.replace(SMALL, sharded_over=list(ranks))
    begun = RunStart(run=RUN, rank=rank, incarnation=at * SECOND, time=float(at), world_size=len(ranks))
    key = stream_key("events", rank=rank, incarnation=at * SECOND)
    store.append(key, 0, [encode(begun), encode(layout)])


def feed(
    store: Store, rank: int, parts: dict[int, float], *, at: int = 1000, measured: float | None = None
) -> None:
    key = stream_key(rank=rank, incarnation=at * SECOND)
    time = at + 5.0 if measured is None else measured
    frames = [
        make_frame(step, scalars={"grad_norm": 1.0, "grad_square_part": part}, time=time + step / 100)
        for step, part in parts.items()
    ]
    store.append(key, store.position(key).next_seq, frames)
    store.commit()


def whole(store: Store, rank: int = 0, **how: object) -> dict[int, float]:
    found = store.scalars(RUN, rank, ["grad_norm_whole"], **how)  # type: ignore[arg-type]
    assert set(found["name"]) <= {"grad_norm_whole"}
    values = np.where(found["nan"] > 0, np.nan, np.where(found["inf"] > 0, np.inf, found["mean"]))
    return dict(zip(found["step"].tolist(), values.tolist(), strict=True))


def test_root_of_the_sum_is_there_at_steps_that_all_ranks_have_sent(store: Store) -> None:
    draw = np.random.default_rng(3)
    parts = draw.uniform(0.1, 4.0, (3, 40)).tolist()
    for rank in range(3):
        start(store, rank, range(3))
    feed(store, 2, dict(enumerate(parts[2][:30])))
    feed(store, 0, dict(enumerate(parts[0])))
    assert whole(store) == {}
    feed(store, 1, dict(enumerate(parts[1][:35])))
    expected = {step: math.sqrt(math.fsum(part[step] for part in parts)) for step in range(40)}
    assert whole(store) == pytest.approx({step: expected[step] for step in range(30)}, rel=1e-12)
    feed(store, 1, dict(enumerate(parts[1][35:], 35)))
    feed(store, 2, dict(enumerate(parts[2][30:], 30)))
    assert whole(store) == pytest.approx(expected, rel=1e-12)


def test_every_rank_shows_the_norm_of_its_model(store: Store) -> None:
    for rank in range(4):
        group = (0, 1) if rank < 2 else (2, 3)
        start(store, rank, group)
        feed(store, rank, {0: float(4**rank)})
    assert [whole(store, rank)[0] for rank in range(4)] == pytest.approx([5**0.5] * 2 + [80**0.5] * 2)
    assert all("grad_norm_whole" in store.scalar_names(RUN, rank) for rank in range(4))
    both = store.scalars(RUN, 1, ["grad_norm_whole", "grad_norm"])
    assert both["name"].tolist() == ["grad_norm", "grad_norm_whole"]


def test_model_that_is_not_sharded_has_no_whole_norm(store: Store) -> None:
    for rank in range(2):
        start(store, rank, ())
        feed(store, rank, {0: 1.0})
    assert whole(store) == {}
    assert "grad_norm_whole" not in store.scalar_names(RUN, 1)


def test_bad_part_makes_the_whole_bad(store: Store) -> None:
    for rank in range(2):
        start(store, rank, range(2))
    feed(store, 0, {0: math.nan, 1: 1.0, 2: math.inf, 3: 1.0})
    feed(store, 1, {0: 1.0, 1: math.inf, 2: math.inf, 3: -4.0})
    found = whole(store)
    assert math.isnan(found[0]) and found[1] == found[2] == math.inf
    assert math.isnan(found[3])  # no square is negative


def test_parts_of_two_starts_are_not_added(store: Store) -> None:
    """Rank 1 has sent step 5 before it died; both come again, rank 0 is there first."""
    for rank in range(2):
        start(store, rank, range(2))
        feed(store, rank, {4: 9.0, 5: 9.0})
    for rank in range(2):
        start(store, rank, range(2), at=2000)
    feed(store, 0, {5: 1.0}, at=2000)
    assert whole(store) == pytest.approx({4: 18**0.5})
    feed(store, 1, {5: 2.0}, at=2000)
    assert whole(store) == pytest.approx({4: 18**0.5, 5: 3**0.5})


def test_store_that_was_closed_between_two_parts_puts_them_together(
    open_store: OpenStore, tmp_path: Path
) -> None:
    first = open_store(tmp_path)
    for rank in range(2):
        start(first, rank, range(2))
    feed(first, 0, {0: 1.0, 1: 1.0})
    first.close()
    again = open_store(tmp_path)
    feed(again, 1, {0: 3.0, 1: 8.0})
    assert whole(again) == pytest.approx({0: 2.0, 1: 3.0})
    again.close()


def test_pooled_and_aged_values_are_of_the_whole(store: Store) -> None:
    """Old steps are kept in sixteens only; the second rank is half a bucket behind at every commit."""
    draw = np.random.default_rng(5)
    parts = draw.uniform(0.1, 4.0, (2, 4000))
    for rank in range(2):
        start(store, rank, range(2))
    for low in range(0, 4000, 200):
        for rank, behind in ((0, 0), (1, 8)):
            steps = range(max(0, low - behind), low + 200 - behind if low < 3800 else 4000)
            feed(store, rank, {step: float(parts[rank, step]) for step in steps})
    expected = np.sqrt(parts.sum(axis=0)).reshape(-1, 16)
    found = store.scalars(RUN, 1, ["grad_norm_whole"], StepRange(), 250)
    assert found["pooled"].tolist() == [16] * 250
    for name, pooled in (("mean", expected.mean(1)), ("min", expected.min(1)), ("max", expected.max(1))):
        np.testing.assert_allclose(found[name], pooled, rtol=1e-12)


def test_layout_that_names_ranks_which_never_come_waits_for_them(store: Store) -> None:
    start(store, 0, [0, 7])
    feed(store, 0, {0: 1.0})
    start(store, 1, range(1_000_000))
    feed(store, 1, {0: 1.0})
    assert whole(store, 0) == whole(store, 1) == {}
