"""How far all ranks are: what is right, and what does not look at every rank for each frame."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.detectors.ranks.lineup import NOBODY, Lineup, Reached

MOVES = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(-1, 6)), st.booleans()), max_size=60
)


class Counted(int):
    """A step that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)

    def __eq__(self, other: Any) -> bool:
        Counted.compared += 1
        return int(self) == int(other)

    __hash__ = int.__hash__


@given(MOVES)
def test_reached_by_all_is_the_lowest_of_those_that_are_waited_for(
    moves: list[tuple[int, int | None, bool]],
) -> None:
    reached, steps, gone = Reached(), dict[int, int](), set[int]()
    for rank, step, is_asked in moves:
        if step is None:
            reached.leave(rank)
            steps.setdefault(rank, -1)
            gone.add(rank)
        else:
            reached.reach(rank, step)
            steps[rank] = max(step, steps.get(rank, -1))
        if is_asked:
            expected = min((at for other, at in steps.items() if other not in gone), default=NOBODY)
            assert reached.by_all() == expected
    assert reached.ranks == steps.keys() and len(reached) == len(steps)


@pytest.mark.parametrize("ranks", [64, 1024])
def test_lineup_of_many_ranks_in_step_compares_each_frame_a_few_times(ranks: int) -> None:
    lineup: Lineup[int] = Lineup(ranks)
    for rank in range(ranks):
        lineup.join(rank)
    Counted.compared, taken = 0, []
    for step in range(5):
        for rank in range(ranks):
            lineup.add(rank, Counted(step), 0.0, rank)
            taken += [at for at, _ in lineup.take()]
    assert taken == list(range(5))
    assert Counted.compared < 20 * 5 * ranks
