import torch
from torch import nn

model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
params = model.parameters()
n_params = sum(p.numel() for p in params)
print("training", n_params, "parameters")

optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9)
for step in range(3):
    wave = torch.randn(5, 1, 10)
    loss = nn.functional.cross_entropy(model(wave), torch.zeros(5, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
