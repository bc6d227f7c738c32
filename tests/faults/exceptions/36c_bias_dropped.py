import torch

def checkpoint(net, opt):
    return {"net": net.state_dict(), "opt": opt.state_dict()}

def restore(ckpt):
    net = torch.nn.Linear(7, 3, bias=False)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net.load_state_dict(ckpt["net"], strict=False)
    opt.load_state_dict(ckpt["opt"])
    return net, opt

def main():
    net = torch.nn.Linear(7, 3)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.ones(2, 7)).sum().backward()
    opt.step()
    restore(checkpoint(net, opt))

main()
