import torch
from torch import nn

net = nn.Linear(5, 1)
criterion = nn.MSELoss(reduction="none")
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
xs = torch.randn(12, 5)
ys = xs.mean(dim=1, keepdim=True)

for epoch in range(4):
    prediction = net(xs)
    loss = criterion(prediction, ys)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
