"""A forward hook that was to show activations appends every one of them to a list.

family: memory
kinds: memory_leak
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

seen = []


def remember(module, inputs, output):
    seen.append(output.detach().clone())  # FAULT


torch.manual_seed(81)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 5))
model[1].register_forward_hook(remember)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(300):
    image = torch.rand(16, 3, 16, 16)
    loss = F.cross_entropy(model(image), image.mean((2, 3)).argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item(), "kept", len(seen))
