"""Layer normalisation by hand with epsilon outside of the root: a constant row has variance 0.

family: backward
kinds: nonfinite_gradient
step: 88
module: norm
"""

import torch
from torch import nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        deviation = centred.square().mean(-1, keepdim=True).sqrt()  # FAULT
        return self.gain * centred / (deviation + 1e-6) + self.bias


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(6, 32, bias=False)
        self.norm = LayerNorm(32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(F.gelu(self.norm(self.lift(x))))


torch.manual_seed(27)
model = Mixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(140):
    x = torch.randn(24, 6)
    if step == 88:
        x[13] = 0.0
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
