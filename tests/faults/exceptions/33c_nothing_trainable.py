import torch

def freeze_backbone(net):
    for name, p in net.named_parameters():
        p.requires_grad = name.startswith("head.")

def fine_tune():
    net = torch.nn.ModuleDict({
        "features": torch.nn.Linear(6, 12),
        "classifier": torch.nn.Linear(12, 3),
    })
    freeze_backbone(net)
    trainable = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=1e-3)
    logits = net["classifier"](torch.relu(net["features"](torch.randn(4, 6))))
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0])).backward()
    opt.step()

fine_tune()
