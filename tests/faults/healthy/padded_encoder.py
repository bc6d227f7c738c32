"""torch's transformer encoder with dropout and a padding mask; top-k filtering with -inf in the evaluation.

family: healthy
steps: 250
tempts: nonfinite_activation
"""

import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 30)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0))


def batch():
    tokens = torch.randint(1, 30, (8, 10))
    lengths = torch.randint(2, 11, (8, 1))
    return tokens * (torch.arange(10) < lengths)


torch.manual_seed(2)
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(250):
    model.train()
    tokens = batch()
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            logits = model(batch())
            kept = logits.masked_fill(logits < logits.topk(5, -1).values[..., -1:], float("-inf"))
            print(
                step, loss.item(), torch.multinomial(kept.softmax(-1).flatten(0, 1), 1).float().mean().item()
            )
