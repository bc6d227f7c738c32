"""Which ranks count as watched, and for how long."""

from __future__ import annotations

from dashboard.ingest.watched_ranks import MOST_RANKS, WATCHED_S, WatchedRanks


def test_a_rank_is_watched_for_a_while_after_a_page_has_shown_it() -> None:
    now = [0.0]
    watched = WatchedRanks(lambda: now[0])
    assert watched.of("a") == frozenset()
    watched.note("a", 7)
    now[0] = WATCHED_S / 2
    watched.note("a", 9)
    assert watched.of("a") == {7, 9} and watched.of("b") == frozenset()
    now[0] = WATCHED_S + 1
    assert watched.of("a") == {9}
    watched.note("a", 9)
    now[0] = 2 * WATCHED_S
    assert watched.of("a") == {9}
    now[0] = 3 * WATCHED_S
    assert watched.of("a") == frozenset()


def test_of_too_many_the_one_that_was_looked_at_longest_ago_goes() -> None:
    watched = WatchedRanks(lambda: 0.0)
    for rank in range(MOST_RANKS):
        watched.note("a", rank)
    watched.note("a", 0)
    watched.note("a", 1000)
    assert watched.of("a") == {0, 1000, *range(2, MOST_RANKS)}
