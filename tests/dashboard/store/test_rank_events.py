"""What several ranks show together: the same events from the journals, and from the store in any order."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from ranks_run import (
    BEGAN,
    RUN,
    STEP_S,
    bad_from,
    frames,
    incarnation_of,
    layout,
    run_start,
    write_rank,
    write_ranks,
)
from store_engines import OpenStore

from dashboard.commands.events import load_events
from dashboard.ingest.spool import SpoolIngest
from dashboard.store.protocol import Store
from probe.delivery.journal.journal import JournalWriter
from probe.detectors.ranks.rank_watch import RankWatch
from probe.wire import Event, Evidence, HostSample, Origin, Record, RunEnd, StreamKey, encode, event_id


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def store(open_store: OpenStore, tmp_path: Path) -> Store:
    return open_store(tmp_path / "data")


def expected_id(rank: int, step: int, *, kind: str = "rank_divergence", subject: str = "parameters") -> str:
    return event_id(
        run=RUN,
        rank=rank,
        incarnation=incarnation_of(rank),
        model="net",
        kind=kind,
        subject=subject,
        step=step,
    )


def ingest(store: Store, spool: Path) -> list[Event]:
    SpoolIngest(store, spool).run()
    return store.events(RUN)


def append(store: Store, rank: int, stream: str, records: list[Record]) -> None:
    """As the collector does with what a helper ships."""
    writer = f"{rank}-{incarnation_of(rank)}"
    key = StreamKey(run=RUN, writer=writer, stream=stream)
    first = store.position(key).next_seq
    assert store.append(key, first, [encode(record) for record in records]) == first + len(records)
    store.commit()


def test_journals_of_equal_ranks_have_no_event(spool: Path) -> None:
    write_ranks(spool, 4, 500)
    assert load_events(str(spool)).events == ()


def test_journals_alone_name_the_rank_and_the_step(spool: Path) -> None:
    write_ranks(spool, 4, 300, bad_from(2, 120))
    (event,) = load_events(str(spool)).events
    assert (event.id, event.rank, event.step) == (expected_id(2, 120), 2, 120)
    # 1 - 1 / 1.02, as float32 has it.
    assert event.evidence.value == pytest.approx(1 - 1 / 1.02, rel=1e-5)
    assert (event.propagated_to, event.count, event.last_step, event.ended) == (["b"], 18, 290, True)


def test_store_and_journals_have_the_same_event(spool: Path, store: Store) -> None:
    write_ranks(spool, 3, 1000, bad_from(2, 600))
    assert ingest(store, spool) == list(load_events(str(spool)).events)


def test_journals_that_a_helper_has_watched_are_not_compared_again(spool: Path) -> None:
    """What it has found stands in its own stream; two helpers have seen a part of the ranks each."""
    write_ranks(spool, 4, 300, bad_from(2, 120))
    found = []
    for host in ("box", "crate"):
        journal = JournalWriter(spool / RUN / f"host-{host}", run=RUN, writer=f"host-{host}")
        sample = HostSample(time=BEGAN, rank=0, incarnation=incarnation_of(0), state="ended")
        journal.append("host", encode(sample))
        journal.close()
        found.append([event.id for event in load_events(str(spool)).events])
    assert found == [[], [expected_id(2, 120)]]


def test_ranks_of_two_hosts_are_compared_in_the_store(store: Store) -> None:
    """Two ranks on each of two hosts, of which each alone has no majority."""
    written = {rank: list(frames(rank, range(200), bad_from(3, 100))) for rank in range(4)}
    for rank in range(4):
        append(store, rank, "events", [run_start(rank, 4, host=f"box{rank // 2}"), layout()])
    for first in range(0, 200, 50):
        for rank in (2, 0, 3, 1):
            append(store, rank, "metrics", [*written[rank][first : first + 50]])
    (event,) = store.events(RUN)
    assert (event.id, event.ended) == (expected_id(3, 100), False)
    assert "3 of 4 ranks are equal; rank 3 is not." in event.message


@pytest.mark.parametrize("seed", range(2))
def test_batches_in_any_order_make_the_same_event(store: Store, seed: int) -> None:
    shuffled = random.Random(seed)
    waiting = {rank: list(frames(rank, range(300), bad_from(1, 110))) for rank in range(3)}
    for rank in shuffled.sample(range(3), 3):
        append(store, rank, "events", [run_start(rank, 3), layout()])
    while any(waiting.values()):
        rank = shuffled.choice([rank for rank, left in waiting.items() if left])
        size = shuffled.randint(20, 100)
        append(store, rank, "metrics", [*waiting[rank][:size]])
        del waiting[rank][:size]
    (event,) = store.events(RUN)
    assert event.id == expected_id(1, 110)


def test_restarted_dashboard_goes_on_with_the_event(open_store: OpenStore, tmp_path: Path) -> None:
    written = {rank: list(frames(rank, range(300), bad_from(1, 100))) for rank in range(3)}
    store = open_store(tmp_path / "data")
    for rank in range(3):
        append(store, rank, "events", [run_start(rank, 3), layout()])
    for rank in range(3):
        append(store, rank, "metrics", [*written[rank][:150]])
    store.close()
    store = open_store(tmp_path / "data")
    for rank in range(3):
        append(store, rank, "metrics", [*written[rank][150:]])
    (event,) = store.events(RUN)
    store.close()
    assert (event.id, event.step) == (expected_id(1, 100), 100)
    assert event.last_step is not None
    assert event.last_step >= 150


def test_restarted_ranks_are_compared_with_each_other_alone(spool: Path) -> None:
    """All ranks begin again, half a second apart, with other gradients; then rank 1 goes bad."""
    for rank in range(3):
        write_rank(spool, rank, 3, list(frames(rank, range(200))), ends=False)
    late = 1_900_000_000.0
    for rank in range(3):
        written = frames(rank, range(200), bad_from(1, 50), began=late, seed=1)
        write_rank(spool, rank, 3, list(written), began=late + rank / 2)
    (event,) = load_events(str(spool)).events
    assert (event.rank, event.step, event.incarnation) == (1, 50, incarnation_of(1, late + 0.5))


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 3, 2), (3, 1, 0, 2)])
def test_restarted_ranks_are_compared_in_whatever_order_they_are_told_of(order: tuple[int, ...]) -> None:
    again = BEGAN + 1000
    watch = RankWatch(RUN)
    for index in order:
        start = run_start(index % 2, 2, began=again if index >= 2 else BEGAN)
        watch.start(start)
        watch.layout(start.rank, start.incarnation, layout())
    both = [list(frames(rank, range(200), bad_from(1, 50), began=again)) for rank in range(2)]
    for frame_pair in zip(*both, strict=True):
        for rank, frame in enumerate(frame_pair):
            watch.frame(rank, incarnation_of(rank, again), frame)
    newest = watch.take(everything=True)[-1]
    assert (newest.kind, newest.rank, newest.step) == ("rank_divergence", 1, 50)


def test_damaged_records_are_passed_over() -> None:
    watch, start, whole = RankWatch(RUN), run_start(0, 2), layout()
    watch.start(start)
    watch.layout(0, start.incarnation, msgspec.structs.replace(whole, layers=whole.layers[:1]))
    watch.layout(0, start.incarnation, whole)
    (frame,) = frames(0, range(1))
    torn = [msgspec.structs.replace(column, data=column.data[:5]) for column in frame.columns]
    watch.frame(0, start.incarnation, msgspec.structs.replace(frame, columns=torn))
    assert watch.take(everything=True) == []


def test_divergence_before_a_restart_is_found_as_well(spool: Path) -> None:
    for rank in range(3):
        write_rank(spool, rank, 3, list(frames(rank, range(200), bad_from(2, 60))), ends=False)
    late = 1_900_000_000.0
    for rank in range(3):
        write_rank(spool, rank, 3, list(frames(rank, range(200), began=late)), began=late)
    (event,) = load_events(str(spool)).events
    assert event.id == expected_id(2, 60)


def test_store_that_reads_a_long_journal_compares_all_of_it(spool: Path, store: Store) -> None:
    """Each rank's journal is many pieces: read one after the other, the first would be forgotten."""
    write_ranks(spool, 2, 6000, bad_from(1, 1000))
    (event,) = ingest(store, spool)
    assert event.id == expected_id(1, 1000)


