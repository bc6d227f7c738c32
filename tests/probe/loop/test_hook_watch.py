"""Hooks of a watched model are counted on the recorder's thread."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import nn

import probe
from probe.loop import hook_watch

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


@pytest.mark.parametrize(("on", "removes"), [("module", False), ("weight", False), ("module", True)])
def test_hooks_that_pile_up_are_an_event_with_the_newest_function(
    spool: Path, monkeypatch: pytest.MonkeyPatch, on: str, removes: bool
) -> None:
    watches: list[hook_watch.HookWatch] = []
    original = hook_watch.HookWatch.__init__

    def init(watch: hook_watch.HookWatch, *args: object, **kwargs: object) -> None:
        original(watch, *args, **kwargs)  # type: ignore[arg-type]
        watches.append(watch)

    monkeypatch.setattr(hook_watch.HookWatch, "__init__", init)
    # The recorder's own looks are far apart, so that those of this test are all there are.
    monkeypatch.setattr(hook_watch.HookWatch, "period_s", 1e6)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def keep_outputs(*_: object) -> None: ...

    with probe.watch(model, optimizer):
        for step in range(80):
            if on == "module":
                handle = model[1].register_full_backward_hook(keep_outputs)
            else:
                handle = model[1].weight.register_hook(keep_outputs)
            model(torch.randn(3, 6)).pow(2).mean().backward()
            optimizer.step()
            if removes:
                handle.remove()
            if step % 10 == 9:
                watches[0].look()
    found = [event for event in run_of(spool).latest_events if event.kind == "memory_leak"]
    assert [event.subject for event in found] == ([] if removes else ["1"])
    assert removes or "test_hook_watch.py:" in found[0].message
