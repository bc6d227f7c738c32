"""Hand-written attention masks padding with -inf; one sequence of the data set has length 0.

family: forward
kinds: nonfinite_loss
step: 70
module: attention
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(padding[:, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)  # FAULT
        return self.out(weights @ v)


class Classifier(nn.Module):
    def __init__(self, vocabulary, width, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.attention = SelfAttention(width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, lengths):
        padding = torch.arange(tokens.shape[1]) >= lengths[:, None]
        x = self.embedding(tokens)
        x = x + self.attention(x, padding)
        return self.head(x.mean(dim=1))


def main():
    torch.manual_seed(3)
    count, length, batch = 120 * 16, 10, 16
    tokens = torch.randint(0, 40, (count, length))
    lengths = torch.randint(1, length + 1, (count,))
    lengths[70 * batch + 2] = 0
    labels = tokens[:, 0] % 4
    model = Classifier(40, 32, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for start in range(0, count, batch):
        rows = slice(start, start + batch)
        loss = F.cross_entropy(model(tokens[rows], lengths[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
