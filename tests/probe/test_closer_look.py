"""When level basic looks closer, and for how long; in a real run: what it measures and what it says."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from journals import read_journal
from torch import nn

import probe
from probe.closer_look import STEPS, CloserLook
from probe.levels import Settings

BASIC = Settings()


def test_a_look_measures_as_advanced_does_and_ends_after_its_steps() -> None:
    look = CloserLook()
    closer = look.begin(100, BASIC)
    assert closer is not None
    assert closer.level == "advanced"
    assert closer.features.activations == 2
    assert [step for step in range(101, 140) if look.is_over(step)] == [100 + STEPS]


def test_a_switch_that_the_user_has_set_stays() -> None:
    closer = CloserLook().begin(0, Settings(overrides={"activations": 0}))
    assert closer is not None
    assert closer.features.activations == 0


def test_looks_are_rare_and_few() -> None:
    look, begun = CloserLook(), []
    for step in range(50_000):
        look.is_over(step)
        if look.begin(step, BASIC) is not None:
            begun.append(step)
    assert len(begun) == 20
    assert min(later - earlier for earlier, later in itertools.pairwise(begun)) == 500


def test_what_the_user_has_chosen_is_not_raised() -> None:
    for chosen in (Settings(level="advanced"), Settings(preset="minimal"), Settings(level="off")):
        assert CloserLook().begin(0, chosen) is None


def test_a_spike_brings_a_closer_look_that_says_why(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(
        model, optimizer, spool=tmp_path, connect="", overhead_limit=0.0, features={"activations": 1000}
    ) as run:
        for step in range(140):
            inputs = torch.randn(32, 8)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            (loss * (1e4 if step == 80 else 1.0)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        assert run.active
    (folder,) = tmp_path.iterdir()
    journal = read_journal(folder)
    changes = [event for event in journal.events if event.kind == "level_changed"]
    assert [event.subject for event in changes] == ["advanced", "basic"]
    assert changes[0].message.startswith(f"Level advanced for {STEPS} steps, for a closer look: ")
    assert changes[1].step == changes[0].step + STEPS
    closer = range(changes[0].step + 1, changes[1].step + 1)
    gradients = [
        frame.step
        for frame in journal.frames
        if any(column.name == "activation_gradient_norm" for column in frame.module_columns)
    ]
    assert gradients == [step for step in closer if step % 2 == 0]
    spike = next(event for event in journal.events if event.kind == "loss_spike")
    assert "\nWhat moved, the first last: gradients of " in spike.message
