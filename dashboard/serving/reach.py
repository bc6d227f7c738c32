"""From where the page and the ingest may be reached, and what that takes: checks and texts, no sockets.

On loopback nothing more is needed. Beyond it the page wants TLS, its own or a proxy's, and the ingest keys;
what is less is refused, and the refusal has the command that would do.
"""

from __future__ import annotations

import getpass
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

from ..errors import DashboardError
from ..throttle import is_loopback

SHORTEST_TOKEN: Final = 16
"""Characters of a token that other machines may try."""
_ANY: Final = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How a page is reached.

    Attributes:
        host: address that it listens on.
        certificate: PEM file, with which it speaks TLS; None where it does not.
        key: of the certificate; None where the certificate's file has it.
        public: origin of the proxy before it, such as ``https://train.example``; "" where there is none.
    """

    host: str = "127.0.0.1"
    certificate: Path | None = None
    key: Path | None = None
    public: str = ""

    @property
    def is_open(self) -> bool:
        """Whether other machines may reach the page."""
        return bool(self.public) or not is_loopback_host(self.host)

    @property
    def shown_host(self) -> str:
        """The host that stands in the page's address."""
        return socket.gethostname().lower() if self.host in _ANY else self.host

    @property
    def local_host(self) -> str:
        """The host by which this machine reaches the page."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def names(self) -> list[str]:
        """Return the hosts under which it answers, beside those of loopback."""
        return [self.host, *_own_names()] if self.host in _ANY else [self.host]

    def check(self, *, port: int, tokens: tuple[str, ...]) -> None:
        """Refuse what other machines could reach and is not protected.

        Raises:
            DashboardError: says what is missing, and which commands would do.
        """
        if self.public:
            _check_public(self.public)
        if self.certificate is not None:
            _check_certificate(self.certificate, self.key)
        elif self.key is not None:
            raise DashboardError("--tls-key needs --tls-cert, the certificate that it belongs to.")
        if not self.is_open:
            return
        if self.certificate is None and not self.public:
            raise DashboardError(_without_tls(self.host, port))
        if any(len(token) < SHORTEST_TOKEN for token in tokens):
            raise DashboardError(
                f"Other machines may try tokens: NANSCOPE_TOKEN and NANSCOPE_VIEW_TOKEN must have at least "
                f"{SHORTEST_TOKEN} characters there; unset them, and `dashboard serve` makes long ones."
            )


def is_loopback_host(host: str) -> bool:
    """Whether only this machine can reach an address or name."""
    return host == "localhost" or is_loopback(host)


def tunnel_command(port: int) -> str:
    """Return the command that brings a port of this machine to another one."""
    return f"ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}"


def connect_address(endpoint: str) -> str:
    """Return the address at which this machine reaches an ingest that listens on all of them."""
    for host, own in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]"), ("*", "127.0.0.1")):
        endpoint = endpoint.replace(f"tcp://{host}:", f"tcp://{own}:")
    return endpoint


def first_certificate(path: Path) -> str:
    """Return the certificate that a server shows, without those of its issuers."""
    text = path.read_text(encoding="ascii", errors="replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return f"{begin}{text.partition(begin)[2].partition(end)[0]}{end}\n"


def _without_tls(host: str, port: int) -> str:
    port = port or 8050
    return (
        f"--host {host} is not a loopback address: other machines could read the token in "
        "transit. Use one of\n"
        f"  {tunnel_command(port)}\n"
        f"    on the machine with the browser, and here `dashboard serve` as it is: then http://127.0.0.1:{port}/\n"
        f"  dashboard serve --host {host} --port {port} --tls-cert CERTIFICATE.pem --tls-key KEY.pem\n"
        f"  dashboard serve --host {host} --port {port} --behind-proxy https://NAME\n"
        "    where a proxy in front of it speaks TLS under that name"
    )


def _check_public(public: str) -> None:
    parts = urlsplit(public)
    try:
        is_origin = parts.scheme == "https" and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_origin = False
    whole = f"https://{parts.netloc}"
    if not is_origin or public != whole.lower() or "@" in parts.netloc:
        raise DashboardError(
            f"--behind-proxy {public} must be what browsers open, in small letters and without a path: "
            "--behind-proxy https://train.example"
        )


def _check_certificate(certificate: Path, key: Path | None) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise DashboardError(
            f"--tls-cert {certificate} and --tls-key {key or certificate} cannot be used: {error}; both are "
            "PEM files, and the key has no password."
        ) from error


def _own_names() -> list[str]:
    """Return this machine's name and addresses."""
    found = [socket.gethostname().lower()]
    for addresses in psutil.net_if_addrs().values():
        found += [one.address for one in addresses if one.family in (socket.AF_INET, socket.AF_INET6)]
    return [name for name in found if "%" not in name]
