import torch

torch.manual_seed(0)
embed = torch.nn.Linear(12, 16)
cls = torch.nn.Parameter(torch.zeros(1, 1, 16))
classify = torch.nn.Linear(16, 3)
opt = torch.optim.AdamW([cls, *embed.parameters(), *classify.parameters()])

patches = torch.randn(6, 9, 12)
tokens = embed(patches)
tokens = torch.cat([cls, tokens], dim=1)
loss = classify(tokens[:, 0]).logsumexp(dim=1).mean()
loss.backward()
opt.step()
