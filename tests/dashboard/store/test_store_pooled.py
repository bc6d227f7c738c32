"""What a helper pools before it sends: coarse views are those of all steps; fine ones show no other value."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from store_engines import OpenStore
from store_reference import RUN, begin, make_layout, stream_key
from thinned import thinned

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange, Store
from probe.delivery.helper.detail import DetailFollower, SlimFollower
from probe.delivery.helper.resolution import Resolution
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import Chunk, StreamFollower
from probe.wire import Frame, Layout, ModuleInfo, encode
from probe.wire.columns import pack_column
from probe.wire.module_frames import pack_histogram, pack_module_columns, pack_module_rows

RANK = 5
MODULES = ("", "first", "act", "second")
LAYOUT = make_layout({"first": ["weight", "bias"], "second": ["weight"], "empty": []})
LAYOUT = Layout(
    layout=0,
    model=LAYOUT.model,
    parameters=LAYOUT.parameters,
    layers=LAYOUT.layers,
    modules=[ModuleInfo(name=name, type="Module") for name in MODULES],
)
STATISTICS = ("grad_norm", "grad_max_abs", "grad_nan_count", "parameter_norm", "update_ratio")
OF_MODULES = ("activation_rms", "calls")


def frame(step: int, generator: np.random.Generator, *, value: float | None = None, **parts) -> Frame:
    """A frame with two statistics, and further ones at every third step."""
    norms = np.exp(generator.normal(size=3))
    if value is not None:
        norms[step % 3] = value
    columns = [pack_column("grad_norm", norms), pack_column("grad_max_abs", norms / 3)]
    if not np.isfinite(norms).all():
        columns.append(pack_column("grad_nan_count", np.isnan(norms).astype(np.float64)))
    fields: dict = {}
    if step % 3 == 0:
        columns.append(pack_column("parameter_norm", np.exp(generator.normal(size=3))))
        calls = generator.integers(0, 4, size=5)
        named = {"activation_rms": np.exp(generator.normal(size=5)), "calls": np.ones(5)}
        fields = {
            "module_rows": pack_module_rows(calls.astype(np.intp)),
            "module_columns": pack_module_columns(named, {"activation_rms": calls == 2}),
        }
    missing = np.packbits([step % 5 == 0, False, step % 7 == 0]).tobytes()
    return Frame(
        step=step,
        time=float(step),
        scalars={"loss": 1 / (1 + step), "grad_norm": float(norms.sum())},
        columns=columns,
        missing=missing if step % 5 == 0 or step % 7 == 0 else b"",
        **(fields | parts),
    )


def late(step: int, generator: np.random.Generator) -> Frame:
    """What is told of a step after it: its update."""
    ratios = {"update_ratio": np.exp(generator.normal(size=3))}
    return Frame(step=step, time=float(step), parameter_columns=pack_module_columns(ratios, {}))


def deliver(folder: Path, frames: list[Frame], store: Store, *, is_pooled: bool, piece: int = 4096) -> None:
    """Write a journal, and give the store what a helper sends of it."""
    writer = f"{RANK}-1000"
    journal = JournalWriter(folder / RUN / writer, run=RUN, writer=writer)
    journal.append("events", encode(LAYOUT))
    journal.append_many("metrics", list(map(encode, frames)))
    journal.close()
    begin(store, layout=LAYOUT, rank=RANK)
    metrics = SlimFollower(folder / RUN / writer, RANK, is_compared=False)
    detail = DetailFollower(metrics, Resolution(folder / RUN))
    metrics.is_slim = is_pooled
    give(store, metrics, "metrics", piece)
    detail.writer_is_over()
    if is_pooled:
        give(store, detail, "detail", piece)
    store.commit()


def give(store: Store, follower: StreamFollower | DetailFollower, stream: str, piece: int) -> None:
    key = stream_key(stream, rank=RANK)
    while (found := follower.poll(piece)) is not None:
        assert isinstance(found, Chunk) and found.first_seq == store.position(key).next_seq
        assert store.append(key, found.first_seq, found.records) == follower.next_seq
        store.commit()
    assert follower.is_at_end()


def by_sixteen(store: Store, statistic: str, steps: StepRange, columns: int) -> dict:
    """(row, first step of a bucket) -> its value and flags."""
    picture = store.heatmap(RUN, RANK, statistic, steps, columns)
    assert picture is not None
    if not picture.values.size:
        return {}
    assert picture.steps_per_column == 16
    return {
        (row, int(step)): (float(value) if math.isfinite(value) else None, int(flag))
        for row, values, flags in zip(picture.rows, picture.values, picture.flags, strict=True)
        for step, value, flag in zip(picture.steps, values, flags, strict=True)
        if flag
    }


@pytest.fixture
def both(open_store: OpenStore, tmp_path: Path) -> tuple[Store, Store]:
    return open_store(tmp_path / "full"), open_store(tmp_path / "pooled")


@pytest.mark.parametrize("piece", [1, 100_000])
def test_views_of_sixteen_steps_are_those_of_all_steps(both, tmp_path, piece):
    generator = np.random.default_rng(7)
    frames = [frame(step, generator) for step in range(3, 100)]
    for at in (20, 51, 90):
        frames.insert(at, late(frames[at - 1].step, generator))
    for store, name in zip(both, ("full", "pooled"), strict=True):
        deliver(tmp_path / name, frames, store, is_pooled=name == "pooled", piece=piece)
    full, pooled = both
    # 7 buckets: of 97 steps no more than 7 columns are asked for.
    for statistic in (*STATISTICS, *OF_MODULES):
        expected = by_sixteen(full, statistic, StepRange(), 7)
        assert expected or statistic == "grad_nan_count"
        assert by_sixteen(pooled, statistic, StepRange(), 7) == expected, statistic
    names = full.scalar_names(RUN, RANK)
    assert full.scalars(RUN, RANK, names).equals(pooled.scalars(RUN, RANK, names))


def test_no_value_of_sixteen_steps_is_shown_as_that_of_one(both, tmp_path):
    generator = np.random.default_rng(11)
    deliver(tmp_path / "pooled", [frame(step, generator) for step in range(64)], both[1], is_pooled=True)
    for columns in (1000, 33, 17):
        picture = both[1].heatmap(RUN, RANK, "grad_norm", StepRange(first=16, end=48), columns)
        assert picture.steps_per_column == 16 and list(picture.steps) == [16, 32]
        assert set(picture.flags.ravel().tolist()) <= {0, 1} and picture.came_pooled
    assert not both[1].heatmap(RUN, RANK, "grad_norm", StepRange(), 4).came_pooled


@pytest.mark.parametrize("first", [17, 24, 31])
@pytest.mark.parametrize("statistic", ["grad_norm", "grad_nan_count"])
def test_a_view_that_begins_in_a_pooled_bucket_shows_that_bucket(both, tmp_path, first, statistic):
    generator = np.random.default_rng(19)
    frames = [frame(step, generator, value=math.nan if step == 35 else None) for step in range(64)]
    for store, name in zip(both, ("full", "pooled"), strict=True):
        deliver(tmp_path / name, frames, store, is_pooled=name == "pooled")
    full, pooled = both
    found = by_sixteen(pooled, statistic, StepRange(first=first, end=48), 1000)
    assert found == by_sixteen(full, statistic, StepRange(first=16, end=48), 2) != {}


def test_a_store_that_is_opened_again_knows_what_came_pooled(open_store, tmp_path):
    generator = np.random.default_rng(23)
    store = open_store(tmp_path / "data")
    deliver(tmp_path, [frame(step, generator) for step in range(64)], store, is_pooled=True)
    before, picture = store.positions(RUN), store.heatmap(RUN, RANK, "grad_norm", StepRange(first=20), 1000)
    store.close()
    again = open_store(tmp_path / "data")
    assert again.positions(RUN) == before
    assert again.position(stream_key("detail", rank=RANK)).next_seq == 64
    shown = again.heatmap(RUN, RANK, "grad_norm", StepRange(first=20), 1000)
    assert shown.came_pooled and np.array_equal(shown.values, picture.values, equal_nan=True)


def test_a_gap_of_the_statistics_is_told_where_the_metrics_are_there(open_store, tmp_path):
    store = open_store(tmp_path / "data")
    begin(store, layout=LAYOUT, rank=RANK)
    metrics, detail = (stream_key(stream, rank=RANK) for stream in ("metrics", "detail"))
    generator = np.random.default_rng(29)
    store.append(metrics, 0, [encode(frame(step, generator)) for step in range(10)])
    store.skip(metrics, 10, 13, "evicted")
    store.skip(detail, 0, 13, "statistics of what was evicted")
    store.commit()
    told = [(gap.count, gap.is_partial) for gap in store.gaps(RUN, RANK)]
    assert sorted(told) == [(3, False), (10, True)]


def test_a_bucket_with_nan_comes_step_by_step(both, tmp_path):
    generator = np.random.default_rng(13)
    frames = [frame(step, generator, value=math.nan if step == 37 else None) for step in range(64)]
    for store, name in zip(both, ("full", "pooled"), strict=True):
        deliver(tmp_path / name, frames, store, is_pooled=name == "pooled")
    of_bucket = StepRange(first=32, end=48)
    pictures = [store.heatmap(RUN, RANK, "grad_norm", of_bucket, 100) for store in both]
    assert pictures[1].steps_per_column == 1
    for field in ("steps", "values", "flags"):
        assert np.array_equal(*(getattr(one, field) for one in pictures), equal_nan=field == "values")
    full, pooled = (by_sixteen(store, "grad_norm", StepRange(), 4) for store in both)
    assert pooled == full


def test_histograms_stay_at_their_steps(both, tmp_path):
    generator = np.random.default_rng(17)
    frames = [frame(step, generator) for step in range(32)]
    counts = generator.integers(0, 9, size=(3, 64))
    for step in (0, 5, 20):
        histogram = pack_histogram("gradient", "parameters", counts + step)
        frames[step] = frame(step, generator, histograms=[histogram])
    for store, name in zip(both, ("full", "pooled"), strict=True):
        deliver(tmp_path / name, frames, store, is_pooled=name == "pooled")
    found = [store.histogram_columns(RUN, RANK, "first.weight") for store in both]
    assert [one.steps.tolist() for one in found[1]] == [one.steps.tolist() for one in found[0]] != []
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one.counts, other.counts)


def differing(tmp_path: Path, frames: list[Frame], *, piece: int = 4096) -> list[str]:
    """Statistics whose buckets are not the same whether steps were sent in full or pooled."""
    stores = []
    for kind in ("full", "pooled"):
        stores.append(store := DuckStore(tmp_path / f"data-{kind}"))
        deliver(tmp_path / kind, frames, store, is_pooled=kind == "pooled", piece=piece)
    last = max(each.step for each in frames)
    whole = StepRange(first=frames[0].step // 16 * 16, end=(last // 16 + 1) * 16)
    found = []
    for statistic in (*STATISTICS, *OF_MODULES):
        one, other = (pooled_by_sixteen(store, statistic, whole) for store in stores)
        found += [statistic] if one != other else []
    for store in stores:
        store.close()
    return found


@pytest.mark.parametrize(("first", "gap"), thinned([0, 1, 3, 14, 17], [1, 2, 5, 16], every=4))
@pytest.mark.parametrize("additions", [1, pytest.param(2, marks=pytest.mark.faults)])
def test_what_is_told_of_the_first_step_alone_replaces_nothing_of_it(
    tmp_path: Path, first: int, gap: int, additions: int
) -> None:
    """The first record goes in full, what adds to it next: a pooled row of later steps stood in its place."""
    generator = np.random.default_rng(1)
    frames = [frame(first, generator), *(late(first, generator) for _ in range(additions))]
    frames += [frame(first + number * gap, generator) for number in range(1, 4)]
    assert differing(tmp_path, frames) == []


STEPS = st.lists(st.integers(1, 9), min_size=1, max_size=24)


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.target],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    first=st.integers(0, 40),
    gaps=STEPS,
    odd=st.sets(st.integers(0, 24), max_size=3),
    additions=st.sets(st.integers(0, 24)),
    piece=st.sampled_from([1, 3000, 10**6]),
)
def test_any_steps_pool_as_they_would_in_the_store(first, gaps, odd, additions, piece):
    generator = np.random.default_rng(first)
    step, frames = first, []
    told: int | None = None
    for index, gap in enumerate(gaps):
        frames.append(frame(step, generator, value=math.inf if index in odd else None))
        if told is not None:
            # What is told of an update comes behind its step, or behind the next one.
            frames.append(late(told, generator))
        told = step if index in additions and index % 2 else None
        if index in additions and not index % 2:
            frames.append(late(step, generator))
        step += gap
    with tempfile.TemporaryDirectory() as name:
        assert differing(Path(name), frames, piece=piece) == []


def pooled_by_sixteen(store: Store, statistic: str, steps: StepRange) -> dict:
    """The same of whatever width a view has, pooled here."""
    picture = store.heatmap(RUN, RANK, statistic, steps, 1000)
    assert picture is not None
    found: dict[tuple[str, int], tuple[float | None, int]] = {}
    for row, values, flags in zip(picture.rows, picture.values, picture.flags, strict=True):
        for step, value, flag in zip(picture.steps, values, flags, strict=True):
            key = (row, int(step) // 16)
            largest, seen = found.get(key, (None, 0))
            if math.isfinite(value):
                largest = float(value) if largest is None else max(largest, float(value))
            if flag:
                found[key] = (largest, seen | int(flag))
    return found
