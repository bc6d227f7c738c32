"""What is left of a followed loop once its session is over: nothing that is called when the model goes."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from early_arming import early_arming
from torch import nn

import probe
from probe.loop import armed_loop
from probe.measure.kernels import hot_binding

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]


@pytest.mark.parametrize("level", ["basic", "off"])
@pytest.mark.parametrize("survivor", ["model", "optimizer", "none"])
def test_model_and_optimizer_that_outlive_the_session_call_nothing(
    spool: Path, monkeypatch: pytest.MonkeyPatch, survivor: str, level: str
) -> None:
    """At the end of the interpreter modules are emptied before the last objects go: callbacks would print."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with early_arming(in_c=True) as followed:
        run = probe.watch(model, optimizer, run="run", connect="", level=level)
        for _ in range(20):
            model(torch.ones(4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        run.close()
    assert followed.steps or level == "off"
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    monkeypatch.setattr(armed_loop, "armed_calls", None)
    if survivor != "model":
        del model
    if survivor != "optimizer":
        del optimizer
    gc.collect()
    assert printed == []
