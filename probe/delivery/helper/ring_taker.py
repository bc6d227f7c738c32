"""Moves what the ring of a killed trainer holds into its journal: exactly once, also if begun before.

Called by the helper, which holds the host's lock, for trainers that are gone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import JournalError
from ...wire.ordinary_files import ordinary_file
from ..journal.journal import JournalWriter
from ..journal.journal_reader import has_ring, read_loss

if TYPE_CHECKING:
    from ..journal.ring_rest import RingImage


UNREAD: Final = "unread-"


def take_ring(folder: Path) -> bool:
    """Append a dead writer's newest steps to its metrics, and remove its ring.

    Args:
        folder: the writer's, `SPOOL/<run>/<rank>-<incarnation>`.

    Returns:
        Whether there is nothing left to take; False where the writer lives after all, or the disk is full:
        the next call goes on. A ring of another version is left alone. What is none of the writer's rings is
        told, and gets another name: `UNREAD` before its own.
    """
    if not has_ring(folder):
        return True
    # numpy is a quarter of the helper's memory: it is loaded when a trainer was killed, and not before.
    from ..journal.ring_rest import odd_rings, read_ring, ring_paths

    images = [image for path in ring_paths(folder) if (image := read_ring(path)) is not None]
    if any(image.is_alive for image in images):
        return False
    try:
        with contextlib.closing(JournalWriter(folder, run=folder.parent.name, writer=folder.name)) as journal:
            loss = read_loss(folder, is_dead=True)
            if loss is not None:
                journal.append("events", loss)
            for path in odd_rings(folder):
                path.rename(path.with_name(UNREAD + path.name))
            for image in images:
                _take(journal, image, is_only=len(images) == 1)
    except (JournalError, OSError):
        return False
    return True


def _take(journal: JournalWriter, image: RingImage, *, is_only: bool) -> None:
    """Append what is missing of one ring, and remove it."""
    from ..journal.ring_rest import rest_of
    from ..recorder.ring_header import MARK_AT, pack_mark

    rest = rest_of(image, metrics_end=journal.next_seq("metrics"), is_only=is_only)
    if rest.is_stale:
        image.path.rename(image.path.with_name(UNREAD + image.path.name))
        return
    if rest.begun:
        journal.append_many("metrics", rest.begun)
    if rest.following:
        # First the mark: should this process be killed below, the next one sees how far it got.
        with ordinary_file(image.path, flags=os.O_WRONLY) as descriptor:
            os.pwrite(descriptor, pack_mark(rest.mark), MARK_AT[rest.mark.generation % 2])
        journal.append_many("metrics", rest.following)
    image.path.unlink(missing_ok=True)
