import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
X, y = torch.randn(30, 4), torch.randint(0, 2, (30,))
for epoch in range(2):
    loss = nn.functional.cross_entropy(model(X), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

customer = torch.tensor([[0.2, 1.5, -0.3, 0.0]])
with torch.no_grad():
    print("class:", model(customer).argmax(1).item())
