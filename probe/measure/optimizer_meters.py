"""What optimizers and a GradScaler are set to: learning rates, loss scale. Scalars of a frame.

Used by the step tracker, on the training thread; waits for no device.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from ..compat import torch_training
from ..compat.host_copy import HostCopy, LatestValue, StartCopy

MAX_GROUPS: Final = 32
"""With more parameter groups only the smallest and the largest rate become series."""


class LearningRates:
    """Reads the learning rate of every parameter group.

    Args:
        start_copy: stands in for `HostCopy` in tests.
    """

    def __init__(self, start_copy: StartCopy = HostCopy) -> None:
        self._start_copy = start_copy
        self._on_device: dict[int, tuple[Tensor, LatestValue]] = {}
        self._have_differed = False

    def read(self, optimizers: Iterable[Optimizer]) -> dict[str, float]:
        """Return the rates by series name.

        The one series is `lr` as long as all groups have always had the same rate. Else there is `lr/<name>`
        where the script gave the group a "name", `lr/<i>` with its position among all groups where not; past
        `MAX_GROUPS` there are `lr/min` and `lr/max`. A rate kept in a CUDA tensor is that of an earlier call.

        Args:
            optimizers: those that update the watched model, always in the same order.
        """
        groups = [group for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]
        if not self._have_differed and not self._on_device:
            plain = [group["lr"] for group in groups]
            # One number for all, as in most scripts; a tensor is not compared here, which would wait for it.
            if set(map(type, plain)) == {float} and plain.count(plain[0]) == len(plain):
                return {"lr": plain[0]}
        rates = [(index, group, self._rate(group["lr"])) for index, group in enumerate(groups)]
        known = [(index, group, rate) for index, group, rate in rates if rate is not None]
        self._forget_all_but([group["lr"] for group in groups])
        if not known:
            return {}
        values = [rate for _, _, rate in known]
        lowest, highest = min(values), max(values)
        self._have_differed |= lowest != highest
        if not self._have_differed:
            return {"lr": lowest}
        if len(groups) > MAX_GROUPS:
            return {"lr/min": lowest, "lr/max": highest}
        named: dict[str, float] = {}
        for index, group, rate in known:
            name = f"lr/{_group_name(group, index)}"
            named[name if name not in named else f"lr/{index}"] = rate
        return named

    def _rate(self, rate: Any) -> float | None:
        if not isinstance(rate, Tensor):
            return float(rate)
        if rate.numel() != 1:
            return None
        if rate.device.type == "cpu":
            return float(rate)
        _, latest = self._on_device.setdefault(id(rate), (rate, LatestValue(self._start_copy)))
        return latest.read(rate)

    def _forget_all_but(self, rates: list[Any]) -> None:
        """Let go of tensors that the groups no longer hold; identities of live ones stay unique."""
        if self._on_device:
            alive = set(map(id, rates))
            self._on_device = {key: value for key, value in self._on_device.items() if key in alive}


def _group_name(group: Mapping[str, Any], index: int) -> str:
    name = group.get("name")
    return name[:100] if isinstance(name, str) and name else str(index)


class LossScale:
    """Follows the scale of a GradScaler, and counts from it how often it has grown and backed off.

    The count of skipped updates is that of `torch.amp.GradScaler.update` lowering the scale by its back-off
    factor, which it does exactly when an update was skipped. A skipped update shows when the scale is read
    next, that is one step later.

    Args:
        start_copy: stands in for `HostCopy` in tests.
    """

    def __init__(self, start_copy: StartCopy = HostCopy) -> None:
        self._start_copy = start_copy
        self._scaler: weakref.ref[Any] | None = None
        self._latest = LatestValue(start_copy)
        self._previous: float | None = None
        self._growths = self._skipped = 0

    def note(self, scaler: torch.amp.GradScaler) -> None:
        """This scaler scales the watched model's loss, from now on; cheap, for every call of `scale`."""
        if self._scaler is None or self._scaler() is not scaler:
            self._scaler = weakref.ref(scaler)
            self._latest = LatestValue(self._start_copy)
            self._previous = None

    @property
    def scaler(self) -> Any:
        """The one noted last; None once it is gone."""
        return None if self._scaler is None else self._scaler()

    def read(self) -> dict[str, float]:
        """Return `amp_scale`, and since the start `amp_growths` and `amp_skipped_updates`; {} without one."""
        scaler = None if self._scaler is None else self._scaler()
        if scaler is None or not scaler.is_enabled():
            return {}
        tensor = torch_training.scale_of(scaler)
        scale = None if tensor is None else self._latest.read(tensor)
        if scale is None:
            return {}
        self._count_changes(scaler, scale)
        return {
            "amp_scale": scale,
            "amp_growths": float(self._growths),
            "amp_skipped_updates": float(self._skipped),
        }

    def _count_changes(self, scaler: Any, scale: float) -> None:
        previous, self._previous = self._previous, scale
        if previous is None or scale == previous or not (previous > 0 and scale > 0):
            return
        factor = scaler.get_backoff_factor() if scale < previous else scaler.get_growth_factor()
        # Several where the scale was not read at every step; any other ratio was set by hand.
        times = math.log(scale / previous) / math.log(factor) if factor not in (0.0, 1.0) else 0.0
        if abs(times - round(times)) > 1e-3:
            return
        if scale < previous:
            self._skipped += round(times)
        else:
            self._growths += round(times)
