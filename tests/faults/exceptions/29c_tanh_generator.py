import torch
import torch.nn.functional as F

def make_autoencoder():
    encoder = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.ReLU())
    decoder = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh())
    return encoder, decoder

def train(images):
    encoder, decoder = make_autoencoder()
    opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for _ in range(3):
        restored = decoder(encoder(images))
        loss = F.binary_cross_entropy(restored, images)
        opt.zero_grad()
        loss.backward()
        opt.step()

torch.manual_seed(3)
train(torch.rand(20, 16))
