"""Walks over all objects of the process stay within a share of the time, and are made in one place alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe.compat import all_objects
from probe.compat.all_objects import ObjectWalks

PROBE = Path(all_objects.__file__).resolve().parents[1]
WALK_NS = 80_000_000


class Clocks:
    """A second that passes is said, and each walk takes 80 ms."""

    def __init__(self) -> None:
        self.now_ns = self.cpu_ns = 0

    def clock_ns(self) -> int:
        return self.now_ns

    def thread_ns(self) -> int:
        self.cpu_ns += WALK_NS
        return self.cpu_ns

    def walks(self, limit: float = 0.02) -> ObjectWalks:
        walks = ObjectWalks(200_000_000, "something", clock_ns=self.clock_ns, cpu_ns=self.thread_ns)
        walks.limit = limit
        return walks


class Kept:
    """What the walks look for."""


class Raises(type):
    """Neither it nor its instances can be asked anything."""

    def __instancecheck__(cls, _: object) -> bool:
        raise OSError

    def __hash__(cls) -> int:
        raise OSError


class Hostile(metaclass=Raises):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise OSError


def test_walks_of_a_long_run_take_half_of_the_limit() -> None:
    clocks = Clocks()
    walks = clocks.walks()
    made = 0
    for _ in range(10_000):
        made += walks.instances(Kept) is not None
        clocks.now_ns += 100_000_000
    # 1,000 s, of which 1 % is 10 s.
    assert 120 <= made <= 129


def test_first_walks_are_free_and_a_long_rest_saves_no_more() -> None:
    clocks = Clocks()
    walks = clocks.walks()
    assert [walks.instances(Kept) is not None for _ in range(5)] == [True] * 3 + [False] * 2
    clocks.now_ns += 10**15
    assert [walks.everything() is not None for _ in range(5)] == [True] * 3 + [False] * 2


def test_without_a_limit_every_walk_is_made() -> None:
    walks = Clocks().walks(limit=0.0)
    assert all(walks.has(walks) for _ in range(20))
    assert not walks.take_declined()


def test_what_is_lost_is_said_once() -> None:
    walks = Clocks().walks()
    assert [walks.take_declined() for _ in range(4) if walks.instances(Kept) is not None] == [""] * 3
    assert [walks.take_declined() for _ in range(3)] == ["something", "", ""]
    walks.instances(Kept)
    assert not walks.take_declined()


def test_walk_finds_instances_and_asks_no_other_object() -> None:
    kept, other = [Kept()], [Hostile()]
    assert Clocks().walks().instances(Kept) == kept
    assert other


def test_each_session_sets_the_limit_of_both_purposes(monkeypatch: pytest.MonkeyPatch) -> None:
    for walks in (all_objects.training, all_objects.faults):
        monkeypatch.setattr(walks, "limit", 0.02)
    all_objects.keep_to(0.25)
    assert (all_objects.training.limit, all_objects.faults.limit) == (0.25, 0.25)


def test_no_other_file_walks_over_all_objects() -> None:
    walk = re.compile(r"\bget_objects\b|\bget_referrers\b")
    found = {path.name for path in PROBE.rglob("*.py") if walk.search(path.read_text())}
    assert found == {"all_objects.py"}
