"""Fine-tunes on answers only; one conversation is cut before its answer, so every target is ignored.

family: forward
kinds: nonfinite_loss
step: 85
module: outside
"""

import torch
from torch import nn
from torch.nn import functional as F

IGNORE = -100


class Tagger(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


def make_batch(step, vocabulary, length):
    tokens = torch.randint(0, vocabulary, (2, length))
    labels = tokens.roll(-1, dims=1).clone()
    prompt = length // 2 if step != 85 else length + 4
    labels[:, :prompt] = IGNORE
    return tokens, labels


torch.manual_seed(8)
model = Tagger(30, 32)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(130):
    tokens, labels = make_batch(step, 30, 12)
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)  # FAULT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
