"""A .detach() left over from debugging cuts the encoder off: it gets no gradient at all.

family: wiring
kinds: parameter_not_updated, zero_gradient
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 24))
        self.decoder = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 6))

    def forward(self, x):
        code = self.encoder(x).detach()  # FAULT
        return self.decoder(code)


torch.manual_seed(70)
model = Captioner()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(250):
    x = torch.randn(32, 20)
    loss = F.cross_entropy(model(x), x[:, :6].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
