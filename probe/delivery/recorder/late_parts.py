"""Loads what a healthy run does not need on the recorder's thread, where a step would be held up by it.

For parts that several modules make up and that can wait for some steps; what is small, or has to be there at
once, its user imports where it is needed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from ...guard import let_pass
from ...threads.pieces import give_way

_logger = logging.getLogger(__name__)


class LateParts:
    """Modules that are loaded once somebody asks for them.

    Args:
        names: of modules, each after those of them that it imports: one is loaded in a piece.
        do_once: has the recorder's thread call something.
    """

    def __init__(self, names: Sequence[str], do_once: Callable[[Callable[[], None]], None]) -> None:
        self._names, self._do_once = list(names), do_once
        self._are_loaded = all(name in sys.modules for name in names)
        self._is_asked_for = False

    def are_loaded(self) -> bool:
        """Whether they are there; if not, they are loaded from now on. From any thread."""
        if not (self._are_loaded or self._is_asked_for):
            self._is_asked_for = True
            self._do_once(self._load)
        return self._are_loaded

    def _load(self) -> None:
        """Load one, and have the next one loaded: the thread looks at the training in between."""
        name = self._names.pop(0)
        try:
            import_module(name)
        except (ImportError, OSError) as error:
            let_pass(error)
            # The disk is gone, or there are no descriptors left: the run goes on without.
            _logger.warning("nanscope: %s cannot be loaded: %s", name, error)
            return
        give_way()
        if self._names:
            self._do_once(self._load)
        else:
            self._are_loaded = True
