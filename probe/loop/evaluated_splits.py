"""The losses that one evaluation has seen, kept apart where it goes over several sets of samples.

Sets are told apart by their DataLoaders, by the calls that lead to the loss, one after the other, or by a
variable of the loop that says "train" or "val". Used by `evaluation.py`, on the training thread. Nothing is
read from a device until a mean is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from types import FrameType
from typing import Final

import torch
from torch import Tensor

from ..attach.call_wrappers import is_own_frame
from ..attach.loss_functions import SeenLoss
from ..step.log_values import deferred_float
from ..threads.frame_variables import is_library, variables_of

_FOLDED_AT: Final = 256
"""Results on a device that are kept before they are added up."""
_MOST_SPLITS: Final = 8
"""Of more it is not known what they are."""
_SITE_FRAMES: Final = 12
_NAMED_FRAMES: Final = 6
_TRAINING: Final = frozenset({"train", "training"})
_WORDS: Final = _TRAINING | {"val", "valid", "validation", "dev", "eval", "test", "testing"}
"""How scripts call the parts of their data."""
_LONGEST: Final = max(map(len, _WORDS))
Key = tuple[int, Hashable, str]
"""Number of the pass, site of the call, and the word for the samples, empty where there is none."""


class EvaluatedSplits:
    """Means of one evaluation's losses, by what was evaluated.

    Attributes:
        function: the name of the loss function; None before the first result.
    """

    def __init__(self) -> None:
        self.function: str | None = None
        self._passes = 0
        self._splits: dict[Key, _Split] = {}
        self._newest: Key | None = None
        self._mixed: set[int] = set()
        """Passes in which several calls take turns: they are parts of one loss."""

    def end_pass(self) -> None:
        """A pass over a DataLoader begins or ends: what follows is another set."""
        self._passes += 1

    def take(self, seen: SeenLoss, frame: FrameType | None) -> None:
        """Take a result of the loss function, which `frame` has called."""
        key = self._passes, _site_of(frame), "" if self._passes else _word_in(frame)
        if key != self._newest and key in self._splits:
            self._mixed.add(self._passes)
        self._newest = key
        split = self._splits.get(key)
        if split is None:
            if len(self._splits) > _MOST_SPLITS:
                return
            split = self._splits[key] = _Split()
        split.take(seen)

    @property
    def is_known_to_be_bad(self) -> bool:
        """Whether the sum of a set's losses on the host is not finite; a device is not asked."""
        return not all(math.isfinite(split.on_host) for split in self._splits.values())

    def means(self) -> list[Callable[[], float]]:
        """Return what reads the mean of each set, in their order; none where they are not known.

        What is known to be samples of the training comes last.
        """
        groups: dict[tuple[bool, int, Key | None], list[_Split]] = {}
        for key, split in self._splits.items():
            is_mixed = key[0] in self._mixed
            groups.setdefault((key[2] in _TRAINING, key[0], None if is_mixed else key), []).append(split)
        if len(self._splits) > _MOST_SPLITS:
            return []
        ordered = [groups[key] for key in sorted(groups, key=lambda key: key[0])]
        return [mean for group in ordered if (mean := _mean(group)) is not None]


class _Split:
    """Sums of losses, weighted by the size of their batches."""

    def __init__(self) -> None:
        self.weight = self.on_host = 0.0
        self.on_device: dict[tuple[float, torch.device], list[Tensor]] = {}

    def take(self, seen: SeenLoss) -> None:
        self.weight += seen.samples
        factor = 1.0 if seen.is_sum else float(seen.samples)
        result = seen.result.detach()
        if result.is_cpu:
            self.on_host += factor * result.item()
            return
        # The script may go on to add to it in place.
        waiting = self.on_device.setdefault((factor, result.device), [])
        waiting.append(result.clone())
        if len(waiting) >= _FOLDED_AT:
            waiting[:] = [_sum(waiting)]


def _mean(splits: Iterable[_Split]) -> Callable[[], float] | None:
    splits = list(splits)
    weight, on_host = sum(one.weight for one in splits), sum(one.on_host for one in splits)
    if not weight:
        return None
    with torch.no_grad():
        sums = [
            deferred_float("val_loss", factor * _sum(results))
            for one in splits
            for (factor, _), results in one.on_device.items()
        ]
    return lambda: (on_host + sum(read() for read in sums)) / weight


def _sum(results: list[Tensor]) -> Tensor:
    return torch.stack(results).float().sum()


def _site_of(frame: FrameType | None) -> Hashable:
    """What leads to a call, compared with others alone."""
    site: list[tuple[int, int]] = []
    while frame is not None and len(site) < _SITE_FRAMES:
        site.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(site)


def _word_in(frame: FrameType | None) -> str:
    """What the script's own functions call the samples, if a variable of theirs says so."""
    left = _NAMED_FRAMES
    while frame is not None and left:
        if not is_library(frame) and not is_own_frame(frame):
            left -= 1
            with variables_of(frame) as values:
                said = [value for value in list(values.values()) if type(value) is str]
            for value in said:
                if len(value) <= _LONGEST and value.lower() in _WORDS:
                    return value.lower()
        frame = frame.f_back
    return ""
