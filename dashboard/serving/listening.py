"""Where the page listens, and whether there is a screen to show it on. Sockets and the environment only."""

from __future__ import annotations

import contextlib
import errno
import html
import socket
from collections.abc import Iterator, Mapping
from typing import Final

from probe.settings.places import state_folder, write_private_file

from ..errors import DashboardError

_REDIRECT: Final = """<!doctype html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>nanscope</title><a href="{address}">nanscope</a>
"""


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Bind the page's port; closed at the end.

    Raises:
        DashboardError: the port is in use or cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise DashboardError(
                    f"Port {port} of {host} is in use; stop what uses it or pass --port 0 for a free one; "
                    "`dashboard url` prints the address of a dashboard that runs."
                ) from error
            raise DashboardError(
                f"The page cannot listen on {host} port {port}: {error.strerror}."
            ) from error
        listener.listen(128)
        listener.set_inheritable(False)
        yield listener
    finally:
        listener.close()


def has_graphical_session(environment: Mapping[str, str]) -> bool:
    """A display of this machine: not one forwarded by SSH."""
    display = environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    return bool(display) and "SSH_CONNECTION" not in environment


def open_browser(address: str, environment: Mapping[str, str]) -> None:
    """Open the page in the user's browser, by a file of the user's own that leads to it.

    What a browser is started with stands in the list of processes, which every user of the machine reads: the
    address with its token must not.
    """
    import webbrowser

    page = state_folder(environment) / "open.html"
    try:
        write_private_file(page, _REDIRECT.format(address=html.escape(address)).encode())
    except OSError:
        return  # the address is printed, too
    webbrowser.open(page.absolute().as_uri())
