"""A watched training that ends without an exit; notes each step once it is finished, as a person would.

Arguments: spool, log file, how it ends (kill, exit, segfault), where (step, evaluation, checkpoint), connect.
With UNMAPPED in the environment the ring's file is written with `pwrite`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch

import probe
from probe.delivery.recorder import ring

if os.environ.get("UNMAPPED"):
    ring.map_written_file = lambda descriptor, size: None

STEPS = 70


def end(how: str) -> None:
    """End this process in the middle of what it does."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(3)
    elif how == "segfault":
        ctypes.string_at(0)
    else:
        time.sleep(600)


class Net(torch.nn.Module):
    """Ends, or stands still, in a forward when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.ends_by = ""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.ends_by:
            end(self.ends_by)
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


class EndsWhenSaved:
    """Ends the process when it is pickled."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> tuple[type, tuple[str]]:
        end(self.how)
        return EndsWhenSaved, (self.how,)


def main() -> None:
    spool, log, how, where, connect = sys.argv[1:6]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    run = probe.watch(model, optimizer, spool=spool, connect=connect, run="killed", hang_seconds=1000)
    finished = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in range(STEPS):
        loss = model(torch.randn(16, 8)).square().mean()
        if where == "fault" and step == STEPS - 1:
            loss = loss * 1e6
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(mine=float(step))
        os.write(finished, f"{step}\n".encode())
    if where == "evaluation":
        model.eval()
        model.ends_by = how
        with torch.no_grad():
            model(torch.randn(16, 8))
    elif where == "checkpoint":
        torch.save({"model": model.state_dict(), "more": EndsWhenSaved(how)}, Path(spool) / "checkpoint.pt")
    else:
        model.ends_by = how
        model(torch.randn(16, 8))


if __name__ == "__main__":
    main()
