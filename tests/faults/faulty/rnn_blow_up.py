"""A ReLU recurrence with a spectral radius above 1: on a long sequence the state overflows float32.

family: forward
kinds: nonfinite_loss
step: 66
module: cell
"""

import torch
from torch import nn
from torch.nn import functional as F


class ReluCell(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.inputs = nn.Linear(inputs, width)
        self.recurrent = nn.Parameter(1.6 * torch.eye(width) + 0.01 * torch.randn(width, width))

    def forward(self, x, state):
        return F.relu(self.inputs(x) + state @ self.recurrent)  # FAULT


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = ReluCell(3, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, sequence):
        state = torch.zeros(sequence.shape[0], 16)
        for x in sequence.unbind(1):
            state = self.cell(x, state)
        return self.head(state).squeeze(-1)


torch.manual_seed(20)
model = Counter()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(100):
    length = 4 if step != 66 else 260
    sequence = torch.rand(8, length, 3)
    loss = F.smooth_l1_loss(model(sequence), sequence.sum((1, 2)))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("last loss", loss.item())
