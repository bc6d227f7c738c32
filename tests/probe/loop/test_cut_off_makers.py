"""Two models in one loop, of which one gets no gradient: an iteration is one step all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_numbers import runs_of, steps_of
from small_training import seeded_model
from torch import nn

import probe

pytestmark = pytest.mark.usefixtures("one_thread")
ITERATIONS = 12


@pytest.mark.parametrize("order", ["critic_first", "maker_first", "cut_off_later", "no_backward"])
def test_iteration_whose_maker_gets_no_gradient_is_one_step(order: str, spool: Path) -> None:
    maker, critic = nn.Linear(4, 6), seeded_model()
    of_maker, of_critic = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (maker, critic))
    runs = [probe.watch(model, opt, quiet=True) for model, opt in ((maker, of_maker), (critic, of_critic))]

    def train_critic() -> None:
        of_critic.zero_grad()
        made = maker(torch.randn(4, 4)).detach()
        (critic(made).mean() - critic(torch.randn(4, 6)).mean()).backward()
        of_critic.step()

    def train_maker(iteration: int) -> None:
        of_maker.zero_grad()
        made = maker(torch.randn(4, 4))
        if order != "no_backward":
            is_cut = order != "cut_off_later" or iteration >= ITERATIONS // 2
            (-critic(made.detach() if is_cut else made).mean()).backward()
        of_maker.step()

    for iteration in range(ITERATIONS):
        if order == "maker_first":
            train_maker(iteration)
        train_critic()
        if order != "maker_first":
            train_maker(iteration)
    for run in runs:
        run.close()
    for recorded in runs_of(spool):
        assert steps_of(recorded) == list(range(ITERATIONS))
