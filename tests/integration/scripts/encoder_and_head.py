"""An encoder and a head in no common module, with one optimizer; prints the loss and norm of every step."""

import torch
from torch import nn

torch.manual_seed(0)
encoder, head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)
parameters = [*encoder.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.01)
inputs, targets = torch.randn(16, 5, 4), torch.randint(3, (16,))
for step in range(12):
    hidden, _ = encoder(inputs)
    loss = nn.functional.cross_entropy(head(hidden[:, -1]), targets)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
    print(step, loss.item(), norm.item())
    optimizer.step()
