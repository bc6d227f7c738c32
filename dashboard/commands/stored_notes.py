"""Notes at steps for `dashboard export`: people write them on the page, and the store alone has them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from ..client import Client, ClientError
from ..serving.running import STORE_VARIABLE, data_folder, find_server, find_server_of
from ..store.notes import notes_of_file
from ..store.protocol import StepNote


def stored_notes(run: str, data: Path | None) -> list[StepNote]:
    """Return the notes of a run by step: from the dashboard that runs, else from the store it would open.

    Args:
        run: whole id of the run.
        data: folder of the store; None is that of the running dashboard, else the user's.

    Raises:
        DashboardError: the store cannot be read.
    """
    server = find_server() if data is None else find_server_of(data)
    url = os.environ.get(STORE_VARIABLE, "")
    if server is None and data is None and url:
        from ..store.engines import open_store

        with contextlib.closing(open_store(data_folder(data), url)) as store:
            return store.notes(run)
    if server is None:
        return notes_of_file(data_folder(data), run)
    try:
        return msgspec.convert(
            Client(server.page, server.token, certificate=server.certificate).notes(run), list[StepNote]
        )
    except ClientError as error:
        if error.status == 404:  # it has never seen the run
            return []
        raise
