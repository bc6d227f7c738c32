"""When followed containers are asked for their lengths: few questions, at the pace of the steps."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from probe.memory.certainty import bytes_left
from probe.memory.follow_turns import FollowTurns
from probe.memory.followed import FollowedContainers
from probe.memory.heap_looks import Content
from probe.memory.leak_watch import LeakWatch
from probe.memory.leaks import Suspect
from probe.memory.reachable import user_frames, variables

MS = 1_000_000


def turns_of(next_step: float) -> FollowTurns:
    turns = FollowTurns()
    followed: Any = SimpleNamespace(next_step=next_step)
    turns.followed = followed
    return turns


def test_turn_comes_when_the_steps_have_come_so_far() -> None:
    turns = turns_of(100)
    for step in range(50):
        turns.note(step, step * 2 * MS)
    assert turns.due_ns == 200 * MS


def test_turn_is_one_step_away_where_its_step_has_come() -> None:
    turns = turns_of(5)
    for step in range(8):
        turns.note(step, step * 2 * MS)
    assert turns.due_ns == 16 * MS


def test_turn_is_not_put_off_by_steps_that_were_held_up() -> None:
    turns = turns_of(100)
    now_ms = 0
    for step in range(50):
        now_ms += 300 if step % 4 == 0 else 2
        turns.note(step, now_ms * MS)
    assert turns.due_ns == (now_ms + 2 * 51) * MS


def test_turn_takes_steps_that_c_has_followed_by_their_mean() -> None:
    turns = turns_of(300)
    turns.note(100, 0)
    turns.note(200, 150 * MS)
    assert turns.due_ns == 300 * MS


def test_there_is_no_turn_without_containers_or_a_pace() -> None:
    turns = turns_of(10)
    assert turns.due_ns == math.inf
    turns.note(1, MS)
    assert turns.due_ns == math.inf
    turns.note(2, 2 * MS)
    turns.followed = None
    assert turns.due_ns == math.inf


def test_steps_that_restart_are_no_pace() -> None:
    turns = turns_of(10)
    turns.note(50, 0)
    turns.note(1, MS)
    assert turns.due_ns == math.inf


kept: list[Tensor] = [torch.zeros(4)]


def follow_kept(bytes_left: float) -> FollowedContainers:
    """Follow `kept`, which gets 1 of 16 bytes at a step."""
    frames = user_frames(sys._getframe())
    access = next(access for value, access in variables(frames) if value is kept)
    content = Content(what="Tensor", bytes_per_item=16.0, steps=1, has_graph=False)
    suspect = Suspect(id(kept), "list", access, content, grown=10, steps=10, length=1)
    return FollowedContainers([suspect], 10, lambda leak: bytes_left, seen_at=10)


def test_container_that_has_stopped_just_below_the_bar_is_asked_ever_more_rarely() -> None:
    followed = follow_kept(1.0)
    asked = []
    for step in range(11, 10_000):
        if step >= followed.next_step:
            asked.append(step)
            assert followed.look(step, sys._getframe(), lambda leak: False) == []
    assert len(asked) < 130
    later = [after - before for before, after in zip(asked[-10:], asked[-9:], strict=False)]
    assert min(later) > 200


def test_container_is_judged_by_the_steps_since_its_length_was_read() -> None:
    """A look that finds it may end a thousand steps later: it gets no more in each of them for that."""
    frames = user_frames(sys._getframe())
    access = next(access for value, access in variables(frames) if value is kept)
    content = Content(what="Tensor", bytes_per_item=16.0, steps=1, has_graph=False)
    suspect = Suspect(id(kept), "list", access, content, grown=10, steps=10, length=10)
    followed = FollowedContainers([suspect], 1010, lambda leak: 16.0 * 500, seen_at=10)
    assert followed.next_step == 1011  # it has got the rest meanwhile
    kept.extend(torch.zeros(4) for _ in range(1009))
    try:
        (found,) = followed.look(1010, sys._getframe(), lambda leak: True)
    finally:
        del kept[1:]
    assert found.leak().bytes_per_step == 16.0


def test_what_is_known_is_asked_while_a_look_at_all_goes_on() -> None:
    watch, asked = LeakWatch(read_process=lambda: None), list[int]()

    class Followed:
        next_step = 5.0

        def look(self, step: int, *_: object) -> list[Suspect]:
            asked.append(step)
            self.next_step = step + 100.0
            return []

    watch._turns.followed = Followed()  # type: ignore[assignment]
    watch._open_look(0)
    for step in range(1, 8):
        watch.follow(step, sys._getframe())
    assert watch.is_looking and asked == [5]


@pytest.mark.parametrize(
    ("held_mib", "left_mib"), [(2.0, 6.0), (10.0, 246.0), (300.0, math.inf)], ids=["few", "asked", "meant"]
)
def test_cache_is_followed_until_it_holds_too_much_for_one(held_mib: float, left_mib: float) -> None:
    class Plain:
        is_plain = True
        plain_bytes = held_mib * 2**20

    assert bytes_left(Plain(), 0.0) == left_mib * 2**20  # type: ignore[arg-type]
