"""Builds the model of ``--entry module:function``: the only code of the user that a replay imports."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from ...attach.layout import unwrap
from ...errors import BundleError
from ...threads.stacks import stack_from_traceback
from ...threads.user_lines import at_line


def build_model(entry: str) -> nn.Module:
    """Import ``module:function`` and have it build the model.

    Raises:
        BundleError: there is no such function, it raises, or what it returns is no model.
    """
    module_name, colon, path = entry.partition(":")
    if not (module_name and colon and path):
        raise BundleError(f"--entry {entry}: give module:function, for instance train:build_model")
    function = _find(entry, module_name, path)
    try:
        made = function()
    # The user's own code runs in there.
    except (Exception, SystemExit) as error:
        raise _failure(entry, error) from error
    candidates = made if isinstance(made, tuple | list) else (made,)
    models = [item for item in candidates if isinstance(item, nn.Module)]
    if not models:
        raise BundleError(f"--entry {entry} returned a {type(made).__name__}; it has to return the model")
    model = unwrap(models[0])
    if any(parameter.is_meta for parameter in model.parameters()):
        raise BundleError(
            f"--entry {entry} is on the meta device, where there are no values; build it on the CPU"
        )
    return model


def _find(entry: str, module_name: str, path: str) -> Callable[[], Any]:
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise _failure(entry, error) from error
        advice = "start in the folder of the script"
        if (name := module_name.removesuffix(".py")) != module_name or "/" in name:
            advice = f"give the module's name, {name.strip('./').replace('/', '.')}, and not its file"
        raise BundleError(f"--entry {entry}: there is no module {missing!r} here; {advice}") from error
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise BundleError(f"--entry {entry}: {error}") from error
    if not callable(found):
        raise BundleError(
            f"--entry {entry} is a {type(found).__name__}; name a function that returns the model"
        )
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise BundleError(
            f"--entry {entry}: {error}. It is called without arguments: name a function that needs none, and "
            "calls it with those of the run"
        ) from error
    except ValueError:
        pass  # It does not say what it takes.
    return cast(Callable[[], Any], found)


def _failure(entry: str, error: BaseException) -> BundleError:
    place = at_line(stack_from_traceback(error.__traceback__))
    return BundleError(f"--entry {entry} failed with {type(error).__name__}: {error}{place}")
