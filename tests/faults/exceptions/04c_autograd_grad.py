import torch

def forces(positions):
    positions = positions.clone().requires_grad_(True)
    dists = (positions[:, None] - positions[None]).pow(2).sum(-1) + 0.1
    energy = (1.0 / dists).sum(dim=1)
    return -torch.autograd.grad(energy, positions)[0]

def simulate(n_steps):
    atoms = torch.rand(6, 3)
    for _ in range(n_steps):
        atoms = atoms + 0.01 * forces(atoms)
    return atoms

print(simulate(10).mean())
