"""Ranks that do not call the same collectives: `python ranks_in_collectives.py CASE RANKS TIMEOUT_S`."""

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import probe

STEPS, ODD_STEP = 12, 8


def exchange(step: int, case: str, is_odd: bool) -> None:
    if step == ODD_STEP and is_odd:
        if case == "barrier":
            dist.barrier()  # BARRIER
        if case == "order":
            dist.broadcast(torch.ones(2), 0)  # BROADCAST
    dist.all_reduce(torch.ones(3))  # ALL_REDUCE
    if step == ODD_STEP and case == "order" and not is_odd:
        dist.broadcast(torch.ones(2), 0)


def train(rank: int, ranks: int, port: int, case: str, timeout_s: float) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timeout)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, hang_seconds=0.5, quiet=True):
        for step in range(STEPS):
            if case == "missing" and step == ODD_STEP and rank == ranks - 1:
                return
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            exchange(step, case, rank == ranks - 1)
            optimizer.step()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = listener.getsockname()[1]
    ranks = int(sys.argv[2])
    arguments = (ranks, free, sys.argv[1], float(sys.argv[3]))
    mp.start_processes(train, args=arguments, nprocs=ranks, start_method="fork")
