import torch

def epoch_loss(net, chunks):
    losses = []
    for chunk in chunks:
        losses.append((net(chunk) - chunk.flip(1)).abs().mean())
    return torch.mean(losses)

def train():
    net = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        opt.zero_grad()
        loss = epoch_loss(net, torch.randn(20, 4).split(5))
        loss.backward()
        opt.step()

train()
