"""A run that begins at level off: steps are counted, nothing is measured, until somebody switches it on."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

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


def test_step_at_level_off_calls_two_functions_of_the_probe() -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_globals["__name__"].partition(".")[0] in ("probe", "torch"):
            called.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}")

    def calls_of_a_step() -> Counter[str]:
        called.clear()
        sys.setprofile(note)
        train(model, optimizer, 1)
        sys.setprofile(None)
        return Counter(called)

    train(model, optimizer, 3)
    plain = calls_of_a_step()
    with probe.watch(model, optimizer, level="off"):
        train(model, optimizer, 3)
        more = calls_of_a_step() - plain
    hooks = "probe.attach.optimizer_steps"
    assert more == {f"{hooks}.before": 1, f"{hooks}._after": 1, "torch.compiler.is_dynamo_compiling": 2}


def test_level_off_of_the_environment_records_nothing(monkeypatch: pytest.MonkeyPatch, spool: Path) -> None:
    monkeypatch.setenv("NANSCOPE_LEVEL", "off")
    with probe.watch(seeded_model()) as run:
        assert not run.active
    assert not spool.exists() or not list(spool.iterdir())
