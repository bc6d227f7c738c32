"""Whether what a thread does now is part of the training that a session follows. Used at every callback."""

from __future__ import annotations

import logging
import threading

from torch import nn

from ..attach.hooks import Attachment
from ..compat.host_copy import is_capturing
from ..threads.unnoticed import is_replaying
from .measure_schedule import MeasureSchedule

_logger = logging.getLogger(__name__)


class Attention:
    """One session's, which follows the thread that has called its model last, in training.

    Args:
        schedule: knows whether anything is looked at.
        attachment: what the session's hooks hang on.
    """

    def __init__(self, schedule: MeasureSchedule, attachment: Attachment) -> None:
        self._schedule, self._attachment = schedule, attachment
        self._thread = 0
        """That has called the model last, in training; 0 before the first call."""
        self._has_told_of_capture = False

    def note_call(self, root: nn.Module) -> None:
        """The model, or a part of it, is called on this thread."""
        if root.training or not self._thread:
            self._thread = threading.get_ident()

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the calling thread is the one that is followed, or none is yet."""
        return self._thread in (0, threading.get_ident())

    @property
    def trains_here(self) -> bool:
        """Whether the calling thread is the one that is followed."""
        return self._thread == threading.get_ident()

    @property
    def is_elsewhere(self) -> bool:
        """Whether what happens now is no part of a training step, or must not be touched."""
        if is_replaying() or self._attachment.in_trial or self._schedule.is_off:
            return True
        if self._thread not in (0, threading.get_ident()):
            # Another model is trained here. To read our gradients while our own thread runs a backward, which
            # writes them without Python's lock, ends the process.
            return True
        if not is_capturing():
            return False
        if not self._has_told_of_capture:
            self._has_told_of_capture = True
            _logger.warning(
                "nanscope: a CUDA graph is captured: what it replays runs no Python, and these steps are not "
                "recorded. To see some, train without the graph"
            )
        return True
