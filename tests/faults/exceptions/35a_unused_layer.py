import torch
import torch.nn as nn

class Branchy(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Linear(5, 5)
        self.aux = nn.Linear(5, 2)

    def forward(self, x):
        return torch.tanh(self.main(x))

branchy = Branchy()
opt = torch.optim.SGD(branchy.parameters(), lr=0.1)
branchy(torch.randn(4, 5)).sum().backward()
total = sum(p.grad.norm() ** 2 for p in branchy.parameters())
print("grad norm", total.sqrt())
opt.step()
