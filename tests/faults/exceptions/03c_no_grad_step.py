import torch
import torch.nn.functional as F

def compute_loss(net, images, labels):
    with torch.no_grad():
        logits = net(images.flatten(1))
    return F.cross_entropy(logits, labels)

def train():
    net = torch.nn.Linear(64, 10)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for i in range(3):
        images = torch.rand(4, 8, 8)
        labels = torch.randint(0, 10, (4,))
        loss = compute_loss(net, images, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()

train()
