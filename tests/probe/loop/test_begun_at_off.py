"""A run that begins at level off: steps are counted, nothing is measured, until somebody switches it on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_numbers import run_of, steps_of
from small_training import seeded_model, train

import probe

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


@pytest.mark.capability(50)
def test_run_that_begins_at_off_can_be_switched_on(spool: Path) -> None:
    model, twin = seeded_model(), seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(2)
    with probe.watch(model, optimizer, level="off") as run:
        losses = train(model, optimizer, 5)
        run.set_level("basic")
        losses += train(model, optimizer, 6)
    torch.manual_seed(2)
    other = torch.optim.SGD(twin.parameters(), lr=0.1)
    assert losses == train(twin, other, 5) + train(twin, other, 6)
    recorded = run_of(spool)
    assert recorded.start.level == "off"
    assert steps_of(recorded) in (list(range(5, 11)), list(range(6, 11)))
    assert [event.kind for event in recorded.latest_events] == ["level_changed"]


def test_level_off_of_the_environment_records_nothing(monkeypatch: pytest.MonkeyPatch, spool: Path) -> None:
    monkeypatch.setenv("NANSCOPE_LEVEL", "off")
    with probe.watch(seeded_model()) as run:
        assert not run.active
    assert not spool.exists() or not list(spool.iterdir())
