import torch
import torch.nn.functional as F

def load_mask(h, w):
    mask = torch.randint(0, 6, (h, w))
    mask[0, :] = 255  # border of the object
    return mask

def train_segmentation():
    fcn = torch.nn.Conv2d(3, 6, 3, padding=1)
    opt = torch.optim.Adam(fcn.parameters())
    for _ in range(2):
        image = torch.rand(1, 3, 10, 10)
        annotation = load_mask(10, 10).unsqueeze(0)
        loss = F.cross_entropy(fcn(image), annotation)
        opt.zero_grad()
        loss.backward()
        opt.step()

train_segmentation()
