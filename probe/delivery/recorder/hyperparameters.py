"""What a training was started with: hyperparameters, and how its random generators stand. Changes nothing.

Hyperparameters are those that `watch(config=...)` names, else what the script has parsed or its trainer has:
an `argparse.Namespace`, Hugging Face's `TrainingArguments`, Lightning's `hparams`. Called once at attach, on
the thread that trains.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import random
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from types import FrameType
from typing import Any, Final

import torch
from torch import nn

from ...guard import outcome_of
from ...threads.frame_variables import is_library, variables_of

MOST: Final = 500
"""Names that are kept."""
_LONGEST: Final = 1000
"""Characters of a value."""
_FRAMES: Final = 64
_SECRET_WORDS: Final = r"token|auth|(?:passw(?:or)?d|secret|(?:api|access)[_\-]?key|credential)s?"
_SECRET: Final = re.compile(rf"(?:^|[_\-.])(?:{_SECRET_WORDS})(?:$|[_\-.])", re.IGNORECASE)
HIDDEN: Final = "***"
_NO_FACTS: Final = frozenset(
    {"int", "float", "str", "bool", "list", "dict", "tuple", "Tensor", "module", "function", "type"}
)


def is_secret(name: str) -> bool:
    """Whether a name is that of something which nobody else is to read."""
    return _SECRET.search(name.replace(" ", "_")) is not None


def as_texts(values: Mapping[Any, Any]) -> dict[str, str]:
    """Return values as text, the first `MOST` of them; nested mappings as ``outer.inner``, secrets hidden."""
    found: dict[str, str] = {}
    for name, value in _flat(values, ""):
        if len(found) >= MOST:
            break
        found[name[:200]] = HIDDEN if is_secret(name) and value not in (None, "") else _text(value)
    return found


def _flat(values: Mapping[Any, Any], prefix: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in list(values.items()):
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and depth < 4 and not is_secret(name):
            yield from _flat(value, f"{name}.", depth + 1)
        else:
            yield name, value


def _text(value: Any) -> str:
    """The value as a person would write it; of what may be large or runs code of its own the type alone."""
    if isinstance(value, str):
        return value[:_LONGEST]
    if value is None or isinstance(value, bool | int | float | complex):
        return str(value)[:_LONGEST]
    if isinstance(value, list | tuple | set | frozenset) and len(value) <= 1000:
        return ", ".join(_text(item) for item in value)[:_LONGEST]
    if isinstance(value, torch.dtype | torch.device | torch.Size | PurePath):
        return str(value)[:_LONGEST]
    if isinstance(value, Enum):
        return _text(value.value)
    return f"<{type(value).__qualname__}>"


def hyperparameters_of(
    given: Mapping[str, Any] | None, model: nn.Module, frame: FrameType | None
) -> tuple[dict[str, str], str]:
    """Return hyperparameters and where they are from: those given to `watch`, else those that are found."""
    if given is not None:
        return as_texts(given), "watch"
    # Objects of the script's are asked, whose own code may raise.
    return outcome_of(find_hyperparameters, model, frame)[0] or ({}, "")


def find_hyperparameters(model: nn.Module, frame: FrameType | None) -> tuple[dict[str, str], str]:
    """Return the hyperparameters that a script can be seen to have, and where they are from; none, and "".

    Args:
        model: the one that is watched.
        frame: the caller's; its variables and those of its callers are looked at, innermost first.
    """
    held, _ = outcome_of(getattr, model, "hparams", None)
    if isinstance(held, Mapping) and held:
        return as_texts(held), "lightning"
    parsed: dict[str, str] = {}
    for value, is_of_script in _variables(frame):
        if type(value).__name__ in _NO_FACTS:
            continue
        kinds = {kind.__name__ for kind in type(value).__mro__}
        if "TrainingArguments" in kinds and dataclasses.is_dataclass(value):
            return as_texts(_fields(value)), "transformers"
        # A launcher that runs the script in its own process has arguments, too.
        if is_of_script and isinstance(value, argparse.Namespace) and not parsed:
            parsed = as_texts(vars(value))
    return parsed, "argparse" if parsed else ""


def _fields(value: Any) -> dict[str, Any]:
    """Not by `asdict`, which copies, and calls what a field's class defines."""
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value) if field.init}


def _variables(frame: FrameType | None) -> Iterator[tuple[Any, bool]]:
    """Variables of the running functions and attributes of their `self`, then those of the script's module.

    With each, whether it is the script's own and no library's.
    """
    for _ in range(_FRAMES):
        if frame is None:
            break
        is_of_script = not is_library(frame)
        with variables_of(frame) as variables:
            found = list(variables.values())[:MOST]
            held = getattr(variables.get("self"), "__dict__", None)
        found += list(held.values())[:MOST] if isinstance(held, dict) else []
        yield from ((value, is_of_script) for value in found)
        del found, held
        frame = frame.f_back
    main = sys.modules.get("__main__")
    yield from ((value, True) for value in list(vars(main).values())[:MOST]) if main is not None else ()


def seeds() -> dict[str, str]:
    """Return how the random generators were seeded, as far as they tell; draws nothing.

    Torch knows its seed. Python's and NumPy's generators do not: of them the state's digest is kept, which is
    the same in two runs that were seeded alike and have drawn alike.
    """
    found = {"torch": str(torch.initial_seed()), "python state": _digest(random.getstate())}
    generators = sys.modules.get("numpy.random")
    if generators is not None:
        state = generators.get_state(legacy=True)
        found["numpy state"] = _digest((state[0], state[1].tobytes(), *state[2:]))
    return found


def _digest(state: object) -> str:
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]
