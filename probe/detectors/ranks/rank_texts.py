"""What the findings about ranks say. Pure text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_MOST: Final = 8
ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    "non-finite values": (
        "An all-reduce spreads one rank's NaN to all others: look at the events of the rank that went bad "
        "first, the others' follow from it.",
        "Look at its data of this step: the other ranks' shards were clean.",
        "If the same rank is first again after a restart with other data, suspect its device: run its "
        "memory test (`nvidia-smi -q -d ECC` shows errors), and try the job without it.",
    ),
    "from the start": (
        "The models were not made equal: another seed or another checkpoint on one rank. Load one checkpoint "
        "on all ranks, or broadcast rank 0's weights before the first step.",
    ),
    "on its own": (
        "Its gradients are not averaged with the others': call the model through its wrapper (not "
        "`model.module`), and not inside `no_sync()`.",
        "Start again from a checkpoint that all ranks load.",
    ),
    "since a step": (
        "Something changed the parameters of one rank alone: code that writes to them outside of the "
        "optimizer, or an update that one rank skipped and others made.",
        "Start again from a checkpoint that all ranks load.",
    ),
    "gradients": (
        "Each rank trains a model of its own. For populations, local SGD or a search over settings that is "
        "as it should be.",
        "For data-parallel training, wrap the model in DistributedDataParallel and call the wrapper, not "
        "`model.module`; inside `no_sync()` nothing is averaged either.",
    ),
    "late": (
        "The others wait for this rank in every step: what it loses, all lose.",
        "Look at its data loading first: fewer or slower workers, a larger shard, a cold or distant disk.",
        "Then at what this rank does alone: logging, saving, evaluating; and at other programs on its host.",
        "If it is always the same machine, compare its clock rates and temperatures with the others'.",
    ),
    "late in backward": (
        "The others wait for this rank in every step: what it loses, all lose.",
        "Compare what it has to compute: longer sequences or more samples, and hooks or functions of your "
        "own that do more in backward on this rank.",
        "Then what it computes with: other programs on its host, fewer threads, lower clock rates, heat.",
    ),
}
"""What to do where the kind's own advice is about other things."""


def divergence_advice(*, is_stray: bool, was_equal: bool) -> str:
    """Return the key of what to do about a rank that is no replica.

    Args:
        is_stray: whether its gradients differ, too.
        was_equal: whether it was a replica before.
    """
    return "on its own" if is_stray else "since a step" if was_equal else "from the start"


def name_ranks(ranks: Sequence[int]) -> str:
    """Write "rank 3", "ranks 0 and 1", "ranks 1, 2, 3 and 60 more"."""
    numbers = [str(rank) for rank in ranks[:_MOST]]
    if len(ranks) > _MOST:
        return f"ranks {', '.join(numbers)} and {len(ranks) - _MOST} more"
    if len(ranks) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def divergence_message(
    rank: int,
    *,
    differing: Sequence[int],
    reference: int,
    ranks: int,
    agreeing: int,
    has_majority: bool,
    step: int,
    equal_at: int | None,
    shares_gradients: bool,
    parameter: str,
    own: float,
    other: float,
) -> str:
    """Say which rank differs, from whom, since when, where and by how much."""
    since = "from the start" if equal_at is None and step == 0 else f"at step {step}"
    size = abs(own - other) / max(abs(own), abs(other), 1e-300)
    first = (
        f"Rank {rank} is not a replica of rank {reference} {since}: norm of `{parameter}` {own:.6g} against "
        f"{other:.6g} ({_share(size)})"
    )
    lines = [first]
    if has_majority:
        lines.append(f"{agreeing} of {ranks} ranks are equal; {_be(differing)} not.")
    elif ranks == 2:
        lines.append("With two ranks, nothing shows which one is right.")
    else:
        lines.append(f"Only {agreeing} of {ranks} ranks are equal: no majority shows which are right.")
    if equal_at is not None:
        lines.append(f"At step {equal_at} it was still equal.")
    lines.append(
        "All apply the same gradients, so that nothing brings them together again: what is averaged are "
        "gradients of different models."
        if shares_gradients
        else "Its gradients also differ from the others' now: it does not take part in the averaging."
    )
    return "\n".join(lines)


def own_ways_message(ranks: Sequence[int], first: int, step: int) -> str:
    """Say that no two ranks agree in anything."""
    return (
        f"{name_ranks(ranks).capitalize()} train models of their own from step {first} on: neither "
        f"gradients nor parameters agree\nSo far, to step {step}, nothing was averaged. Populations and "
        "local SGD are like this; for data-parallel training, wrap the model in DistributedDataParallel."
    )


def _be(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _share(value: float) -> str:
    return f"{value * 100:.3g} %" if value >= 1e-5 else f"{value:.1e} of it"
