import torch
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32
dataset = TensorDataset(torch.randn(84, 3, 2), torch.randn(84))
loader = DataLoader(dataset, batch_size=BATCH)
net = torch.nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)

for points, height in loader:
    guess = net(points.reshape(BATCH, 6)).squeeze(1)
    loss = (guess - height).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
