import torch

def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    context = torch.softmax(scores, dim=-1) @ v
    context = context.transpose(1, 2)
    return context.view(context.shape[0], -1, 24)

qkv = torch.nn.Linear(24, 72)
sequence = torch.randn(2, 10, 24)
q, k, v = [part.reshape(2, 10, 4, 6).transpose(1, 2) for part in qkv(sequence).chunk(3, dim=-1)]
loss = attend(q, k, v).square().mean()
loss.backward()
