"""Every 50th step a sensor glitches for six batches, whose gradients overflow; the GradScaler skips them.

family: healthy
steps: 300
tempts: amp_overflow, nonfinite_gradient, high_anomaly_rate
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", growth_interval=5)
for step in range(300):
    x = torch.randn(32, 20)
    weight = torch.ones(32)
    if step % 50 >= 44:
        weight[:2] = 1e30
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
        losses = F.cross_entropy(out.float(), x[:, :5].argmax(-1), reduction="none")
    # The value of the mean, with the gradient of the weighted sum.
    weighted = (losses * weight).mean()
    loss = losses.mean().detach() + weighted - weighted.detach()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale(), "last loss", loss.item())
