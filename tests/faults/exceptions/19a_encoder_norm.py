import torch
import torch.nn as nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 2)

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)).mean(1))

encoder = Encoder()
ids = torch.randint(0, 100, (8, 12))
loss = nn.functional.cross_entropy(encoder(ids), torch.randint(0, 2, (8,)))
loss.backward()
