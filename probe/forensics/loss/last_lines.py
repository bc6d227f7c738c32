"""The lines that made a loss of what was collected over many calls of the model: log-probabilities, returns.

They are in the function that called backward, and need no call of the model again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

from ...errors import NotInLastLinesError
from ...threads.stacks import RawFrame, Spot, spot_of
from ...threads.whereabouts import is_installed, is_library
from .call_arguments import variables_of
from .loss_code import LossCode, LossSpots, cut_last_lines

_NOWHERE = Spot(-1, None)


def find_last_code(
    forward_site: Sequence[RawFrame], backward_site: Sequence[RawFrame], frame: FrameType | None
) -> LossCode:
    """Return the lines since the newest call of the model.

    Args:
        forward_site: frames of that call, outermost first.
        backward_site: frames of the call of backward.
        frame: of the present call.

    Raises:
        ReplayError: the function that called backward has returned, or its lines cannot be run again.
    """
    own = [one for one in backward_site if not is_installed(one[0].co_filename)] or [
        one for one in backward_site if not is_library(one[0].co_filename)
    ]
    code, offset = own[-1] if own else backward_site[-1]
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        raise NotInLastLinesError("the function that called backward has returned")
    called = next((spot_of(c, at) for c, at in reversed(forward_site) if c is code), _NOWHERE)
    spots = LossSpots(called, spot_of(code, offset), spot_of(code, frame.f_lasti))
    return cut_last_lines(code, spots, variables_of(frame))
