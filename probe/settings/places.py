"""Where things lie on this machine: the spool, the dashboard's data, and the note a running `serve` leaves.

Paths and small files only. Called by the probe, by the helper and by the dashboard; imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from .. import began
from ..guard import let_pass, suppressed
from ..own_files import lift

_logger = logging.getLogger(__name__)

DEFAULT_PAGE_PORT: Final = 8050
DEFAULT_INGEST: Final = "tcp://127.0.0.1:8051"
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "fuse.sshfs", "9p"})
_ADDRESS: Final = re.compile(r"tcp://[^\s*]+:(?P<port>\d{1,5})|ipc://\S+")
_LARGEST_PORT: Final = 65535
_MOST_TAKEN: Final = 10
"""Names of temporary folders that are tried, where others have taken them."""
_FOLDER: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}")


class ServeState(msgspec.Struct, frozen=True, kw_only=True):
    """What a running `dashboard serve` writes for local probes to find (file mode 0600)."""

    page: str
    """Address of the page without the token, for instance ``http://127.0.0.1:8050/``."""
    ingest: str
    """ZeroMQ address, for instance ``tcp://127.0.0.1:8051``."""
    pid: int
    secret: str
    """Ingest secret, hexadecimal; both ends prove it in the handshake and never send it."""
    data: str = ""
    """Folder of its store. The token is in a note there, and never here: probes read this."""
    spool: str = ""
    """Folder of the journals that it reads; "" where the server is older."""
    keys: str = ""
    """File of the keys that its ingest wants, see `keys.ClientKeys`; "" where it wants none."""


def default_spool(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the spool folder: `NANSCOPE_SPOOL`, else the user's cache folder.

    A relative path is taken from where the process began. A cache folder on a network file system is
    replaced by one under the local temporary folder, because appends there block and locks are unreliable;
    it stays where every folder of that name there belongs to somebody else. The spool is not created.
    """
    if chosen := environment.get("NANSCOPE_SPOOL"):
        return Path(began.FOLDER, chosen)
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanscope" / "spool"
    if file_system_type(cache) in NETWORK_FILE_SYSTEMS and (own := own_temporary_folder()) is not None:
        return own / "spool"
    return cache


def own_temporary_folder() -> Path | None:
    """Return this user's folder below the temporary one, made where there is none; None where none can be."""
    return _own_folder_in(Path(tempfile.gettempdir()))


@lru_cache(maxsize=4)
def _own_folder_in(shared: Path) -> Path | None:
    """Pass over what others own or may write in, and say so once: anybody may make a folder there first."""
    usual = shared / f"nanscope-{os.getuid()}"
    for folder in (usual, *(usual.with_name(f"{usual.name}-{number}") for number in range(1, _MOST_TAKEN))):
        with suppressed(OSError):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
                if folder != usual:
                    _logger.warning("nanscope: %s can be written by other users; %s is used", usual, folder)
                return folder
    _logger.warning("nanscope: %s can be written by other users, and is not used", usual)
    return None


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's state folder for nanscope (data, token, `serve.json`); not created."""
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "nanscope"


def is_folder_name(name: str) -> bool:
    """Whether `name` may name a run or a writer: it stays inside its parent folder."""
    return _FOLDER.fullmatch(name) is not None


def check_connect(address: str | None) -> None:
    """Refuse what is no address that a helper can connect to; "" and None are none, and allowed.

    Raises:
        ValueError: names what it got and what is allowed.
    """
    if not address:
        return
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"] or 1) <= _LARGEST_PORT:
        raise ValueError(
            f'connect={address!r} must be a ZeroMQ address such as "tcp://127.0.0.1:8051", '
            'or "" to ship nothing'
        )


def file_system_type(path: Path) -> str | None:
    """Return the type of the file system that holds `path` (or would), such as `nfs4`; None if unknown."""
    with suppressed(OSError):
        resolved = str(path.resolve())
        best, kind = "", None
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            mount, mount_type = line.split(" ")[1:3]
            if (resolved + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
                best, kind = mount, mount_type
        return kind
    return None


def make_private_folder(path: Path) -> Path:
    """Create `path` with its parents, mode 0700, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_private_file(path: Path, data: bytes) -> None:
    """Write a 0600 file so that a reader sees either the old or the new content."""
    make_private_folder(path.parent)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(lift(descriptor), "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_new_file(path: Path, data: bytes) -> None:
    """Write a 0600 file that nobody reads before it is complete; fewer writes than `write_private_file`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(lift(descriptor), "wb") as file:
        file.write(data)


def serve_state_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where a running `serve` leaves its `ServeState`."""
    return state_folder(environment) / "serve.json"


def write_serve_state(state: ServeState, environment: Mapping[str, str] = os.environ) -> Path:
    """Write `serve.json` (0600) and return its path."""
    path = serve_state_path(environment)
    write_private_file(path, msgspec.json.encode(state))
    return path


def read_serve_state(environment: Mapping[str, str] = os.environ) -> ServeState | None:
    """Return what a `serve` of this user has written; None when there is none or it is not readable."""
    try:
        return msgspec.json.decode(serve_state_path(environment).read_bytes(), type=ServeState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        let_pass(error)
        return None
