"""When level basic looks closer, and for how long; in a real run: what it measures and what it says."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import torch
from journals import read_journal
from torch import nn

import probe
from probe.loop.closer_look import STEPS, CloserLook
from probe.settings.levels import Settings
from probe.wire import Event

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
        # On a busy machine quick steps are judged many steps later.
        for step in range(440):
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
    assert changes[0].message.startswith(f"Recording in more detail for {STEPS} steps (level advanced): ")
    assert "data, learning rate" in changes[0].advice[0] and changes[1].advice != changes[0].advice
    assert changes[1].step == changes[0].step + STEPS
    closer = range(changes[0].step + 1, changes[1].step + 1)
    gradients = [
        frame.step
        for frame in journal.frames
        if any(column.name == "activation_gradient_norm" for column in frame.module_columns)
    ]
    assert gradients == [step for step in closer if step % 2 == 0]
    spike = next(event for event in journal.events if event.kind == "loss_spike")
    assert "\nWhat changed before (newest first): gradients at step 80: `" in spike.message


def train_with_offset(folder: Path, level: str) -> list[Event]:
    """Events of 400 steps; from step 200 on a constant that is no alarm is added to the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with probe.watch(model, optimizer, spool=folder, connect="", overhead_limit=0.0, level=level) as run:
        for step in range(400):
            if step == 260:
                # As the recorder's thread does it; quick steps may all be made before that.
                assert run._tracker is not None
                run._tracker.judge_waiting()
                run._tracker.fast.ask_for_a_look()
            inputs = torch.randn(512, 8)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            (loss + (3.5 if step >= 200 else 0.0)).backward()
            optimizer.step()
    (recorded,) = folder.iterdir()
    return read_journal(recorded).events


def test_a_lasting_jump_of_the_loss_brings_a_closer_look_and_no_alarm(tmp_path: Path) -> None:
    events = train_with_offset(tmp_path, "basic")
    assert [(event.kind, event.severity) for event in events] == [("level_changed", "info")] * 2
    reason = events[0].message.removeprefix(f"Recording in more detail for {STEPS} steps (level advanced): ")
    said = re.fullmatch(
        r"the loss jumped at step 200, from (\S+) to (\S+) \((\S+) MADs\), and stayed there up to step (\d+)",
        reason,
    )
    assert said is not None, reason
    before, after, mads, found = (float(number) for number in said.groups())
    assert 3.0 < after - before < 4.0
    assert mads > 7.0
    assert 200 < found < 205 <= events[0].step


def test_a_jump_is_not_told_of_where_no_look_can_begin(tmp_path: Path) -> None:
    assert train_with_offset(tmp_path, "advanced") == []
