"""Trains epochs over a DataLoader of 50 batches until its standard input ends; tells no length."""

import sys
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import probe

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(200, 4), torch.arange(200) % 3), 4, shuffle=True)
run = probe.watch(model, optimizer)
print(run.run, flush=True)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.is_set():
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        ended.wait(0.1)
run.close()
