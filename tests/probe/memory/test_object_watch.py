"""When Python's objects are counted: often at first and where they become more, seldom after that."""

from __future__ import annotations

import pytest

from probe.memory.object_watch import ObjectPacer, ObjectWatch

MS = 1_000_000


def pauses_ms(pacer: ObjectPacer, rising: list[bool]) -> list[int]:
    """Waits after readings of 0.2 ms, in ms."""
    waits = []
    for is_rising in rising:
        pacer.note(0, MS // 5, is_rising=is_rising)
        waits.append(int(pacer.next_ns) // MS)
    return waits


def test_pacer_without_growth_counts_ever_more_seldom() -> None:
    waits = pauses_ms(ObjectPacer(), [False] * 300)
    assert waits == [20] * 31 + [200] * 224 + [2000] * 45


def test_pacer_of_early_growth_goes_on_as_at_first() -> None:
    assert set(pauses_ms(ObjectPacer(), [True] * 255)) == {20}


def test_pacer_of_late_growth_hurries_for_some_readings() -> None:
    pacer = ObjectPacer()
    pauses_ms(pacer, [False] * 300)
    assert pauses_ms(pacer, [True, False, False, False, False]) == [200] * 4 + [2000]


class Seen(ObjectPacer):
    """Remembers which readings were said to be rising."""

    def __init__(self) -> None:
        super().__init__()
        self.rising: list[bool] = []

    def note(self, started_ns: int, took_ns: int, *, is_rising: bool = False) -> None:
        self.rising.append(is_rising)


@pytest.mark.parametrize(
    ("counts", "rising"),
    [
        ([10_000, 12_000, 14_000, 16_000], [False, True, True, True]),
        # The probe's own histories, and garbage that is collected now and then.
        ([10_000, 10_060, 10_120, 10_180], [False] * 4),
        ([10_000, 90_000, 10_000, 90_000], [False, True, False, False]),
    ],
)
def test_watch_tells_its_pacer_of_so_many_objects_as_never_before(
    counts: list[int], rising: list[bool]
) -> None:
    seen = Seen()
    watch = ObjectWatch(seen, count=iter(counts).__next__)
    for reading in range(len(counts)):
        watch.read(2 * reading, reading * MS)
    assert seen.rising == rising


def test_objects_since_a_look_began_support_what_few_readings_cannot() -> None:
    """No objects are counted while looks go on, and those of a leak that grows fast take long."""
    counts = iter([100_000.0, 100_000.0 + 50 * 8_000 + 300, 500_000.0])
    watch = ObjectWatch(count=lambda: int(next(counts)))
    watch.mark(10)
    watch.compare(10, own=0)
    assert not watch.supports(8_000.0)
    watch.compare(60, own=300)
    assert watch.supports(8_000.0) and watch.supports(16_000.0) and not watch.supports(16_001.0)
    watch.forget()
    watch.compare(70, own=0)
    assert watch.supports(16_000.0)
