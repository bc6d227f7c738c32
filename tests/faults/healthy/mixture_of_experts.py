"""Top-1 routing over 8 experts: at many steps an expert gets no token, hence no or a zero gradient.

family: healthy
steps: 500
tempts: zero_gradient, parameter_not_updated, dead_units
"""

import torch
from torch import nn
from torch.nn import functional as F


class MixtureOfExperts(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x):
        probability, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero().squeeze(-1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * probability[rows, None])
        return x + out


torch.manual_seed(13)
model = nn.Sequential(nn.Linear(10, 16), MixtureOfExperts(16, 8), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(500):
    x = torch.randn(24, 10)
    loss = F.cross_entropy(model(x), x.abs()[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
