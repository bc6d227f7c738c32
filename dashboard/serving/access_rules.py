"""Under which names the page answers, and which origins and sources it allows: data that the middleware
compares.

Pure; made once while the server starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """What a request must show. Comparisons are exact."""

    cookie: str
    """Cookie's name, see `cookie_name`."""
    hosts: frozenset[str]
    origins: frozenset[str]
    policy: str
    """Content-Security-Policy."""
    is_secure: bool = False
    """Browsers come over TLS: their cookie never travels otherwise."""


def cookie_name(port: int, *, is_secure: bool = False) -> str:
    """Return the name of the page's cookie; browsers share cookies between the ports of a host.

    Over TLS with the prefix by which a browser takes it only with `Secure`, for this host alone.
    """
    return f"__Host-nanscope_{port}" if is_secure else f"nanscope_{port}"


def access_rules(
    *,
    port: int,
    names: Iterable[str],
    script_hashes: Sequence[str],
    has_tls: bool = False,
    public: str = "",
) -> AccessRules:
    """Return the rules of a server.

    Args:
        port: Its port.
        names: Hosts, or addresses, under which it answers beside those of loopback.
        script_hashes: CSP sources of the page's inline scripts (`Dash.csp_hashes`).
        has_tls: It speaks TLS itself.
        public: Origin of the proxy before it, such as ``https://train.example``; "" where there is none.
    """
    scheme = "https" if has_tls else "http"
    bracketed = {f"[{name}]" if ":" in name and not name.startswith("[") else name for name in names}
    all_names = bracketed.union(_LOOPBACK_NAMES)
    usual_port = 443 if has_tls else 80
    hosts = {f"{name}:{port}" for name in all_names} | (all_names if port == usual_port else set())
    origins = {f"{scheme}://{host}" for host in hosts}
    sockets = {f"{'wss' if has_tls else 'ws'}://{host}" for host in hosts}
    if public:
        host = urlsplit(public).netloc
        hosts.add(host)
        origins.add(public)
        sockets.add(f"wss://{host}")
    is_secure = has_tls or bool(public)
    return AccessRules(
        cookie=cookie_name(port, is_secure=is_secure),
        hosts=frozenset(hosts),
        origins=frozenset(origins),
        policy=content_security_policy(sockets=sockets, script_hashes=script_hashes),
        is_secure=is_secure,
    )


def content_security_policy(*, sockets: Iterable[str], script_hashes: Sequence[str]) -> str:
    """Return a policy without eval and without any origin but our own.

    Inline *styles* stay allowed: Plotly, Mantine and AG Grid set them from their own scripts.
    """
    # Chromium takes no IPv6 address as a source; there 'self' must do, which covers WebSockets.
    feeds = " ".join(sorted(socket for socket in sockets if "[" not in socket))
    directives = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *script_hashes]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "connect-src": f"'self' {feeds}",
        "worker-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())
