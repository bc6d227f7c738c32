"""The event of an exception: module, op, what was NaN; a CUDA error's line is only where it was noticed."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from dashboard.page.views import event_facts as facts
from probe.incidents.failure_place import arrives_late, blocking_command
from probe.wire import Event
from probe.wire.event_places import NOTICED

pytestmark = pytest.mark.usefixtures("one_thread")
CUDA_TEXTS = [
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some "
    "other API call, so the stacktrace below might be incorrect.",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb)`",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "cuFFT error: CUFFT_EXEC_FAILED",
    "Triton Error [CUDA]: an illegal memory access was encountered",
    "HIP error: unspecified launch failure",
]


class Decoder(nn.Module):
    def __init__(self, fails: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self._fails = nn.Linear(6, 4), fails

    def forward(self, x: Tensor) -> Tensor:
        return self._fails(self.fc(x))


class Net(nn.Module):
    def __init__(self, fails: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.decoder = nn.Linear(4, 6), Decoder(fails)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.body(x))


def event_of(spool: Path, error: type[BaseException], fails: Callable[[Tensor], Tensor], x: Tensor) -> Event:
    torch.manual_seed(0)
    model = Net(fails)
    with pytest.raises(error), probe.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        model(x).mean().backward()
    (event,) = [event for event in run_of(spool).latest_events if event.kind == "exception"]
    return event


def multiplied(x: Tensor) -> Tensor:
    return x @ torch.ones(3, 3)


def checked(x: Tensor) -> Tensor:
    assert torch.isfinite(x).all()
    return x


def called(x: Tensor) -> Tensor:
    return F.binary_cross_entropy(x, torch.zeros(2))


@pytest.mark.parametrize(
    ("fails", "error", "op"),
    [
        (multiplied, RuntimeError, "matmul"),
        (checked, AssertionError, "assert"),
        (called, ValueError, "F.binary_cross_entropy"),
    ],
)
def test_module_op_and_bad_elements_are_named(
    fails: Callable[[Tensor], Tensor], error: type[BaseException], op: str, spool: Path
) -> None:
    batch = torch.ones(8, 4)
    batch[2, 1] = float("nan")
    event = event_of(spool, error, fails, batch)

    assert event.origin is not None, event.message
    assert (event.origin.module, event.origin.op) == ("decoder", op)
    assert "): x" in event.message
    assert [(one.shape, one.nan) for one in event.evidence.tensors if one.name == "x"] == [([8, 4], 4)]
    assert facts.place(event)[0].label == "Line"


def test_module_of_torchs_own_is_the_innermost(spool: Path) -> None:
    event = event_of(spool, RuntimeError, lambda x: x, torch.ones(8, 5))
    assert event.origin is not None
    assert (event.origin.module, event.origin.op) == ("body", "F.linear")


class OtherName(nn.Linear):
    def forward(this, x: Tensor) -> Tensor:  # noqa: N805 - `self` is only a habit
        return torch.einsum("ij,kj->ik", x, this.weight[:, :2])


def test_module_is_named_whatever_its_forward_calls_itself(spool: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), OtherName(6, 2))
    with pytest.raises(RuntimeError), probe.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        model(torch.ones(8, 4)).mean().backward()
    (event,) = [event for event in run_of(spool).latest_events if event.kind == "exception"]

    assert event.origin is not None, event.message
    assert (event.origin.module, event.origin.op) == ("1", "torch.einsum")


def test_command_names_the_module_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/me/pkg/train.py", "--data", "a b"])
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    assert blocking_command(error) == "CUDA_LAUNCH_BLOCKING=1 python /home/me/pkg/train.py --data 'a b'"
    monkeypatch.setattr(main, "__spec__", importlib.machinery.ModuleSpec("pkg.train", None))
    assert blocking_command(error) == "CUDA_LAUNCH_BLOCKING=1 python -m pkg.train --data 'a b'"


@pytest.mark.parametrize("text", CUDA_TEXTS)
def test_error_of_a_device_is_only_noticed_where_it_is_raised(text: str, spool: Path) -> None:
    def arrives(x: Tensor) -> Tensor:
        bad = x * float("nan")
        raise RuntimeError(text) if len(bad) else ValueError

    event = event_of(spool, RuntimeError, arrives, torch.ones(8, 4))

    assert event.origin is None
    assert event.noticed_at is not None and event.noticed_at.file == __file__
    assert f"at step 0, noticed at {Path(__file__).name}:" in event.message.splitlines()[0]
    setting = "AMD_SERIALIZE_KERNEL=3" if text.startswith("HIP") else "CUDA_LAUNCH_BLOCKING=1"
    assert f"{setting} python " in event.message
    assert " NaN" not in event.message
    assert "Bundle" not in event.message
    assert facts.place(event)[0].value.startswith(NOTICED)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("CUDA error: told by a script")],
)
def test_other_errors_arrive_where_they_are_raised(error: Exception) -> None:
    assert not arrives_late(error)
