import numpy as np
import torch

def fit(observed, rank):
    mixing = torch.rand(observed.shape[1], rank, requires_grad=True)
    opt = torch.optim.Adam([mixing], lr=0.05)
    data = torch.from_numpy(observed)
    for _ in range(10):
        opt.zero_grad()
        err = (data - data @ mixing @ mixing.T).pow(2).sum()
        err.backward()
        opt.step()
    return np.asarray(mixing)

observed = np.random.rand(30, 6).astype(np.float32)
print(fit(observed, 2).shape)
