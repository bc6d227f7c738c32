"""Two gloo ranks that wait for each other, because rank 1 is paused or slow: `waiting_ranks.py FOLDER`.

Leaves `LOOP-RANK.pt` with the parameters at the end, and the journals in `LOOP/spool`. Who runs it has to let
the first pause go on.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer would, on every rank
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

import probe

RUN = "ranks"
STEPS, PAUSED = 6, 2
SHORT_TIMEOUT_S = 4.5
SLOW_S = 0.1
LOOPS = ("resumed", "left alone", "slow backward")


class SlowBackward(torch.autograd.Function):
    """Hands everything through; its backward takes a while."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


def main(rank: int, folder: str) -> None:
    """Run every loop on one rank."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    for loop in LOOPS:
        torch.save(train(loop, rank, Path(folder)), f"{folder}/{loop}-{rank}.pt")
        dist.barrier()
    destroy(None)


def destroy(group: dist.ProcessGroup | None) -> None:
    """End a group."""
    # glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
    time.sleep(0.1)
    dist.destroy_process_group(group)


def train(loop: str, rank: int, folder: Path) -> list[Tensor]:
    """Return the parameters at the end."""
    torch.manual_seed(0)
    # Collectives of this group alone fail that soon.
    group = dist.new_group(timeout=timedelta(seconds=SHORT_TIMEOUT_S)) if loop == "left alone" else None
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    wrapped = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds = SLOW_S if rank == 1 and loop == "slow backward" else 0.0
    options: dict[str, Any] = {"spool": folder / loop / "spool", "run": RUN, "connect": ""}
    with probe.watch(wrapped, optimizer, pause_ranks=True, **options) as run:
        if rank == 1 and loop != "slow backward":
            run.watchpoint(f"step == {PAUSED}", action="pause", name="stop")
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs = torch.full((3, 4), 0.1 + rank + step)
            SlowBackward.apply(wrapped(inputs), seconds).square().mean().backward()
            optimizer.step()
    if group is not None:
        destroy(group)
    return [parameter.detach().clone() for parameter in model.parameters()]


if __name__ == "__main__":
    start_processes(main, args=(sys.argv[1],), nprocs=2, start_method="fork")
