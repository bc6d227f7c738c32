"""Opens addresses of a dashboard of this machine: past proxies, with its one certificate. Light."""

from __future__ import annotations

import ssl
import urllib.request


def local_opener(certificate: str = "") -> urllib.request.OpenerDirector:
    """Return what opens addresses of a dashboard of this machine.

    Args:
        certificate: PEM; the only one that it may show, whatever name is in it.
    """
    # A proxy of the user's is for other machines.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=certificate)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)
