import torch
import torch.nn as nn

class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(10, 6)

    def forward(self, words):
        hidden = torch.tanh(self.lin(words))
        return hidden.mean(dim=2)

pooler = Pooler()
sgd = torch.optim.SGD(pooler.parameters(), lr=0.1)
loss = pooler(torch.randn(4, 10)).pow(2).sum()
loss.backward()
sgd.step()
