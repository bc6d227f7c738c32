"""In which ways the lines of a loss are looked for, the surest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from ..capture import RootCapture
from .called_lines import find_called_code
from .last_lines import find_last_code
from .loss_code import LossCode, find_loss_code
from .yielded_lines import find_yielded_code


def ways_to_lines(captures: Sequence[RootCapture], frame: FrameType) -> list[Callable[[], LossCode]]:
    """Return functions that find the lines, or raise `ReplayError` with the reason.

    Args:
        captures: of the forwards that the loss was made of, in the order of the calls.
        frame: of the present call.
    """
    first, last = captures[0], captures[-1]
    whole = first.call_site, last.backward_site
    # Rejoined in the wrong place, where a trainer's calls all go through one function.
    inner = first.inner_sites(last)
    pairs = [whole] if list(map(list, inner)) == list(whole) else [whole, inner]
    last_lines = partial(find_last_code, last.call_site, last.backward_site, frame)
    return [
        # What was collected over many calls is read as it is: an environment takes no step again.
        *([last_lines] if len(captures) > 1 else []),
        *(partial(find_loss_code, *sites, frame) for sites in pairs),
        *(partial(find_called_code, *sites, frame) for sites in pairs),
        partial(find_yielded_code, *whole),
        *([] if len(captures) > 1 else [last_lines]),
    ]
