import torch
from torch import nn

stack = nn.Sequential(
    nn.Conv2d(1, 4, 3),
    nn.LayerNorm([4, 28, 28]),
    nn.ReLU(),
    nn.Flatten(),
)
optimizer = torch.optim.Adam(stack.parameters())

def step(images):
    optimizer.zero_grad()
    activations = stack(images)
    activations.square().mean().backward()
    optimizer.step()

step(torch.rand(5, 1, 28, 28))
