"""A loop whose model is called under `torch.no_grad`, or one that is meant to be; prints the losses."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
encoder, head = nn.Linear(4, 8), nn.Linear(8, 1)
is_meant = sys.argv[1] == "meant"
trained = head if is_meant else encoder
optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    with torch.no_grad():
        features = encoder(torch.randn(16, 4))
    loss = (head(features) if is_meant else features).square().mean()
    if not is_meant:
        loss.requires_grad_()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
