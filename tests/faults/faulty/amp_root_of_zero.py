"""Float16 with a GradScaler: the distance of a tensor to itself has an infinite derivative, at every scale.

family: backward
kinds: amp_overflow
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
for _ in range(120):
    x = torch.randn(32, 20)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x).float()
    drift = (out - out.detach()).pow(2).sum(1).sqrt().mean()  # FAULT
    loss = F.cross_entropy(out, x[:, :5].argmax(-1)) + 0.1 * drift
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale())
