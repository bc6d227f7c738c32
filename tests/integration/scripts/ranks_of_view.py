"""Three ranks under DistributedDataParallel: rank 2 loads data slowly, rank 1 has a NaN at step 50."""

import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS, BAD, SLOW_S = 54, 50, 0.06


def train(rank: int, world_size: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x = torch.randn(16, 8)
        if rank == 2:
            time.sleep(SLOW_S)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sum(-1, keepdim=True))
        if rank == 1 and step == BAD:
            loss = loss * float("nan")
        loss.backward()
        optimizer.step()
    # glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = listener.getsockname()[1]
    mp.start_processes(train, args=(3, free), nprocs=3, start_method="fork")
