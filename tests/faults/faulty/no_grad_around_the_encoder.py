"""The encoder runs under torch.no_grad(), copied from the evaluation code, though it is to be trained.

family: wiring
kinds: parameter_not_updated, zero_gradient
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(8, 24, batch_first=True)
        self.head = nn.Linear(24, 4)

    def embed(self, x):
        with torch.no_grad():  # FAULT
            return self.encoder(x)[1][0]

    def forward(self, x):
        return self.head(self.embed(x))


torch.manual_seed(71)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
for _ in range(220):
    x = torch.randn(16, 7, 8)
    loss = F.cross_entropy(model(x), x[:, -1, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
