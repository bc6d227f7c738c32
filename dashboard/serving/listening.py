"""Where the page listens, and whether there is a screen to show it on. Sockets and the environment only."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator, Mapping

from ..errors import DashboardError


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


def open_browser(address: str) -> None:
    """Open the page in the user's browser."""
    import webbrowser

    webbrowser.open(address)
