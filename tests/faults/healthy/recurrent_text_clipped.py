"""A character LSTM whose gradients are clipped at nearly every step; the state is detached between chunks.

family: healthy
steps: 300
tempts: gradient_explosion, memory_leak
"""

import torch
from torch import nn
from torch.nn import functional as F

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps on while the fox runs far away. " * 60


class CharLSTM(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.embedding = nn.Embedding(characters, 24)
        self.lstm = nn.LSTM(24, 48, batch_first=True)
        self.head = nn.Linear(48, characters)

    def forward(self, tokens, state):
        out, state = self.lstm(self.embedding(tokens), state)
        return self.head(out), state


torch.manual_seed(38)
alphabet = sorted(set(TEXT))
data = torch.tensor([alphabet.index(character) for character in TEXT])
rows = data[: len(data) // 8 * 8].view(8, -1)
model = CharLSTM(len(alphabet))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
state = None
for step in range(300):
    start = step * 12 % (rows.shape[1] - 13)
    tokens, following = rows[:, start : start + 12], rows[:, start + 1 : start + 13]
    logits, state = model(tokens, state)
    state = tuple(part.detach() for part in state)
    loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
print("last loss", loss.item())