# -- who went bad first


def nonfinite(rank: int, kind: str, step: int, *, origin: Origin | None = None) -> Event:
    return Event(
        id=expected_id(rank, step, kind=kind, subject="x"),
        run=RUN,
        rank=rank,
        incarnation=incarnation_of(rank),
        model="net",
        step=step,
        time=1.0,
        kind=kind,
        severity="critical",
        message=f"{kind} on rank {rank}\nmore",
        evidence=Evidence(),
        origin=origin,
    )


def write_nan_run(spool: Path, ranks: int, events: dict[int, list[Event]]) -> list[Event]:
    """Return the events of the ranks together."""
    for rank in range(ranks):
        write_rank(spool, rank, ranks, list(frames(rank, range(50))), events=events.get(rank, ()))
    return [event for event in load_events(str(spool)).events if event.kind == "rank_divergence"]


def test_rank_whose_own_loss_was_bad_is_first_of_64(spool: Path) -> None:
    events = {rank: [nonfinite(rank, "nonfinite_gradient", 40)] for rank in range(64)}
    events[17] = [nonfinite(17, "nonfinite_loss", 40)]
    (event,) = write_nan_run(spool, 64, events)
    assert (event.rank, event.step, event.severity) == (17, 40, "critical")
    assert event.id == expected_id(17, 40, subject="non-finite values")
    lines = event.message.splitlines()
    assert lines[0] == (
        "Rank 17 went bad first, nonfinite_loss at step 40: 64 of 64 ranks have non-finite values since"
    )
    assert lines[1] == "Rank 17: nonfinite_loss on rank 17"
    assert event.propagated_to == ["rank 17", *(f"rank {rank}" for rank in range(64) if rank != 17)]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        # An earlier step; evidence nearer to the cause; what a replay of this rank alone has found.
        (("nonfinite_gradient", 39, None), ("nonfinite_loss", 40, None)),
        (("nonfinite_input", 40, None), ("nonfinite_loss", 40, None)),
        (
            ("nonfinite_gradient", 40, Origin(phase="backward", op="aten.sqrt.default", module="a")),
            ("nonfinite_gradient", 40, None),
        ),
    ],
)
def test_nearer_evidence_names_the_rank(
    spool: Path, first: tuple[str, int, Origin | None], then: tuple[str, int, Origin | None]
) -> None:
    events = {
        rank: [nonfinite(rank, kind, step, origin=origin)]
        for rank, (kind, step, origin) in ((0, then), (1, first), (2, then), (3, then))
    }
    (event,) = write_nan_run(spool, 4, events)
    assert (event.rank, event.step, event.origin) == (1, *first[1:])


