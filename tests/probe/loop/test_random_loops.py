"""Loops of random actions: the same weights as without the probe, and the same records with C as without."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loop_actions as act
import pytest
import torch
from early_arming import early_arming
from journal_differences import differences
from journals import Journal, read_journal
from loop_actions import ACTIONS, Loop
from thinned import some
from torch import Tensor

import probe
from probe.measure.kernels import hot_binding

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]

Action = Callable[[Loop], None]
USUAL: tuple[Action, ...] = (
    Loop.step,
    act.accumulated,
    act.clipped,
    act.logged_in_between,
    act.loss_logged,
    act.logged_between_micro_steps,
    act.two_forwards,
    act.cleared_to_zero,
    act.both_models_at_once,
    act.not_cleared,
)
"""What most steps of a loop are."""
SEEDS = some(range(64), 8)
FOUND: dict[str, tuple[list[Action], Action, dict[str, Any]]] = {
    "logged between backward and update": ([act.steps, act.steps], act.logged_in_between, {}),
    "loss logged between backward and update": ([act.steps, act.steps], act.loss_logged, {}),
    "logged between micro-steps": ([act.steps, act.steps], act.logged_between_micro_steps, {}),
    "given back after clipping": ([act.steps, act.state_loaded, act.steps], act.clipped, {}),
    "logged after the late step that armed": (
        [act.steps, act.loss_logged_after_the_update, act.loss_logged_after_the_update, act.steps],
        Loop.step,
        {"verdict": "after_update"},
    ),
    "logged at level off": ([act.steps, act.steps, act.switched_off, act.steps], act.loss_logged, {}),
    "logged at level off, late": (
        [act.steps, act.steps, act.switched_off, act.steps],
        act.logged_in_between,
        {"verdict": "after_update"},
    ),
}
"""Where the records differed once."""


def trained(actions: list[Action], loop: Loop) -> tuple[list[Tensor], Tensor]:
    for action in actions:
        action(loop)
    return loop.weights(), torch.get_rng_state()


def recorded(
    actions: list[Action], usual: Action, spool: Path, *, in_c: bool, **options: Any
) -> tuple[Journal, list[Tensor], Tensor, int]:
    """Train and record; returns how many steps C has followed, too."""
    with early_arming(in_c=in_c) as followed:
        loop = Loop(lambda *watched: probe.watch(*watched, spool=spool, run="run", **options), usual)
        with loop.run:
            weights, random_state = trained(actions, loop)
            assert loop.run._guard.failures == 0, "a part of the probe has failed: see the log"
    return read_journal(spool / "run"), weights, random_state, followed.steps


def assert_same_in_all_ways(actions: list[Action], usual: Action, folder: Path, **options: Any) -> int:
    """Train without the probe, with it, and with it and C; returns how many steps C has followed."""
    weights, random_state = trained(actions, Loop(lambda *watched: None, usual))
    journals, followed = [], 0
    for in_c in (False, True):
        journal, mine, my_random_state, followed = recorded(
            actions, usual, folder / ("in_c" if in_c else "slow"), in_c=in_c, **options
        )
        journals.append(journal)
        assert torch.equal(random_state, my_random_state)
        assert all(
            torch.equal(one.nan_to_num(7), other.nan_to_num(7))
            for one, other in zip(weights, mine, strict=True)
        )
    found = differences(*journals)
    assert not found, "\n".join(found)
    return followed


@pytest.mark.parametrize("name", FOUND)
def test_loop_that_differed_once_is_recorded_as_in_the_slow_way(tmp_path: Path, name: str) -> None:
    actions, usual, options = FOUND[name]
    assert assert_same_in_all_ways(actions, usual, tmp_path, **options)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_loop_is_recorded_as_in_the_slow_way(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    actions: list[Action] = [act.steps]
    for _ in range(10):
        actions += [source.choice(ACTIONS), *([act.steps] if source.random() < 0.5 else [])]
    options = source.choice([{}, {}, {"verdict": "after_update"}])
    assert_same_in_all_ways(actions, source.choice(USUAL), tmp_path, **options)
