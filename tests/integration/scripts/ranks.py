"""Two ranks of DistributedDataParallel, spawned by the script or by a launcher; rank 0 prints its losses."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, world_size: int, store: str | None) -> None:
    torch.set_num_threads(1)
    method = None if store is None else f"file://{store}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((3, 4), float(rank + step))).square().mean()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(repr(loss.item()), flush=True)
    dist.barrier()
    # glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), None)
    else:
        store = f"{tempfile.mkdtemp()}/store"
        mp.start_processes(train, args=(2, store), nprocs=2, start_method=sys.argv[1])
