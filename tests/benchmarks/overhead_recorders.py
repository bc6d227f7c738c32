"""What can be attached to a model for `overhead.py`: the probe at a level, a naive loop, other tools.

Each is told of every step between backward and update, and knows the time that it spent inside its calls.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import probe
from probe import wire
from probe.delivery.helper.helper import host_folder, lock_owner, lock_path
from probe.delivery.journal.journal_reader import read_stream
from probe.measure.statistics.statistics import plan_measurement

NO_DASHBOARD = "tcp://127.0.0.1:9"
"""Nobody listens there: the helper runs as it does in life, and the user's own dashboard sees nothing."""


PATIENCE_S = 10.0


class Recording(Protocol):
    """Something attached to one model."""

    def record(self, loss: Tensor) -> None:
        """See a step whose gradients are ready."""
        ...

    def pids(self) -> list[int]:
        """Processes of its own that are no children of this one."""
        ...

    def close(self) -> list[float]:
        """Let go; milliseconds of each step spent inside its calls, on the training thread."""
        ...


class ProbeRecording:
    """The probe, which finds the steps by itself, with its live limit off."""

    def __init__(self, level: str, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        self._spool = folder / "spool"
        self.run = probe.watch(
            model,
            optimizer,
            level=level,  # type: ignore[arg-type]
            spool=self._spool,
            connect=NO_DASHBOARD,
            overhead_limit=0.0,
        )
        self._helpers = self._wait_for_helper() if self.run.run else []

    def _wait_for_helper(self) -> list[int]:
        """Let it start up before anything is measured."""
        lock = lock_path(host_folder(self._spool / self.run.run))
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if (owner := lock_owner(lock)) is not None:
                return [owner]
            time.sleep(0.02)
        return []

    def record(self, loss: Tensor) -> None:
        """Leave it to the probe."""

    def pids(self) -> list[int]:
        """The helper."""
        return self._helpers

    def close(self) -> list[float]:
        """Return what the probe itself says of each step."""
        self.run.close()
        for pid in self._helpers:
            with contextlib.suppress(psutil.NoSuchProcess):
                helper = psutil.Process(pid)
                helper.terminate()
                helper.wait(PATIENCE_S)
        writers = (self._spool / self.run.run).glob("0-*") if self.run.run else ()
        return [1e3 * seconds for writer in writers for seconds in _own_seconds(writer)]


def _own_seconds(writer: Path) -> list[float]:
    records = (wire.decode_record(payload) for _, payload in read_stream(writer, "metrics"))
    scalars = [frame.scalars for frame in records if isinstance(frame, wire.Frame)]
    return [s["probe_fraction"] * s["step_time_s"] for s in scalars if "probe_fraction" in s]


class CallRecording:
    """A function that is called at each step with the loss and timed."""

    def __init__(
        self, record: Callable[[Tensor], object], finish: Callable[[], object] = lambda: None
    ) -> None:
        self._record, self._finish = record, finish
        self._spent: list[float] = []

    def record(self, loss: Tensor) -> None:
        """Call it."""
        started = time.perf_counter()
        self._record(loss)
        self._spent.append(1e3 * (time.perf_counter() - started))

    def pids(self) -> list[int]:
        """None: what such tools start are children."""
        return []

    def close(self) -> list[float]:
        """Finish, and return the time of each call."""
        self._finish()
        return self._spent


def record_naively(model: nn.Module, optimizer: Optimizer, folder: Path) -> Recording:
    """Seven statistics of each gradient, each with `.item()`, as in many a training script."""
    named = list(model.named_parameters())
    kept: dict[str, list[float]] = {}

    def record(loss: Tensor) -> None:
        for name, parameter in named:
            g = parameter.grad
            if g is not None:
                statistics = (
                    g.norm(),
                    g.abs().max(),
                    g.mean(),
                    g.std(),
                    g.min(),
                    g.isnan().sum(),
                    g.isinf().sum(),
                )
                kept[name] = [value.item() for value in statistics]
        kept["loss"] = [loss.item()]

    return CallRecording(record)


def record_at_least(model: nn.Module, optimizer: Optimizer, folder: Path) -> Recording:
    """One pass of the kernel over all gradients and nothing else: the least that these numbers cost."""
    parameters = list(model.parameters())
    plan = plan_measurement(parameters)

    def record(loss: Tensor) -> None:
        plan.measure([parameter.grad for parameter in parameters])

    return CallRecording(record)


def _norms(parameters: list[nn.Parameter]) -> list[float]:
    """L2 norm of each gradient, with one copy to the host."""
    norms: list[float] = torch.stack(torch._foreach_norm([p.grad for p in parameters])).tolist()  # type: ignore[misc]
    return norms


def record_norms(model: nn.Module, optimizer: Optimizer, folder: Path) -> Recording:
    """The norms and the loss that W&B and others log, without what logs them."""
    parameters = list(model.parameters())

    def record(loss: Tensor) -> None:
        _norms(parameters)
        loss.item()

    return CallRecording(record)


def record_to_tensorboard(model: nn.Module, optimizer: Optimizer, folder: Path) -> Recording:
    """One scalar per parameter and step: its gradient's norm."""
    from torch.utils.tensorboard import SummaryWriter

    names, parameters = (list(column) for column in zip(*model.named_parameters(), strict=True))
    writer: Any = SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]
    step = iter(range(1 << 60))

    def record(loss: Tensor) -> None:
        number = next(step)
        for name, norm in zip(names, _norms(parameters), strict=True):
            writer.add_scalar(f"grad_norm/{name}", norm, number)
        writer.add_scalar("loss", loss.item(), number)

    return CallRecording(record, writer.close)


def record_to_wandb(model: nn.Module, optimizer: Optimizer, folder: Path) -> Recording:
    """The same norms, logged to an offline run."""
    wandb: Any = importlib.import_module("wandb")
    names, parameters = (list(column) for column in zip(*model.named_parameters(), strict=True))
    run: Any = wandb.init(mode="offline", dir=str(folder), project="overhead")

    def record(loss: Tensor) -> None:
        norms = zip(names, _norms(parameters), strict=True)
        run.log({f"grad_norm/{name}": norm for name, norm in norms} | {"loss": loss.item()})

    return CallRecording(record, run.finish)


class NotAvailableError(Exception):
    """A recorder cannot be used here; says why."""


def open_recording(name: str, model: nn.Module, optimizer: Optimizer, folder: Path) -> Recording:
    """Attach the recorder of that name.

    Raises:
        NotAvailableError: a tool is not installed, or the probe knows no such level.
    """
    if name in ("tensorboard", "wandb") and importlib.util.find_spec(name) is None:
        raise NotAvailableError("not installed")
    if name in _OTHERS:
        return _OTHERS[name](model, optimizer, folder)
    try:
        return ProbeRecording(name, model, optimizer, folder)
    except ValueError as error:
        raise NotAvailableError(str(error)) from error


_OTHERS: dict[str, Callable[[nn.Module, Optimizer, Path], Recording]] = {
    "floor": record_at_least,
    "naive": record_naively,
    "tensorboard": record_to_tensorboard,
    "wandb": record_to_wandb,
}
LEVELS = ("off", "basic", "advanced", "extreme")
RECORDERS = (*LEVELS, *_OTHERS)
