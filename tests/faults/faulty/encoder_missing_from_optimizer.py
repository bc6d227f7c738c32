"""Parameter groups name the head and the decoder; the encoder was forgotten.

family: optimisation
kinds: parameter_not_updated
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.decoder(self.encoder(x)))


torch.manual_seed(43)
model = Translator()
groups = [  # FAULT
    {"params": model.decoder.parameters(), "lr": 1e-3},
    {"params": model.head.parameters(), "lr": 3e-3},
]
optimizer = torch.optim.AdamW(groups)
for _ in range(250):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), x[:, :5].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
