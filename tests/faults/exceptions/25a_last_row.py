import torch

readings = torch.randn(5, 100)
gain = torch.ones(5, requires_grad=True)
optimizer = torch.optim.SGD([gain], lr=0.05)
n_sensors = readings.shape[0]

loss = torch.tensor(0.0)
for sensor in range(1, n_sensors + 1):
    scaled = gain[sensor] * readings[sensor]
    loss = loss + scaled.var()
optimizer.zero_grad()
loss.backward()
optimizer.step()
