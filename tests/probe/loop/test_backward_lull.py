"""The recorder's thread is told when, and for how long, a followed training needs no lock of Python's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from armed_training import Planted, Training, watched_training
from torch import Tensor

from probe.loop.backward_lull import BackwardLull
from probe.measure.kernels import hot_binding
from probe.threads import pieces

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]


class Telling(Planted):
    """Looks about in its forward, and where the gradient of its hidden values has been computed."""

    lull: BackwardLull | None = None
    is_on: dict[str, bool]

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).relu()
        if self.lull is not None and hidden.requires_grad:
            self.is_on["forward"] = self.lull.is_on
            hidden.register_hook(self._look)
        scores: Tensor = self.second(hidden)
        return scores

    def _look(self, gradient: Tensor) -> None:
        assert self.lull is not None
        self.is_on["backward"] = self.lull.is_on


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    with watched_training(in_c=True, model=Telling) as training:
        model: Any = training.model
        calls = hot_binding.status().calls
        assert calls is not None
        # The recorder's own thread is not to be in the way.
        monkeypatch.setattr(pieces.process, "lull", pieces.NoLull())
        model.lull, model.is_on = BackwardLull(calls), {}
        yield training


def test_lull_is_the_backward_behind_the_models_output(training: Training) -> None:
    model: Any = training.model
    training.steps(2)
    assert training.is_followed
    assert model.is_on == {"forward": False, "backward": True} and not model.lull.is_on


def test_who_waits_for_a_lull_is_called_once_on_the_training_thread(training: Training) -> None:
    model: Any = training.model
    called: list[tuple[int, bool]] = []
    model.lull.call_at_next(lambda: called.append((threading.get_ident(), model.lull.is_on)))
    training.steps(3)
    assert training.is_followed and called == [(threading.get_ident(), True)]
    model.lull.call_at_next(lambda: called.append((0, False)))
    model.lull.call_at_next(None)
    training.steps(2)
    assert training.is_followed and len(called) == 1


def test_lull_has_beats_while_steps_are_followed(training: Training) -> None:
    model: Any = training.model
    before = model.lull.beats
    assert model.lull.beats == before
    training.steps(1)
    assert model.lull.beats > before
    training.run._tracker.fast.leave()  # type: ignore[union-attr]
    before = model.lull.beats
    training.steps(1)
    assert model.lull.beats == before


def test_lull_is_asked_for_in_the_middle_of_the_last_micro_steps_end(training: Training) -> None:
    model: Any = training.model
    state = model.lull._state
    # Python's lock may change hands between two looks at what C counts.
    state.micro_step, state.state = hot_binding.MAX_MICRO_STEPS, hot_binding.IN_BACKWARD
    try:
        assert not model.lull.is_on
    finally:
        state.micro_step, state.state = 0, hot_binding.IDLE


def test_bell_that_raises_is_nothing_to_the_training(training: Training) -> None:
    model: Any = training.model

    def ring() -> None:
        raise RuntimeError

    model.lull.call_at_next(ring)
    training.steps(2)
    assert training.is_followed


def test_backward_in_the_slow_way_is_no_lull(training: Training) -> None:
    model: Any = training.model
    training.run._tracker.fast.leave()  # type: ignore[union-attr]
    training.steps(1)
    assert model.is_on == {"forward": False, "backward": False}
