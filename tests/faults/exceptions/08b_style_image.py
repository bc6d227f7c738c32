import torch
import torch.nn.functional as F

def stylize(photo, steps=3):
    noise = torch.randn_like(photo).requires_grad_()
    canvas = torch.clamp(photo + 0.1 * noise, 0, 1)
    optimizer = torch.optim.Adam([canvas], lr=0.02)
    for i in range(steps):
        optimizer.zero_grad()
        smooth = F.avg_pool2d(canvas, 3, stride=1, padding=1)
        loss = F.mse_loss(smooth, photo)
        loss.backward()
        optimizer.step()
    return canvas

stylize(torch.rand(1, 3, 16, 16))
