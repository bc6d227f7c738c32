import torch
import torch.nn as nn

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 4)

    def forward(self, x):
        return torch.softmax(self.layer(x), dim=-1)

    def predict(self, x):
        probs = self.forward(x)
        return probs.numpy().argmax(axis=1)

tagger = Tagger()
tagger.eval()
print(tagger.predict(torch.randn(5, 7)))
