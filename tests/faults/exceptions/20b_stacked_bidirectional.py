import torch
from torch import nn

class Stacked(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, 6)
        self.first = nn.GRU(6, 12, bidirectional=True)
        self.second = nn.GRU(12, 5)

    def forward(self, ids):
        seq, _ = self.first(self.emb(ids))
        seq, _ = self.second(seq)
        return seq[-1]

tagger = Stacked(50)
sgd = torch.optim.SGD(tagger.parameters(), lr=0.1)
sgd.zero_grad()
tagger(torch.randint(0, 50, (9, 3))).sum().backward()
sgd.step()
