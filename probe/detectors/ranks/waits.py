"""Says which rank waits in which collective, and whether they differ. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ...wire.collective_waits import CollectiveWait
from .rank_texts import name_ranks

_DIFFERENT: Final = "the ranks do not call the same collectives in the same order"
_MOST_SHOWN: Final = 4
ADVICE: Final = (
    "Every rank has to call the same collectives in the same order, with tensors of the same shape and type: "
    "look for a branch, an early `continue`, an exception or a shorter loop that only some ranks take.",
    "Batches of different sizes: use `DistributedSampler` with `drop_last=True`, or `join()` of "
    "DistributedDataParallel for uneven inputs.",
)


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank does while others wait."""

    rank: int
    wait: CollectiveWait | None = None
    otherwise: str = ""
    """A verb and more where it waits in no collective: "has ended after step 41"."""


def compare_waits(states: Sequence[RankState], world_size: int) -> str | None:
    """Return what each rank waits in, and how they differ; None where one rank alone is known.

    The first letter is small, and no full stop at the end.

    Args:
        states: one of a rank, of those ranks that are known.
        world_size: how many ranks there are.
    """
    if len(states) < 2 or not any(state.wait for state in states):
        return None
    waits = [state.wait for state in states if state.wait is not None]
    with_tensors = len({wait.tensor for wait in waits if wait.tensor}) > 1
    grouped: dict[str, list[int]] = {}
    for state in sorted(states, key=lambda state: state.rank):
        text = state.otherwise if state.wait is None else _waits(state.wait, with_tensor=with_tensors)
        grouped.setdefault(text, []).append(state.rank)
    shown = [f"{name_ranks(ranks)} {_agreeing(text, ranks)}" for text, ranks in grouped.items()]
    if len(shown) > _MOST_SHOWN:
        shown = [*shown[:_MOST_SHOWN], f"{len(shown) - _MOST_SHOWN} other places"]
    # Of a smaller group nobody here knows who belongs to it.
    all_ranks = range(world_size) if not any(wait.group for wait in waits) else ()
    unknown = sorted({*all_ranks}.difference(state.rank for state in states))
    return f"{', '.join(shown)}: {_difference(waits, unknown, are_all=len(waits) == len(states))}"


def _waits(wait: CollectiveWait, *, with_tensor: bool) -> str:
    number = "" if wait.number is None else f" (number {wait.number})"
    group = f" of group `{wait.group}`" if wait.group else ""
    tensor = f" with {wait.tensor}" if with_tensor and wait.tensor else ""
    return f"waits in `{wait.op}`{number}{group}{tensor} at {wait.place}"


def _agreeing(text: str, ranks: Sequence[int]) -> str:
    """The verb in the plural, where there are several ranks."""
    verb, _, rest = text.partition(" ")
    plural = {"waits": "wait", "has": "have", "was": "were"}.get(verb, verb)
    return text if len(ranks) == 1 else f"{plural} {rest}"


def _difference(waits: Sequence[CollectiveWait], unknown: Sequence[int], *, are_all: bool) -> str:
    """How the ranks differ that wait; or that others do not wait at all."""
    if len({(wait.op, wait.group) for wait in waits}) > 1:
        return _DIFFERENT
    if len({wait.tensor for wait in waits if wait.tensor}) > 1:
        return "the collective is the same, the tensors differ"
    if not are_all:
        return "a collective ends only when all ranks of its group call it"
    if len({wait.number for wait in waits}) > 1:
        return "the ranks have not called the same number of collectives"
    if len({wait.place for wait in waits}) > 1:
        return f"{_DIFFERENT}: the lines differ"
    if unknown:
        return f"these do not differ, and nothing is known here of {name_ranks(unknown)}"
    return "they do not differ, so look at the network"
