"""Float16 with a GradScaler: from step 60 on a gate is closed, and the guarded log of 0 has a NaN derivative.

family: backward
kinds: amp_overflow
step: 60
"""

import torch
from torch import nn
from torch.nn import functional as F


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(20, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, x, gate):
        h = (F.softplus(self.body(x)).float() + 0.1) * gate
        return self.head(torch.where(h > 0, h.log(), torch.zeros_like(h)))  # FAULT


torch.manual_seed(1)
model = Gated()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(200):
    x = torch.randn(32, 20)
    gate = torch.ones(64)
    if step >= 60:
        gate[:8] = 0.0
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x, gate)
    loss = F.cross_entropy(out.float(), x[:, :5].argmax(-1))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale())
