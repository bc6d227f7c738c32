import torch
import torch.nn as nn

class Scorer(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.proj = nn.Linear(n_in, n_out)
        self.reset()

    def reset(self):
        self.proj.weight.normal_(0, 0.02)
        self.proj.bias.zero_()

    def forward(self, x):
        return self.proj(x)

scorer = Scorer(8, 2)
print(scorer(torch.randn(3, 8)).shape)
