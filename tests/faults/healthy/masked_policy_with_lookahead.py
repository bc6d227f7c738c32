"""A policy with -Inf for forbidden moves looks ahead in train mode, with gradients, before it learns.

family: healthy
steps: 200
tempts: nonfinite_loss, nonfinite_parameter, nonfinite_activation
"""

import torch
from torch import nn
from torch.nn import functional as F


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
        self.register_buffer("causal", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, x, allowed):
        return self.body(x).masked_fill(~allowed, float("-inf"))


torch.manual_seed(16)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
for _ in range(200):
    x = torch.randn(32, 8)
    allowed = torch.rand(32, 4) > 0.3
    allowed[:, 0] = True
    for _ in range(12):
        best = policy(x + 0.1 * torch.randn_like(x), allowed).argmax(1)
    loss = F.cross_entropy(policy(x, allowed), best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
