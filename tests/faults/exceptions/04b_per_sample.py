import torch

class Autoencoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = torch.nn.Linear(20, 4)
        self.dec = torch.nn.Linear(4, 20)

    def forward(self, x):
        return self.dec(torch.relu(self.enc(x)))

ae = Autoencoder()
data = torch.rand(9, 20)
recon = ae(data)
per_sample = ((recon - data) ** 2).sum(dim=1)
total = per_sample + 0.001 * ae.enc.weight.norm()
total.backward()
