import torch
import torch.nn as nn
import torch.nn.functional as F

class GenreModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(40, 10)
        self.genre = nn.Linear(10, 5)

    def forward(self, words):
        return self.genre(self.bag(words))

model = GenreModel()
words = torch.randint(0, 40, (12, 7))
genres = torch.randint(0, 5, (12,))
loss = F.binary_cross_entropy_with_logits(model(words), genres.float())
loss.backward()
