"""Float16 with a GradScaler: two gains of 30,000 between small weights; their gradients exceed 65,504.

family: backward
kinds: amp_overflow
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Gained(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 64), nn.Linear(64, 5)
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=1e-5)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.second(self.first(x) * 30000.0) * 30000.0  # FAULT


torch.manual_seed(2)
model = Gained()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
scaler = torch.amp.GradScaler("cpu")
for _ in range(120):
    x = torch.randn(32, 20)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x).float(), x[:, :5].argmax(-1), reduction="sum")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale(), "loss", loss.item())
