"""CTC loss, whose internals use -inf, with some alignments that are impossible (zero_infinity).

family: healthy
steps: 250
tempts: nonfinite_loss, loss_plateau
"""

import torch
from torch import nn
from torch.nn import functional as F


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 32)
        self.head = nn.Linear(32, 6)

    def forward(self, frames):
        return F.log_softmax(self.head(self.rnn(frames)[0]), dim=-1)


torch.manual_seed(33)
model = Listener()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(250):
    words = torch.randint(1, 6, (8, 5))
    frames = F.one_hot(words.repeat_interleave(3, dim=1), 6).float().transpose(0, 1)
    frames = frames + 0.3 * torch.randn_like(frames)
    heard = torch.randint(5, 16, (8,))
    loss = F.ctc_loss(model(frames), words, heard, torch.full((8,), 5), zero_infinity=True)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
print("last loss", loss.item())
