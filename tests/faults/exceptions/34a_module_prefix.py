import io
import torch
from torch import nn

trained = nn.DataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
buffer = io.BytesIO()
torch.save(trained.state_dict(), buffer)

buffer.seek(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
model.load_state_dict(torch.load(buffer))
model.eval()
print(model(torch.zeros(1, 4)))
