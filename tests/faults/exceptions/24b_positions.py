import torch
import torch.nn as nn

class TinyTransformer(nn.Module):
    def __init__(self, vocab, max_len):
        super().__init__()
        self.tok = nn.Embedding(vocab, 8)
        self.pos = nn.Embedding(max_len, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids):
        steps = torch.arange(ids.size(1))
        return self.layer(self.tok(ids) + self.pos(steps))

model = TinyTransformer(vocab=100, max_len=16)
prompt = torch.randint(0, 100, (2, 20))
model(prompt).mean().backward()
