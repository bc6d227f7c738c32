"""Copies of tensors in containers that can be put back exactly: same objects, same bits.

Used before an update that is left out, and for the last good state of a rollback.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...compat import torch_memory, torch_modes

Restore = Callable[[], Any]
"""Puts a value back and returns it."""


def keep(value: Any, *, on_host: bool = False) -> Restore:
    """Copy the tensors in dicts, lists and tuples, and remember everything else as it is.

    Args:
        value: what is to be put back later.
        on_host: copy to the CPU, which waits for the device.

    Returns:
        A function that gives every container and tensor its content back, and returns `value` itself.
    """
    if isinstance(value, Tensor):
        return _keep_tensor(value, on_host=on_host)
    if isinstance(value, MutableMapping):
        return _keep_mapping(value, on_host=on_host)
    if isinstance(value, list):
        return _keep_list(value, on_host=on_host)
    if type(value) is tuple:
        parts = [keep(part, on_host=on_host) for part in value]
        return lambda: tuple([part() for part in parts])
    return lambda: value


def _copy_of(tensor: Tensor, *, on_host: bool) -> Tensor:
    source = tensor.detach()
    return source.to("cpu", copy=True) if on_host else source.clone()


def _keep_tensor(tensor: Tensor, *, on_host: bool) -> Restore:
    copied = _copy_of(tensor, on_host=on_host)

    def restore() -> Tensor:
        tensor.detach().copy_(copied)
        return tensor

    return restore


def _keep_mapping(value: MutableMapping[Any, Any], *, on_host: bool) -> Restore:
    items = {key: keep(item, on_host=on_host) for key, item in value.items()}

    def restore() -> MutableMapping[Any, Any]:
        restored = {key: item() for key, item in items.items()}
        value.clear()
        value.update(restored)
        return value

    return restore


def _keep_list(value: list[Any], *, on_host: bool) -> Restore:
    items = [keep(item, on_host=on_host) for item in value]

    def restore() -> list[Any]:
        value[:] = [item() for item in items]
        return value

    return restore


def keep_optimizer(optimizer: Optimizer) -> Restore:
    """Keep all that a `step` may change: parameters, state, groups, and plain attributes of the optimizer."""
    plain = {
        name: keep(value)
        for name, value in vars(optimizer).items()
        if value is None or isinstance(value, bool | int | float | str | Tensor)
    }
    parameters = [keep(p) for group in optimizer.param_groups for p in group["params"]]
    groups = [keep({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]
    state = keep(optimizer.state)

    def restore() -> None:
        for part in parameters:
            part()
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values())
        state()
        for name, value in plain.items():
            setattr(optimizer, name, value())

    return restore


@dataclass(slots=True)
class GoodState:
    """Parameters, buffers, optimizer states and, where asked for, random generators as they were once."""

    step: int
    tensors: dict[str, Tensor]
    states: dict[int, Restore]
    """By the identity of an optimizer, which its function holds."""
    generators: list[Restore] = field(default_factory=list)

    def restore(self, model: nn.Module) -> None:
        """Put everything back.

        Raises:
            ValueError: the model has tensors of other names or shapes by now; nothing was changed.
        """
        now = _named_tensors(model)
        if {name: t.shape for name, t in now.items()} != {name: t.shape for name, t in self.tensors.items()}:
            raise ValueError("the model's parameters or buffers have other names or shapes than then")
        for name, tensor in now.items():
            tensor.detach().copy_(self.tensors[name])
        for restore in (*self.states.values(), *self.generators):
            restore()

    def add(self, optimizer: Optimizer, *, on_host: bool) -> None:
        """Copy the state of an optimizer that makes its first update since, if it is such a one."""
        if id(optimizer) not in self.states:
            with torch_modes.own_operations():
                self.states[id(optimizer)] = _keep_state_of(optimizer, on_host=on_host)


def keep_good_state(
    model: nn.Module,
    optimizers: list[Optimizer],
    step: int,
    *,
    on_host: bool,
    with_generators: bool,
) -> GoodState:
    """Copy what a rollback needs; learning rates are not part of it, they are the scheduler's."""
    return GoodState(
        step=step,
        tensors={name: _copy_of(t, on_host=on_host) for name, t in _named_tensors(model).items()},
        states={id(optimizer): _keep_state_of(optimizer, on_host=on_host) for optimizer in optimizers},
        generators=_keep_generators() if with_generators else [],
    )


def _keep_state_of(optimizer: Optimizer, *, on_host: bool) -> Restore:
    state = keep(optimizer.state, on_host=on_host)

    def restore() -> None:
        restored = state()
        # `load_state_dict` puts another mapping there.
        if optimizer.state is not restored:
            optimizer.state = restored

    return restore


def _named_tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


def _keep_generators() -> list[Restore]:
    cpu, python = torch.get_rng_state(), random.getstate()
    kept: list[Restore] = [lambda: torch.set_rng_state(cpu), lambda: random.setstate(python)]
    if torch_memory.cuda_is_initialised():
        cuda = torch.cuda.get_rng_state_all()
        kept.append(lambda: torch.cuda.set_rng_state_all(cuda))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state()
        kept.append(lambda: numpy.random.set_state(state))
    return kept


def renormalised_weights(modules: Iterable[object]) -> set[int]:
    """Identities of weights that the forward of an embedding writes to (`max_norm`), which is no update."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return {id(each.weight) for each in modules if isinstance(each, kinds) and each.max_norm is not None}


def versions(parameters: Iterable[Tensor]) -> Mapping[int, tuple[int | None, int]]:
    """Return what changes when a parameter is written to: in-place version and address, by identity."""
    return {id(p): (torch_memory.version_of(p), p.data_ptr()) for p in parameters}
