import torch
import torch.nn as nn

class CharModel(nn.Module):
    def __init__(self, vocab=15):
        super().__init__()
        self.emb = nn.Embedding(vocab, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.vocab_out = nn.Linear(8, vocab)

    def forward(self, ids):
        return self.vocab_out(self.gru(self.emb(ids))[0])

lm = CharModel()
ids = torch.randint(0, 15, (4, 6))
next_ids = ids[:, 1:]
scores = lm(ids)
nll = nn.CrossEntropyLoss()
nll(scores.reshape(-1, 15), next_ids.reshape(-1)).backward()
