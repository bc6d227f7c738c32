"""Raw records of equal steps as rows of arrays: what the detectors read of each is read of all at once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .ring_format import HAS_LOSS, HAS_MISSING, HAS_NORM, HAS_PARAMETER_NORMS, HAS_UPDATE, RAW_HEAD

Floats32 = npt.NDArray[np.float32]
_WITH_MORE: Final = HAS_PARAMETER_NORMS | HAS_UPDATE


class RawRows(NamedTuple):
    """Successive raw records of one template, in which no gradient is missing; nothing refers to the ring."""

    template: int
    steps: list[int]
    times: list[float]
    """UNIX seconds of each."""
    losses: list[float] | None
    """None where they have none."""
    total_norms: list[float] | None
    input_elements: list[int]
    """As in `RawStep`."""
    has_more: list[bool]
    """Which have norms of parameters, or are followed by the record of an update."""
    scalars: list[tuple[float, ...]]
    """Of each step, as in `RawStep`."""
    norm: Floats32
    """(steps, parameters) L2 norms of the gradients."""
    max_abs: Floats32
    """(steps, parameters)"""


def read_rows(payloads: Sequence[memoryview]) -> RawRows | None:
    """Take raw records apart; None where they are not all of one template, or a gradient is missing.

    By few functions: where caches are empty the first call of each of NumPy's takes 20 us or more.
    """
    size = min(map(len, payloads), default=0)
    if size < RAW_HEAD.size:
        return None
    heads = [RAW_HEAD.unpack_from(payload) for payload in payloads]
    template, count, scalars = heads[0][2], heads[0][3], heads[0][9]
    flags = heads[0][8] & ~_WITH_MORE
    for head in heads:
        if head[2:4] != (template, count) or head[8] & ~_WITH_MORE != flags or head[9] != scalars:
            return None
    block_at = RAW_HEAD.size + 8 * scalars
    end = block_at + 8 * count
    # Of the block two rows of four are wanted.
    if flags & HAS_MISSING or min(count, scalars) < 0 or size < end + 8 * count:
        return None
    middle, numbers = block_at + 4 * count, struct.Struct(f"<{scalars}d")
    rows = [payload[block_at:middle] for payload in payloads]
    rows += [payload[middle:end] for payload in payloads]
    # As precise as they are: who reckons with them widens a copy that it needs anyway.
    block = np.frombuffer(b"".join(rows), "<f4").reshape(2, len(payloads), count)
    return RawRows(
        template=template,
        steps=[head[0] for head in heads],
        times=[head[1] for head in heads],
        losses=[head[4] for head in heads] if flags & HAS_LOSS else None,
        total_norms=[head[6] for head in heads] if flags & HAS_NORM else None,
        input_elements=[head[10] for head in heads],
        has_more=[bool(head[8] & _WITH_MORE) for head in heads],
        scalars=[numbers.unpack_from(payload, RAW_HEAD.size) for payload in payloads],
        norm=block[0],
        max_abs=block[1],
    )
