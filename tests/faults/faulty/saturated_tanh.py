"""Recurrent weights with a standard deviation of 3: tanh units sit at plus or minus 1.

family: initialisation
kinds: saturated_activation, poor_initialization, gradient_vanishing
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.second = nn.Linear(64, 64)
        self.act_first, self.act_second = nn.Tanh(), nn.Tanh()
        self.head = nn.Linear(64, 4)
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=3.0)  # FAULT

    def forward(self, x):
        return self.head(self.act_second(self.second(self.act_first(self.first(x)))))


torch.manual_seed(58)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(250):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
