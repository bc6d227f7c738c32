"""Two ranks under DistributedDataParallel; the weights of rank 1 are damaged after its update of step 35."""

import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS, DAMAGED = 120, 35


def train(rank: int, world_size: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        F.mse_loss(model(x), x.sum(-1, keepdim=True)).backward()
        optimizer.step()
        if rank == 1 and step == DAMAGED:
            with torch.no_grad():
                model.module[2].weight[0, 3] += 1.0
    # glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = listener.getsockname()[1]
    mp.start_processes(train, args=(2, free), nprocs=2, start_method="fork")
