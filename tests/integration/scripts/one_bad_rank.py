"""Ranks that torchrun starts, each with a model of its own; rank 1 has a NaN at the step that is named.

`python one_bad_rank.py STEP WAY`: with "watch" the script watches its model itself; with "slow" the bad rank
trains on for half a minute after the others have ended.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

bad_step, ways = int(sys.argv[1]), sys.argv[2:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if "watch" in ways:
    import probe

    probe.watch(model, optimizer)
is_bad = dist.get_rank() == 1
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.full((3, 4), 1.0 + step)).square().mean()
    if is_bad and step == bad_step:
        loss = loss * float("nan")
    loss.backward()
    optimizer.step()
    dist.barrier()
# glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
time.sleep(0.1)
dist.destroy_process_group()
if is_bad and "slow" in ways:
    print(f"{time.time()} {os.getpid()}", flush=True)
    time.sleep(30)
