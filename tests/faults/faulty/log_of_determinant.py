"""A linear flow takes log(det(W)); the determinant of a weight changes its sign and the log is NaN.

family: forward
kinds: nonfinite_loss
step: 40
module: mix
"""

import torch
from torch import nn


class InvertibleMix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width))

    def forward(self, x):
        return x @ self.weight.T, torch.log(torch.det(self.weight))  # FAULT


class Flow(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = InvertibleMix(width)
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        z, log_det = self.mix(x)
        z = z + self.shift
        return 0.5 * z.square().sum(-1).mean() - log_det


def permute_channels(flow):
    """Between two flows of a stack channels are swapped; here it is folded into the weight."""
    with torch.no_grad():
        flow.mix.weight.copy_(flow.mix.weight[[1, 0, 2, 3, 4, 5]])


torch.manual_seed(17)
data = torch.randn(100, 64, 6) @ torch.randn(6, 6).mul(0.3).add(torch.eye(6))
model = Flow(6)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step, batch in enumerate(data):
    if step == 40:
        permute_channels(model)
    loss = model(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
