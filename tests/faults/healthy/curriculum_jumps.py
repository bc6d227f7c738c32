"""A curriculum: every 150 steps the sums get longer, and loss and gradients jump.

family: healthy
steps: 600
tempts: loss_spike, loss_divergence, gradient_explosion
"""

import torch
from torch import nn
from torch.nn import functional as F


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[1][0]).squeeze(-1)


torch.manual_seed(12)
model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(600):
    length = 3 + 3 * (step // 150)
    x = torch.rand(32, length, 1)
    loss = F.mse_loss(model(x), x.sum((1, 2)))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("last loss", loss.item())
