"""`dashboard keygen`: CURVE keys for trainings on other machines, one file for each end. Light but for
libzmq."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from probe.settings.keys import ClientKeys
from probe.settings.places import write_private_file

from ..errors import DashboardError
from ..ingest.curve import CLIENT_FILE, SERVER_FILE, ServerKeys, keys_folder, read_server_keys
from ..serving.credentials import load_credentials


def make_keys(
    folder: Path | None,
    *,
    force: bool,
    announce: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Write keys of a server and of a client, and say what to do with them.

    Args:
        folder: gets the files (0600); None is in the user's state folder.
        force: replace files that are there: trainings with the old ones are refused then.
        announce: gets each line of what is said.
        environment: where the state folder and the ingest secret are.

    Raises:
        DashboardError: they are there already, cannot be written, or libzmq has no CURVE.
    """
    import zmq

    if not zmq.has("curve"):
        raise DashboardError("The libzmq of this pyzmq has no CURVE; install a wheel of pyzmq from PyPI.")
    chosen = folder or keys_folder(environment)
    server, client = chosen / SERVER_FILE, chosen / CLIENT_FILE
    if not force and (found := [path for path in (server, client) if path.exists()]):
        raise DashboardError(
            f"{found[0]} is there already; --force replaces it, and old keys let nobody in then."
        )
    public, secret = (key.decode() for key in zmq.curve_keypair())
    client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
    own = ServerKeys(public=public, secret=secret, clients=(client_public,))
    ingest = load_credentials(environment).secret
    theirs = ClientKeys(public=client_public, secret=client_secret, server=public, ingest=ingest)
    try:
        write_private_file(server, msgspec.json.format(msgspec.json.encode(own)))
        write_private_file(client, msgspec.json.format(msgspec.json.encode(theirs)))
    except OSError as error:
        raise DashboardError(f"Cannot write keys in {chosen}: {error.strerror or error}.") from error
    read_server_keys(server)
    keys = "" if folder is None else f" --keys {server}"
    host = socket.gethostname()
    for line in (
        f"server  {server}",
        f"client  {client}",
        f"Here:       dashboard serve --ingest tcp://0.0.0.0:8051{keys}",
        f"Copy:       scp {client} TRAINING-MACHINE:",
        f"There:      NANSCOPE_CONNECT=tcp://{host}:8051 NANSCOPE_KEYS=~/{CLIENT_FILE} python train.py",
    ):
        announce(line)
