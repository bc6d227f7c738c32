"""A prefetching thread ends with an exception that nobody sees; the loop waits on its queue for ever.

family: process
kinds: hang
step: 120
ends: killed
limit_s: 30
"""

import queue
import threading

import torch
from torch import nn
from torch.nn import functional as F

batches = queue.Queue(maxsize=4)


def prefetch():
    for index in range(300):
        rows = 32 if index != 120 else None
        x = torch.randn(rows, 8)
        batches.put((x, (x[:, 0] > 0).long()))


torch.manual_seed(89)
threading.Thread(target=prefetch, daemon=True).start()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(300):
    x, y = batches.get()  # FAULT
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
