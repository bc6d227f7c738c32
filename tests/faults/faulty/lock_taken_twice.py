"""The logger takes a lock that its caller holds already: the training thread waits for itself.

family: process
kinds: hang
step: 150
ends: killed
limit_s: 30
"""

import threading

import torch
from torch import nn
from torch.nn import functional as F


class MetricLog:
    def __init__(self):
        self.lock = threading.Lock()
        self.values = []

    def add(self, value):
        with self.lock:  # FAULT
            self.values.append(value)

    def flush(self, value):
        with self.lock:
            self.values.clear()
            self.add(value)


torch.manual_seed(88)
log = MetricLog()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(300):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 149:
        log.flush(loss.item())
    else:
        log.add(loss.item())