@pytest.mark.parametrize("together", [3, 4])
def test_ranks_that_go_bad_together_are_not_told_apart(spool: Path, together: int) -> None:
    kinds = ["nonfinite_loss" if rank < together else "nonfinite_gradient" for rank in range(4)]
    assert not write_nan_run(spool, 4, {rank: [nonfinite(rank, kinds[rank], 40)] for rank in range(4)})


def test_rank_that_keeps_its_nan_to_itself_is_told_of_by_its_own_event_alone(spool: Path) -> None:
    assert not write_nan_run(spool, 4, {2: [nonfinite(2, "nonfinite_loss", 40)]})


def test_first_bad_rank_is_told_of_while_the_run_goes_on(store: Store) -> None:
    written = {rank: list(frames(rank, range(60))) for rank in range(3)}
    for rank in range(3):
        append(store, rank, "events", [run_start(rank, 3), layout()])
    for rank in range(3):
        append(store, rank, "metrics", [*written[rank][:40]])
    for rank in range(3):
        kind = "nonfinite_loss" if rank == 1 else "nonfinite_gradient"
        append(store, rank, "events", [nonfinite(rank, kind, 40)])
    assert not [event for event in store.events(RUN) if event.kind == "rank_divergence"]
    for first in (40, 50):
        for rank in range(3):
            append(store, rank, "metrics", [*written[rank][first : first + 10]])
    (event,) = [event for event in store.events(RUN) if event.kind == "rank_divergence"]
    assert (event.rank, event.step) == (1, 40)


# -- stragglers


def test_rank_that_comes_late_to_backward_is_named(spool: Path, store: Store) -> None:
    noise = random.Random(3)

    def before_s(rank: int, step: int) -> float:
        return 0.04 + 0.02 * noise.random() + (0.08 if rank == 2 and step >= 200 else 0)

    write_ranks(spool, 4, 600, before_s=before_s)
    (event,) = load_events(str(spool)).events
    assert (event.kind, event.severity, event.rank) == ("performance_degradation", "warning", 2)
    assert event.subject == "rank 2"
    # Most of 64 steps are slow once 52 are; 256 is the next step that is divisible by 16 and has 57.
    assert event.step == 256
    assert event.evidence.value == pytest.approx(0.08, abs=0.01)
    assert event.evidence.baseline is not None
    assert event.evidence.baseline["median_step_s"] == STEP_S
    assert ingest(store, spool) == [event]


@pytest.mark.parametrize(
    ("waits", "others", "severity"),
    [(0.5, 0.0, "info"), (0.6, 0.1, "info"), (0.1, 0.0, "warning"), (0.6, 0.6, "warning")],
    ids=["it alone", "it above all", "hardly", "all alike"],
)
def test_rank_whose_processors_other_programs_have_is_information(
    spool: Path, store: Store, waits: float, others: float, severity: str
) -> None:
    def before_s(rank: int, step: int) -> float:
        return 0.04 + (0.08 if rank == 2 else 0)

    def waited(rank: int, step: int) -> float:
        return waits if rank == 2 else others

    write_ranks(spool, 4, 200, before_s=before_s, waited=waited)
    (event,) = load_events(str(spool)).events
    assert (event.kind, event.severity, event.rank) == ("performance_degradation", severity, 2)
    said = "Other programs have the processors that it waits for"
    assert (said in event.message) == (severity == "info")
    assert ingest(store, spool) == [event]


