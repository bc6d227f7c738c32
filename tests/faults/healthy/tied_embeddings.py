"""A language model with tied input and output embeddings, warm-up and cosine decay to zero.

family: healthy
steps: 500
tempts: update_ratio_low, parameter_not_updated, loss_plateau
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class TiedModel(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.mix(self.embedding(tokens).flatten(1)))


def factor(step):
    return min(step / 50, 0.5 * (1 + math.cos(math.pi * step / 500)))


torch.manual_seed(43)
model = TiedModel(40, 24)
nn.init.normal_(model.embedding.weight, std=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for _ in range(500):
    tokens = torch.randint(0, 40, (32, 2))
    loss = F.cross_entropy(model(tokens), (tokens[:, 0] + 3) % 40)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print("last loss", loss.item())
