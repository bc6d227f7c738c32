import torch
from torch import nn

model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 4))
for parameter in model.parameters():
    parameter.requires_grad = False

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
x = torch.randn(8, 10)
y = torch.randint(0, 4, (8,))
loss = criterion(model(x), y)
loss.backward()
optimizer.step()
