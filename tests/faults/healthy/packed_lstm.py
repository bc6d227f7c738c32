"""An LSTM over packed sequences of very different lengths.

family: healthy
steps: 250
tempts: gradient_vanishing, loss_spike
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 2)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        return self.head(torch.cat([hidden[0], hidden[1]], -1))


torch.manual_seed(15)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(250):
    lengths = torch.randint(1, 25, (16,))
    words = [torch.randint(1, 12, (int(length),)) for length in lengths]
    label = torch.tensor([int((word == 3).any()) for word in words])
    loss = F.cross_entropy(model(pad_sequence(words, batch_first=True), lengths), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
