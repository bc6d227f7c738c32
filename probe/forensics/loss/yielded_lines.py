"""The lines of a generator that made a loss and yielded it: it waits there, with its variables.

Looks for the generator among all objects, at a fault alone; runs nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import CodeType, FrameType, GeneratorType

from ...compat import all_objects
from ...errors import KeptElsewhereError, ReplayError
from ...threads.stacks import RawFrame, Spot, spot_of
from .call_arguments import variables_of
from .code_source import source_of
from .loss_code import LossCode, LossSpots, cut_loss_code


def find_yielded_code(forward_site: Sequence[RawFrame], backward_site: Sequence[RawFrame]) -> LossCode:
    """Return the lines from the model's call to the `yield`, of the generator that has called the model.

    Args:
        forward_site: frames of the model's call, outermost first.
        backward_site: frames of the call of backward.

    Raises:
        ReplayError: none has, or it cannot be told from others, or has gone on.
    """
    outside = {id(code) for code, _ in backward_site}
    inside = [(c, o) for c, o in forward_site if c.co_flags & inspect.CO_GENERATOR and id(c) not in outside]
    if not inside:
        raise KeptElsewhereError("no generator has called the model")
    code, offset = inside[-1]
    frame = _frame_of_waiting(code)
    place = _place_of_yield(code, frame.f_lasti)
    spots = LossSpots(spot_of(code, offset), place, place)
    return cut_loss_code(code, spots, variables_of(frame))._replace(is_handed_on=True)


def _place_of_yield(code: CodeType, offset: int) -> Spot:
    """Of a generator expression, whose `yield` is nowhere written, the beginning of what it yields."""
    if code.co_name != "<genexpr>":
        return spot_of(code, offset)
    (yielded,) = source_of(code)
    return Spot(yielded.lineno, yielded.col_offset)


def _frame_of_waiting(code: CodeType) -> FrameType:
    """Of the one generator of this function that waits at a `yield`."""
    generators = all_objects.faults.instances(GeneratorType)
    if generators is None:
        raise ReplayError(all_objects.TOO_OFTEN)
    found = [one for one in generators if one.gi_code is code and one.gi_suspended]
    frames = [frame for one in found if (frame := one.gi_frame) is not None]
    if len(frames) != 1:
        how = "several generators wait" if frames else "no generator waits any more"
        raise ReplayError(f"{how} that may have made the loss")
    return frames[0]
