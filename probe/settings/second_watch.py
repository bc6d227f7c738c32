"""What a second `watch` on a model may ask for: which options change in mid-run, and why others cannot.

Pure data and checks, no torch. Called by the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .config import ProbeConfig

CHANGEABLE: Final = ("level", "preset", "features", "overhead_limit", "parameter_norm_every", "quiet")
"""Options of `watch` that a running session follows from its next step on."""


def refusals(first: ProbeConfig, names: Mapping[str, str], options: Mapping[str, Any]) -> list[str]:
    """Say of every option that differs from the running session's, and cannot change, why it is refused.

    Args:
        first: what the running session was attached with.
        names: `run`, `name` and `model_name` as they are in the journal.
        options: those that the second call names; None stands for "not given".

    Returns:
        One sentence for each, naming the option; empty where all can be had.

    Raises:
        ValueError: an unknown option, or one out of its range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    # Checked whole, and brought into the form in which the session has them.
    asked = ProbeConfig.resolve(given)
    found = []
    for name in sorted(set(given) - {*CHANGEABLE}):
        value, current = getattr(asked, name), names.get(name, getattr(first, name))
        if name == "spool":
            value, current = value.absolute(), current.absolute()
        if not _are_same(value, current):
            found.append(
                f"{name}={value!r} cannot change while a session runs, whose {name} is {current!r}: "
                f"give it to the first watch() of this model, or close() that session before"
            )
    return found


def _are_same(value: object, other: object) -> bool:
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return list(value) == list(other)
    return value is other or (type(value) is type(other) and value == other) or _are_same_number(value, other)


def _are_same_number(value: object, other: object) -> bool:
    return isinstance(value, int | float) and isinstance(other, int | float) and value == other
