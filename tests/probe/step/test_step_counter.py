"""`StepCounter`: which updates belong to one step, of one model and of several."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from probe.step.step_axis import Site, precedes, trained_here
from probe.step.step_counter import StepCounter


@pytest.fixture
def pair() -> Iterator[tuple[StepCounter, StepCounter]]:
    counters = StepCounter(), StepCounter()
    yield counters
    for counter in counters:
        counter.leave()


Pair = tuple[StepCounter, StepCounter]


def joined(pair: Pair) -> Pair:
    """The second model makes what the first is called with."""
    critic, maker = pair
    maker.open(is_fed=False)
    critic.open(is_fed=True)
    return pair


LOOP = object()


def at(line: int) -> Site:
    return ((object(), 3), (LOOP, line))


def test_optimizer_that_has_a_frame_begins_the_next_step() -> None:
    counter = StepCounter()
    assert [counter.at_step(one) for one in (1, 2, 1, 2, 2, 1)] == [0, 0, 1, 1, 2, 2]


def test_early_verdict_of_the_second_of_two_optimizers_is_of_the_same_step() -> None:
    counter = StepCounter()
    for step in range(3):
        assert counter.at_step(1) == step
        assert counter.at_early_verdict() == step if step else counter.number == 0
        assert counter.at_step(2) == step


def test_early_verdict_and_its_update_have_one_number() -> None:
    counter = StepCounter()
    assert counter.at_step(1) == 0
    assert counter.at_early_verdict() == 1
    assert counter.at_step(1) == 1
    assert counter.at_early_verdict() == 2
    counter.close(2)
    assert counter.at_step(1) == 3


def test_steps_without_an_update_have_their_own_numbers_between_others() -> None:
    counter = StepCounter()
    found = []
    for step in range(12):
        if step in (2, 4, 6, 7, 9):
            found.append(counter.at_early_verdict(since=counter.number))
            counter.close(found[-1])
        else:
            found.append(counter.at_step(1))
    assert found == [*range(12)]


def test_five_updates_of_the_critic_are_five_steps_and_the_makers_is_the_fifth(pair: Pair) -> None:
    critic, maker = joined(pair)
    found = []
    for _ in range(2):
        found += [critic.at_step(1, site=at(1)) for _ in range(5)]
        found.append(maker.at_step(1, site=at(2)))
    assert found == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 9]


def test_update_that_is_left_out_leaves_the_others_in_step(pair: Pair) -> None:
    critic, maker = joined(pair)
    found = []
    for iteration in range(5):
        if iteration != 2:
            found.append(critic.at_step(1, site=at(1)))
        found.append(maker.at_step(1, site=at(2)))
    assert found == [0, 0, 1, 1, 2, 3, 3, 4, 4]


def test_order_that_changes_without_a_line_is_no_new_step(pair: Pair) -> None:
    first, second = joined(pair)
    order = [first, second, second, first, first, second]
    assert [one.at_step(1, site=at(7)) for one in order] == [0, 0, 1, 1, 2, 2]


def test_models_whose_updates_alternate_share_their_numbers(pair: Pair) -> None:
    first, second = pair
    order = [first, first, second, first, second, first]
    assert [one.at_step(1) for one in order] == [0, 1, 0, 2, 2, 3]


def test_models_that_are_trained_one_after_the_other_begin_at_0(pair: Pair) -> None:
    first, second = pair
    assert [first.at_step(1) for _ in range(3)] == [0, 1, 2]
    assert [second.at_step(1) for _ in range(3)] == [0, 1, 2]


def test_update_that_is_missed_has_the_number_of_its_backward(pair: Pair) -> None:
    critic, maker = joined(pair)
    found = []
    for step in range(3):
        if step:
            found.append(maker.at_early_verdict(since=step - 1))
            maker.close(step - 1)
        assert critic.at_step(1) == step
    assert found == [0, 1]


def test_counter_that_has_left_is_joined_by_nobody(pair: Pair) -> None:
    first, second = pair
    first.open(is_fed=False)
    assert [first.at_step(1) for _ in range(3)] == [0, 1, 2]
    first.leave()
    second.open(is_fed=True)
    assert second.at_step(1) == 0


def test_backward_has_one_number_for_all_who_are_told_of_it() -> None:
    loss, other = object(), object()
    first = trained_here.begin_backward(loss)
    assert trained_here.begin_backward(loss) == first
    trained_here.end_backward()
    assert trained_here.begin_backward(other) == trained_here.begin_backward(other) == first + 1
    trained_here.use([first], 7)
    assert trained_here.step_of([first + 1, first]) == 7
    assert trained_here.step_of([first + 1]) is None
    trained_here.end_backward()


def test_order_of_calls_is_that_of_the_outermost_code_that_has_both() -> None:
    step, update, loop = object(), object(), object()
    assert precedes(((step, 5), (update, 9), (loop, 1)), ((step, 5), (update, 2), (loop, 4)))
    assert not precedes(((step, 5), (loop, 4)), ((step, 5), (update, 2), (loop, 1)))
    assert precedes(((step, 5), (update, 2), (loop, 1)), ((step, 5), (update, 9), (loop, 1)))
    assert not precedes(((step, 5),), ((update, 9),))


def test_update_without_a_gradient_takes_the_backward_that_nobody_has_used(pair: Pair) -> None:
    critic, maker = pair
    for step in range(3):
        own, cut_off = new_backward(), None
        assert critic.at_step(1, backwards=[own]) == step
        cut_off = new_backward()
        assert maker.at_step(1) == step
        assert trained_here.step_of([cut_off]) == trained_here.step_of([own]) == step
    assert maker.at_step(1) == 3, "without another backward it is a step of its own"
    assert trained_here.step_of([cut_off]) == 2


def new_backward() -> int:
    number = trained_here.begin_backward(object())
    trained_here.end_backward()
    return number
