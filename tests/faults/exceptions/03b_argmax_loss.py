import torch
import torch.nn as nn

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.body(inputs)

clf = Classifier()
adam = torch.optim.Adam(clf.parameters())
inputs, labels = torch.randn(20, 6), torch.randint(0, 3, (20,))
for it in range(2):
    guesses = clf(inputs).argmax(dim=1)
    wrong = (guesses != labels).float().mean()
    adam.zero_grad()
    wrong.backward()
    adam.step()
