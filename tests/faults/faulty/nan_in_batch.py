"""A missing value of a table reaches the network as NaN.

family: data
kinds: nonfinite_input, nonfinite_loss
step: 83
module: "" | outside
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def read_table(rows):
    generator = np.random.default_rng(36)
    table = generator.normal(size=(rows, 9)).astype(np.float32)
    table[83 * 20 + 14, 5] = np.nan  # FAULT
    return torch.from_numpy(table)


torch.manual_seed(36)
table = read_table(140 * 20)
price = table.nan_to_num().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(9, 40), nn.ReLU(), nn.Linear(40, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in zip(table.split(20), price.split(20), strict=True):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)  # ORIGIN
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
