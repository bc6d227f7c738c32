"""A small language model whose RMSNorm has no epsilon; one document of the corpus is empty, padding only.

family: forward
kinds: nonfinite_loss
step: 80
module: blocks.0.norm
"""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH, BATCH = 50, 32, 12, 16


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * self.weight  # FAULT


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = RMSNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def load_corpus(documents):
    corpus = torch.randint(1, VOCABULARY, (documents, LENGTH))
    corpus[80 * BATCH + 5] = 0
    return corpus


torch.manual_seed(0)
corpus = load_corpus(120 * BATCH)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for tokens in corpus.split(BATCH):
    logits = model(tokens)
    loss = F.cross_entropy(logits, tokens[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
