"""Activation gradients against autograd's own, and hooks that must survive what scripts do to outputs."""

from collections.abc import Callable

import pytest
import torch
from observed_steps import Watched, seeded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Keeping(nn.Module):
    """Keeps every child's output, so that autograd can be asked for its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(4, 8), nn.ReLU()
        self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 3)
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first", "act", "second", "third"):
            x = self.kept[name] = getattr(self, name)(x)
        # A residual use: the gradient is the total of both paths.
        return x + self.kept["second"][:, :3]


def test_gradients_match_autograds_own() -> None:
    model = seeded(Keeping)
    watched = Watched(model)
    loss = watched.forward(torch.randn(6, 4)).square().sum()
    expected = torch.autograd.grad(loss, list(model.kept.values()), retain_graph=True)
    watched.observer.collect()
    torch.manual_seed(0)
    model = Keeping()
    watched = Watched(model)
    loss = watched.forward(torch.randn(6, 4)).square().sum()
    loss.backward()
    found = watched.collect()
    for name, gradient in zip(model.kept, expected, strict=True):
        wide = gradient.double()
        assert found.value("activation_gradient_norm", name) == pytest.approx(float(wide.norm()), rel=1e-6)
        assert found.value("activation_gradient_max_abs", name) == pytest.approx(float(wide.abs().max()))
        assert found.value("activation_gradient_mean", name) == pytest.approx(float(wide.mean()), rel=1e-5)
        std = float(wide.std(correction=0))
        assert found.value("activation_gradient_std", name) == pytest.approx(std, rel=1e-5)


def test_gradients_of_a_module_called_twice_are_taken_together() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.kept: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.kept = [self.inner(x)]
            self.kept.append(self.inner(self.kept[0]))
            return self.kept[-1]

    model = seeded(Twice)
    watched = Watched(model)
    loss = watched.forward(torch.randn(2, 3)).square().sum()
    gradients = torch.autograd.grad(loss, model.kept, retain_graph=True)
    expected = float(torch.stack(gradients).double().norm())
    # The question above has run the hooks as well; it stands for a backward of its own.
    first = watched.collect().value("activation_gradient_norm", "inner")
    assert first == pytest.approx(expected, rel=1e-6)


def test_gradient_with_inf_is_counted() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    found = Watched(model).step(torch.ones(1, 2), loss=lambda y: (y * torch.tensor([torch.inf, 1.0])).sum())
    assert found.value("activation_gradient_inf_count", "0") == 1


def test_output_without_gradient_has_none() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.pupil = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.teacher(x)
            return self.pupil(x) - target

    found = Watched(Frozen()).step(torch.ones(1, 2))
    assert found.value("activation_rms", "teacher") is not None
    assert found.value("activation_gradient_norm", "teacher") is None
    assert found.value("activation_gradient_norm", "pupil") is not None


class Weights(nn.Module):
    """Returns a leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight


TRICKS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "in place": lambda m, x: m(x).mul_(2).add_(1),
    "in-place relu": lambda m, x: m(x).relu_(),
    "view changed": lambda m, x: m(x).view(-1)[:2].add_(1),
    "base changed": lambda m, x: torch.stack([m(x)[0], m(x).add_(3)[1]]),
    "detached": lambda m, x: m(x) + m(x).detach(),
    "checkpoint": lambda m, x: checkpoint(m, x, use_reentrant=False),
    "reentrant": lambda m, x: checkpoint(m, x.requires_grad_(), use_reentrant=True),
    "data": lambda m, x: _set_data(m(x)),
}


def _set_data(output: Tensor) -> Tensor:
    output.data = output.data * 2
    return output


@pytest.mark.parametrize("trick", TRICKS)
def test_hooks_survive_what_scripts_do_to_outputs(trick: str) -> None:
    class Tricky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return TRICKS[trick](self.inner, x)

    gradients = []
    for is_watched in (False, True):
        model = seeded(Tricky)
        if is_watched:
            Watched(model).step(torch.ones(2, 3))
        else:
            model(torch.ones(2, 3)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_leaf_that_a_module_returns_gets_no_hook() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Weights())
    found = Watched(model).step(torch.ones(1, 2))
    assert found.value("activation_gradient_norm", "1") is None
    assert found.value("activation_rms", "1") == 1
    assert not model[1].weight._backward_hooks


def test_graph_that_outlives_its_step_is_harmless() -> None:
    watched = Watched(seeded(Keeping))
    loss = watched.forward(torch.randn(2, 4)).sum()
    loss.backward(retain_graph=True)
    step = watched.observer._step
    first = watched.collect()
    second = watched.step(torch.randn(2, 4))
    assert step is not None
    measured = len(step.gradients)
    loss.backward()
    assert len(step.gradients) == measured > 0
    assert watched.guard.failures == 0
    assert first.value("calls", "first") == second.value("calls", "first") == 1


def test_double_backward_gives_the_same_as_without() -> None:
    results = []
    for is_watched in (False, True):
        model, x = seeded(Keeping), torch.ones(2, 4, requires_grad=True)
        output = Watched(model).forward(x) if is_watched else model(x)
        (penalty,) = torch.autograd.grad(output.pow(3).sum(), x, create_graph=True)
        penalty.square().sum().backward()
        results.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
