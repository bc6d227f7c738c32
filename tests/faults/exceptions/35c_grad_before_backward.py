import torch

def clip(net, limit):
    for p in net.parameters():
        p.grad.clamp_(-limit, limit)

def train(steps):
    net = torch.nn.GRUCell(3, 6)
    opt = torch.optim.RMSprop(net.parameters())
    for _ in range(steps):
        h = net(torch.randn(2, 3))
        loss = h.abs().mean()
        opt.zero_grad()
        clip(net, 0.5)
        loss.backward()
        opt.step()

train(2)