def test_rank_that_is_slow_in_backward_is_named(spool: Path, store: Store) -> None:
    """Every rank comes to backward at the same time; the others are done with theirs and wait."""
    noise = random.Random(4)

    def before_s(rank: int, step: int) -> float:
        return 0.04 + 0.02 * noise.random()

    def own_backward_s(rank: int, step: int) -> float:
        return 0.05 + 0.02 * noise.random() + (0.1 if rank == 1 else 0)

    write_ranks(spool, 4, 200, before_s=before_s, own_backward_s=own_backward_s)
    (event,) = load_events(str(spool)).events
    assert (event.kind, event.rank, event.step) == ("performance_degradation", 1, 64)
    assert "Rank 1 holds up the others: it is done with its own backward" in event.message
    assert event.evidence.value == pytest.approx(0.1, abs=0.015)
    assert ingest(store, spool) == [event]


def test_wait_for_a_late_rank_inside_of_backward_blames_the_late_one(spool: Path) -> None:
    """Collectives of synchronised batch norms: the ranks that come early are held up in their own graphs."""

    def late_s(rank: int, step: int) -> float:
        return 0.04 + (0.08 if rank == 2 else 0)

    write_ranks(spool, 4, 200, before_s=late_s, own_backward_s=lambda rank, step: 0.2 - late_s(rank, step))
    (event,) = load_events(str(spool)).events
    assert event.rank == 2
    assert "it comes to backward 80 ms later" in event.message


def test_rank_that_makes_up_in_backward_for_coming_late_is_not_blamed(spool: Path) -> None:
    def before_s(rank: int, step: int) -> float:
        return 0.04 + (0.06 if rank == 2 else 0)

    def own_backward_s(rank: int, step: int) -> float:
        return 0.02 + (0 if rank == 2 else 0.1)

    write_ranks(spool, 4, 200, before_s=before_s, own_backward_s=own_backward_s)
    assert load_events(str(spool)).events == ()


def test_straggler_of_short_steps_is_named_once_it_has_lasted(spool: Path) -> None:
    """64 steps of 25 ms are 1.6 s: it is said from its first such window on, and only after 10 s."""

    def before_s(rank: int, step: int) -> float:
        return 0.005 + (0.01 if rank == 1 else 0)

    for steps, found in ((380, 0), (450, 1)):
        for rank in range(2):
            written = [
                msgspec.structs.replace(
                    frame,
                    time=BEGAN + 0.025 * frame.step,
                    scalars=frame.scalars | {"step_time_s": 0.025},
                )
                for frame in frames(rank, range(steps), before_s=before_s)
            ]
            write_rank(spool / str(steps), rank, 2, written)
        events = load_events(str(spool / str(steps))).events
        assert [(event.rank, event.step) for event in events] == [(1, 64)] * found


def test_slow_steps_that_change_places_are_silent(spool: Path) -> None:
    chance = random.Random(5)
    slowest = [chance.randrange(4) for _ in range(2000)]

    def before_s(rank: int, step: int) -> float:
        return 0.04 + (0.2 if slowest[step] == rank else 0)

    write_ranks(spool, 4, 2000, before_s=before_s)
    assert load_events(str(spool)).events == ()


def test_rank_that_saves_now_and_then_is_no_straggler(spool: Path) -> None:
    def before_s(rank: int, step: int) -> float:
        return 0.04 + (2.0 if rank == 0 and step % 50 == 0 else 0)

    write_ranks(spool, 4, 1000, before_s=before_s)
    assert load_events(str(spool)).events == ()


def test_straggler_that_recovers_ends_its_event(spool: Path) -> None:
    def before_s(rank: int, step: int) -> float:
        return 0.04 + (0.1 if rank == 1 and step < 300 else 0)

    write_ranks(spool, 2, 600, before_s=before_s)
    (event,) = load_events(str(spool)).events
    assert (event.rank, event.step, event.ended) == (1, 64, True)
    assert event.last_step is not None
    assert 300 <= event.last_step <= 368


def test_run_end_record_without_frames_ends_the_wait(store: Store) -> None:
    """A rank that ends early (uneven inputs) does not hold up the judgement of the others."""
    written = {rank: list(frames(rank, range(200), bad_from(0, 100))) for rank in range(3)}
    for rank in range(4):
        append(store, rank, "events", [run_start(rank, 4), layout()])
    append(store, 3, "events", [RunEnd(time=1.0, step=None, outcome="finished")])
    for rank in range(3):
        append(store, rank, "metrics", [*written[rank]])
    (event,) = store.events(RUN)
    assert event.id == expected_id(0, 100)
