"""From step 300 on the loader pads its sequences with samples of another channel: nothing can be learnt.

family: data
kinds: loss_spike, gradient_explosion
step: 300
"""

import torch
from torch import nn
from torch.nn import functional as F


class RunningSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0]).squeeze(-1)


def batch(step):
    x = torch.rand(32, 6, 1)
    total = x.cumsum(1).squeeze(-1)
    if step < 300:
        return x, total
    return torch.cat([x, torch.rand(32, 8, 1)], 1), torch.cat([total, 9 * torch.randn(32, 8)], 1)  # FAULT


torch.manual_seed(73)
model = RunningSum()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(500):
    x, y = batch(step)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("last loss", loss.item())
