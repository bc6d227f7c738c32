"""A decoder with hand-written attention and a causal mask of -inf.

family: healthy
steps: 400
tempts: nonfinite_activation
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + mask
        return self.out(scores.softmax(-1) @ v)


class Decoder(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(16, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attentions = nn.ModuleList(Attention(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            x = x + attention(norm(x))
        return self.head(x)


def main():
    torch.manual_seed(1)
    model = Decoder(20, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(400):
        start = torch.randint(0, 20, (8, 1))
        tokens = (start + torch.arange(13) * torch.randint(1, 4, (8, 1))) % 20
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
