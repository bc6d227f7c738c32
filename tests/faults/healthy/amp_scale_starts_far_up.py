"""A GradScaler that is left to find its scale from 2**44 downwards: the first updates are skipped, then none.

family: healthy
steps: 300
tempts: amp_overflow, nonfinite_gradient
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**44)
for _ in range(300):
    x = torch.randn(32, 20)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x).float(), x[:, :5].argmax(-1))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale(), "last loss", loss.item())
