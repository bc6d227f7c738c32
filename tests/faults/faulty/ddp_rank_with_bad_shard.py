"""Two ranks under DistributedDataParallel: the shard of rank 1 has a NaN, which the all-reduce spreads.

family: distributed
kinds: nonfinite_input, nonfinite_loss, nonfinite_gradient, rank_divergence
step: 40
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def train(rank, world_size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(92 + rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    shard = torch.randn(80, 16, 8)
    if rank == 1:
        shard[40, 3, 2] = float("nan")  # FAULT
    for x in shard:
        loss = F.mse_loss(model(x), x.nan_to_num().sum(-1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = listener.getsockname()[1]
    mp.spawn(train, args=(2, free), nprocs=2)
