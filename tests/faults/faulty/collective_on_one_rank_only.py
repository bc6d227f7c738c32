"""Rank 0 alone evaluates and waits at a barrier in it; rank 1 is at the next gradient: both wait for ever.

family: distributed
kinds: hang
step: 60
ends: killed
limit_s: 45
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def evaluate(model):
    total = torch.zeros(1)
    with torch.no_grad():
        total += model.module(torch.randn(32, 8)).square().mean()
    dist.barrier()  # FAULT
    return total.item()


def train(rank, world_size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(94)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(120):
        x = torch.randn(16, 8)
        loss = F.mse_loss(model(x), x.sum(-1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # ORIGIN
        optimizer.step()
        if step == 59 and rank == 0:
            evaluate(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = listener.getsockname()[1]
    mp.spawn(train, args=(2, free), nprocs=2)
