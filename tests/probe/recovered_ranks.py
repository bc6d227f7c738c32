"""Two gloo ranks of which one gets a bad batch, with a recovery: `recovered_ranks.py FOLDER`.

Leaves `LOOP-RANK.pt` with the parameters after each step, and the journals in `LOOP/spool`. At the end the
process that started them, which has imported torch for all, runs `memory_limited_step`.
"""

import math
import sys
from datetime import timedelta
from pathlib import Path

import memory_limited_step
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

import probe

BAD = 2
STEPS = 4
LOOPS = ("averaged", "bad loss alone", "never averaged", "rolled back")


def main(rank: int, folder: str) -> None:
    """Run every loop on one rank."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    for loop in LOOPS:
        torch.save(train(loop, rank, Path(folder)), f"{folder}/{loop}-{rank}.pt")
        dist.barrier()
    dist.destroy_process_group()


def train(loop: str, rank: int, folder: Path) -> list[list[torch.Tensor]]:
    """Return the parameters after each step."""
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(4, 2)
    wrapped = model if loop == "never averaged" else DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    states = []
    options = {"spool": folder / loop / "spool", "run": "ranks", "connect": "", "replay": False, "bundles": 0}
    recovery = probe.Recovery(nonfinite="rollback" if loop == "rolled back" else "skip", keep_state_every=1)
    with probe.watch(wrapped, optimizer, recovery=recovery, **options):
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = wrapped(torch.full((3, 4), 0.1 + rank + step)).square().mean()
            if rank == 1 and step == BAD:
                # A constant has no gradient: of this loss the ranks see nothing in each other's.
                loss = loss + math.inf if loop == "bad loss alone" else loss * math.nan
            if rank == 1 and step == BAD - 1 and loop == "rolled back":
                loss = loss + math.inf
            loss.backward()
            optimizer.step()
            states.append([parameter.detach().clone() for parameter in model.parameters()])
        if loop == "bad loss alone":
            run_out_of_memory(optimizer)
    return states


def run_out_of_memory(optimizer: torch.optim.Optimizer) -> None:
    """Fail as torch's CPU allocator does: what would be skipped by one process has to reach the script."""
    try:
        probe.robust_training_step(lambda: torch.empty(2**50), optimizer=optimizer)
    except RuntimeError:
        return
    raise AssertionError("one rank alone has gone on")


if __name__ == "__main__":
    start_processes(main, args=(sys.argv[1],), nprocs=2, start_method="fork")
    memory_limited_step.main()
