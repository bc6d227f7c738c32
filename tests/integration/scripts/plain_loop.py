"""An ordinary training loop; prints its losses, and what it knows of itself."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(5):
    loss = model(torch.randn(3, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
print(sys.argv, __name__, __file__, __spec__ is None, sys.path[0], torch.initial_seed())
print(sorted(name for name in globals() if not name.startswith("__")))
