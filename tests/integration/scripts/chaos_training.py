"""Trains until it is killed, and notes each step and its time once `optimizer.step` has returned.

Arguments: spool, log file. With IN_MEMORY in the environment the ring cannot be a file.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import NoReturn

import torch

import probe
from probe.delivery.recorder import ring


def refuse(*_: object) -> NoReturn:
    """As a disk without room for the ring."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def main() -> None:
    spool, log = sys.argv[1:3]
    if os.environ.get("IN_MEMORY"):
        ring.os.posix_fallocate = refuse
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    probe.watch(model, optimizer, spool=spool, connect="", run="chaos", hang_seconds=1000)
    finished = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in range(10**9):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        os.write(finished, f"{step} {time.monotonic()}\n".encode())


if __name__ == "__main__":
    main()
