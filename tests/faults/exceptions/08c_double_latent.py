import torch
import torch.nn as nn

class Decoder(nn.Module):
    def __init__(self, n_items, dim):
        super().__init__()
        self.latent = nn.Parameter(torch.randn(n_items, dim)).double()
        self.out = nn.Linear(dim, 5).double()

    def forward(self, idx):
        return self.out(self.latent[idx])

decoder = Decoder(10, 3)
groups = [{"params": decoder.out.parameters()}, {"params": [decoder.latent], "lr": 0.1}]
opt = torch.optim.Adam(groups, lr=1e-3)
decoder(torch.arange(4)).sum().backward()
opt.step()
