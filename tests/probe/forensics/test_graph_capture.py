"""While a CUDA graph is captured the probe looks away: whatever it reads would break the capture.

No GPU is needed: torch is only made to say that its stream is capturing. `tests/setups` captures a real one.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.attach import watched_model
from probe.compat import host_copy


@contextmanager
def capturing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(host_copy, "cuda_is_initialised", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        yield


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = model(torch.ones(8, 6)).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss.detach()


def test_steps_of_a_captured_graph_are_neither_looked_at_nor_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    looks: list[Any] = []
    measure = watched_model.tensor_statistics

    def measure_and_tell(*arguments: Any) -> Any:
        looks.append(arguments)
        return measure(*arguments)

    monkeypatch.setattr(watched_model, "tensor_statistics", measure_and_tell)
    caplog.set_level(logging.WARNING)
    with probe.watch(model, optimizer, spool=tmp_path, run="run", connect="", level="extreme"):
        train_step(model, optimizer)
        looks.clear()
        with capturing(monkeypatch):
            losses = [float(train_step(model, optimizer)) for _ in range(3)]
            assert looks == []
        last = train_step(model, optimizer)
        assert looks != []
    frames = read_journal(tmp_path / "run").frames
    assert [frame.scalars["loss"] for frame in frames if "loss" in frame.scalars][-1] == float(last)
    assert {frame.step for frame in frames} == {0, 1}
    assert not {frame.scalars.get("loss") for frame in frames} & set(losses)
    assert [record.message for record in caplog.records].count(caplog.messages[0]) == 1
    assert "CUDA graph" in caplog.messages[0]
