"""Builds the model of ``--entry module:function``: the only code of the user that a replay imports."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from ..errors import BundleError
from ..layout import unwrap


def build_model(entry: str) -> nn.Module:
    """Import ``module:function`` and have it build the model.

    Raises:
        BundleError: there is no such function, it raises, or what it returns is no model.
    """
    module_name, colon, path = entry.partition(":")
    if not (module_name and colon and path):
        raise BundleError(f"--entry {entry}: give module:function, for instance train:build_model")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
        made = found()
    except ModuleNotFoundError as error:
        raise BundleError(
            f"--entry {entry}: there is no module {error.name!r} here; start in the folder of the script"
        ) from error
    except AttributeError as error:
        raise BundleError(f"--entry {entry}: {error}") from error
    # The user's own code runs in there.
    except (Exception, SystemExit) as error:
        raise BundleError(f"--entry {entry} failed with {type(error).__name__}: {error}") from error
    candidates = made if isinstance(made, tuple | list) else (made,)
    models = [item for item in candidates if isinstance(item, nn.Module)]
    if not models:
        raise BundleError(f"--entry {entry} returned a {type(made).__name__}; it has to return the model")
    return unwrap(models[0])
