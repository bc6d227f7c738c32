import torch
from torch import nn

def make(depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(8, 8), nn.ReLU()]
    return nn.Sequential(*layers)

first_run = make(2)
opt = torch.optim.Adam(first_run.parameters())
first_run(torch.randn(3, 8)).sum().backward()
opt.step()
saved = opt.state_dict()

second_run = make(3)
new_opt = torch.optim.Adam(second_run.parameters())
new_opt.load_state_dict(saved)
