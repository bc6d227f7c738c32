"""A curriculum that goes on to sequences of more than twice the length: the loss is up 20 times and more.

family: healthy
steps: 600
tempts: loss_spike, gradient_explosion, loss_divergence
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


torch.manual_seed(71)
model = RunningSum()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(600):
    length = 6 if step < 300 else 14
    x = torch.rand(32, length, 1)
    loss = F.mse_loss(model(x), x.cumsum(1).squeeze(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("last loss", loss.item())
