"""Trains until its standard input ends, with an element read at each row: what a profile is to find.

Takes the level to begin at, and the pause after each step in seconds.
"""

import sys
import threading

import torch
from torch import nn

import probe

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = probe.watch(model, optimizer, level=sys.argv[1] if len(sys.argv) > 1 else None)
pause_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
print(run.run, flush=True)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.is_set():
    outputs = model(torch.randn(30, 16))
    total = sum(row.item() for row in outputs.detach())
    optimizer.zero_grad()
    outputs.square().mean().backward()
    optimizer.step()
    ended.wait(pause_s)
run.close()
