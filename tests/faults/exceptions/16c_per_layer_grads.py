import torch

def grad_norms(net):
    grads = [p.grad for name, p in net.named_parameters() if name.endswith("weight")]
    return torch.stack(grads).flatten(1).norm(dim=1)

def train():
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        opt.zero_grad()
        net(torch.randn(8, 3)).pow(2).mean().backward()
        print(step, grad_norms(net))
        opt.step()

train()
