"""Models that are trained together: one axis of steps, whatever one of them skips."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import Journal
from run_numbers import run_of
from torch import Tensor, nn
from torch.nn import functional as F

import probe

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
STEPS = 12


class Game:
    """A generator, its judge and how they are trained."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.judge = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizers = {
            name: torch.optim.Adam(getattr(self, name).parameters()) for name in ("generator", "judge")
        }
        self.factor = 1.0
        """Of the generator's loss."""

    def train_judge(self, *, detached: bool = True, updates: bool = True) -> None:
        self.optimizers["judge"].zero_grad()
        score_loss(self.judge(torch.randn(8, 6)), 1.0).backward()
        made = self.generator(torch.randn(8, 4))
        score_loss(self.judge(made.detach() if detached else made), 0.0).backward()
        if updates:
            self.optimizers["judge"].step()

    def train_generator(self, *, relative: bool = False, updates: bool = True) -> None:
        self.optimizers["generator"].zero_grad()
        score = self.judge(self.generator(torch.randn(8, 4)))
        if relative:
            score = score - self.judge(torch.randn(8, 6)).mean()
        (score_loss(score, 1.0) * self.factor).backward()
        if updates:
            self.optimizers["generator"].step()


def score_loss(scores: Tensor, target: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, target))


@contextlib.contextmanager
def watched(spool: Path, **models: nn.Module) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, model in models.items():
            stack.enter_context(probe.watch(model, spool=spool / name, overhead_limit=0, replay_limit_s=0.1))
        yield


def steps_of(journal: Journal) -> list[int]:
    """Without those that repeat: a frame may come in parts."""
    return list(dict.fromkeys(frame.step for frame in journal.frames))


def steps(spool: Path, *names: str) -> list[list[int]]:
    return [steps_of(run_of(spool / name)) for name in names]


def usual(game: Game, at: int) -> None:
    game.train_judge()
    game.train_generator()


def not_detached(game: Game, at: int) -> None:
    game.train_judge(detached=False)
    game.train_generator()


def relative(game: Game, at: int) -> None:
    game.factor = math.nan if at >= 4 else 1.0
    game.train_judge()
    game.train_generator(relative=True)


def nan(game: Game, at: int) -> None:
    game.factor = math.nan if at >= 4 else 1.0
    usual(game, at)


def nan_that_is_not_stepped(game: Game, at: int) -> None:
    game.factor = math.nan if at >= 4 else 1.0
    game.train_judge()
    game.train_generator(updates=at < 4)


def frozen_judge(game: Game, at: int) -> None:
    game.train_judge()
    game.judge.requires_grad_(False)
    game.train_generator()
    game.judge.requires_grad_(True)


@pytest.mark.parametrize("train", [usual, not_detached, relative, nan, nan_that_is_not_stepped, frozen_judge])
def test_iteration_of_adversaries_is_one_step(spool: Path, train: Callable[[Game, int], None]) -> None:
    game = Game()
    with watched(spool, judge=game.judge, generator=game.generator):
        for at in range(STEPS):
            train(game, at)
    assert steps(spool, "judge", "generator") == [[*range(STEPS)]] * 2


@pytest.mark.parametrize("freezes", [False, True])
@pytest.mark.parametrize("makes_gradients", [False, True])
def test_critics_updates_are_steps_and_the_generators_is_the_newest(
    spool: Path, freezes: bool, makes_gradients: bool
) -> None:
    game = Game()
    with watched(spool, judge=game.judge, generator=game.generator):
        for at in range(30):
            with contextlib.nullcontext() if makes_gradients else torch.no_grad():
                made = game.generator(torch.randn(8, 4))
            game.optimizers["judge"].zero_grad()
            loss = score_loss(game.judge(torch.randn(8, 6)), 1.0) + score_loss(game.judge(made.detach()), 0.0)
            loss.backward()
            game.optimizers["judge"].step()
            if at % 5 == 4:
                game.judge.requires_grad_(not freezes)
                game.train_generator()
                game.judge.requires_grad_(True)
    assert steps(spool, "judge", "generator") == [[*range(30)], [*range(4, 30, 5)]]


def test_update_that_the_script_leaves_out_is_no_step_of_that_model_alone(spool: Path) -> None:
    game = Game()
    with watched(spool, judge=game.judge, generator=game.generator):
        for at in range(STEPS):
            game.train_judge(updates=at % 3 != 2)
            game.train_generator()
    assert steps(spool, "judge", "generator") == [[at for at in range(STEPS) if at % 3 != 2], [*range(STEPS)]]


@pytest.mark.parametrize("names", [("judge",), ("judge", "generator")])
def test_generator_that_is_never_stepped_adds_no_step(spool: Path, names: tuple[str, ...]) -> None:
    game = Game()
    with watched(spool, **{name: getattr(game, name) for name in names}):
        for _ in range(STEPS):
            game.train_judge()
            game.train_generator(updates=False)
    assert steps(spool, *names) == [[*range(STEPS)]] * len(names)


