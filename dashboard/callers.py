"""Who asks: the role and the address of the request that is being served, for whoever acts on it.

Set by the server's middleware, read on the threads that serve the request. What no request has caused, the
collector's work for instance, has no caller and is no matter of roles. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from .errors import DashboardError

Role: TypeAlias = Literal["view", "control"]
VIEW_ONLY: Final = (
    "this address may only look; on the dashboard's machine, `dashboard url` prints the one for changes"
)


class ViewOnlyError(DashboardError):
    """Somebody who may only look has asked for a change."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has sent a request."""

    role: Role
    address: str
    """Of the machine, without a port; "" where it is not known."""

    def __str__(self) -> str:
        return f"{self.role} from {self.address or 'an unknown address'}"


_current: ContextVar[Caller | None] = ContextVar("nanscope_caller", default=None)


def current_caller() -> Caller | None:
    """Return who has sent the request that is being served; None where there is none."""
    return _current.get()


@contextlib.contextmanager
def served_for(caller: Caller) -> Iterator[None]:
    """Serve a request of somebody."""
    token = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(token)


def may_change() -> bool:
    """Whether what is being served may change something."""
    caller = _current.get()
    return caller is None or caller.role == "control"


def view_only_reason() -> str:
    """Return a sentence that says why nothing may be changed; "" where it may."""
    return "" if may_change() else f"{VIEW_ONLY[0].upper()}{VIEW_ONLY[1:]}."


def require_control() -> None:
    """Refuse somebody who may only look.

    Raises:
        ViewOnlyError: says which address may change something.
    """
    if not may_change():
        raise ViewOnlyError(VIEW_ONLY)
