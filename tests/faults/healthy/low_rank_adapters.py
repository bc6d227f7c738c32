"""LoRA: a frozen base and B = 0, so that A has a gradient of exactly 0 at the first step.

family: healthy
steps: 500
tempts: zero_gradient, parameter_not_updated, poor_initialization
"""

import torch
from torch import nn
from torch.nn import functional as F


class LoRALinear(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.02)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + (x @ self.a.T) @ self.b.T * 2.0


torch.manual_seed(40)
model = nn.Sequential(LoRALinear(nn.Linear(16, 48), 4), nn.GELU(), LoRALinear(nn.Linear(48, 4), 4))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
for _ in range(500):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