def test_generator_of_two_updates_is_two_steps_and_the_judges_is_the_first(spool: Path) -> None:
    game = Game()
    with watched(spool, judge=game.judge, generator=game.generator):
        for _ in range(STEPS):
            game.train_judge()
            game.train_generator()
            game.train_generator()
    judge, generator = steps(spool, "judge", "generator")
    assert generator == [*range(2 * STEPS)]
    assert judge[2:] == [*range(4, 2 * STEPS, 2)]


def test_three_models_of_one_iteration_share_their_steps(spool: Path) -> None:
    game, encoder = Game(), nn.Linear(6, 4)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
    with watched(spool, judge=game.judge, generator=game.generator, encoder=encoder):
        for at in range(STEPS):
            usual(game, at)
            if at % 2:
                optimizer.zero_grad()
                inputs = torch.randn(8, 6)
                (game.generator(encoder(inputs)) - inputs).square().mean().backward()
                optimizer.step()
    found = steps(spool, "judge", "generator", "encoder")
    assert found == [[*range(STEPS)], [*range(STEPS)], [*range(1, STEPS, 2)]]


def test_one_session_of_both_counts_the_iterations_whatever_is_nan(spool: Path) -> None:
    game = Game()
    both = nn.ModuleDict({"judge": game.judge, "generator": game.generator})
    with watched(spool, both=both):
        for at in range(STEPS):
            nan(game, at)
    assert steps(spool, "both") == [[*range(STEPS)]]


def fit(model: nn.Module, count: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def test_models_that_are_trained_one_after_the_other_begin_anew(spool: Path) -> None:
    models: dict[str, Any] = {name: nn.Linear(4, 2) for name in "abc"}
    with watched(spool, **models):
        for model in models.values():
            fit(model, 5)
    assert steps(spool, *models) == [[*range(5)]] * 3


def events_of(spool: Path, name: str) -> list[tuple[str, str]]:
    return [(event.kind, event.message) for event in run_of(spool / name).latest_events]


def forgotten_generator(game: Game, at: int) -> None:
    game.train_judge()
    game.train_generator(updates=False)


def forgotten_generator_that_is_not_cleared(game: Game, at: int) -> None:
    game.train_judge()
    score_loss(game.judge(game.generator(torch.randn(8, 4))), 1.0).backward()


def forgotten_judge(game: Game, at: int) -> None:
    game.train_judge(updates=False)
    game.train_generator()


def forgotten_part_of_one_loss(game: Game, at: int) -> None:
    for optimizer in game.optimizers.values():
        optimizer.zero_grad()
    score_loss(game.judge(game.generator(torch.randn(8, 4))), 1.0).backward()
    game.optimizers["generator"].step()


@pytest.mark.parametrize(
    ("train", "name"),
    [
        (forgotten_generator, "generator"),
        (forgotten_generator_that_is_not_cleared, "generator"),
        (forgotten_judge, "judge"),
        (forgotten_part_of_one_loss, "judge"),
    ],
)
def test_model_whose_optimizer_is_never_stepped_is_told_within_20_steps(
    spool: Path, train: Callable[[Game, int], None], name: str
) -> None:
    game = Game()
    with watched(spool, judge=game.judge, generator=game.generator):
        for at in range(21):
            train(game, at)
    (event,) = [one for one in run_of(spool / name).latest_events if one.kind == "parameter_not_updated"]
    assert event.severity == "warning"
    assert event.step <= 20
    assert "step() is never called" in event.message
    (other,) = {"judge", "generator"} - {name}
    assert steps_of(run_of(spool / other)) == [*range(21)]
    assert [kind for kind, _ in events_of(spool, other) if kind == "parameter_not_updated"] == []


def in_turns(game: Game, at: int) -> None:
    """The generator's gradients are gathered over eight updates of the judge."""
    game.train_judge(detached=False)
    if at % 8 == 7:
        game.train_generator()


def without_optimizer(game: Game, at: int) -> None:
    """The judge is a fixed teacher, and was not frozen."""
    game.optimizers.pop("judge", None)
    game.train_generator()


@pytest.mark.parametrize("train", [usual, in_turns, without_optimizer])
def test_model_that_is_updated_or_has_no_optimizer_is_not_told(
    spool: Path, train: Callable[[Game, int], None]
) -> None:
    game = Game()
    with watched(spool, judge=game.judge, generator=game.generator):
        for at in range(40):
            train(game, at)
    for name in ("judge", "generator"):
        assert [kind for kind, _ in events_of(spool, name) if kind == "parameter_not_updated"] == []
