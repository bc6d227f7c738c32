import torch
import torch.nn as nn

class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(input_size=8, hidden_size=16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, history):
        states, _ = self.lstm(history)
        return self.out(states[:, -1])

model = Forecaster()
history = torch.randn(4, 24, 10)
forecast = model(history)
nn.functional.mse_loss(forecast, torch.zeros(4, 1)).backward()
