"""Reads the file of `dashboard serve --outlets`: which webhooks there are, and where OpenTelemetry goes.

TOML, or JSON where the file ends in `.json`. Addresses and secrets may stand in it, in the environment
(`url_env`) or in a file of their own (`url_file`); no message of ours repeats one.
"""

from __future__ import annotations

import json
import stat
import tomllib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from probe.wire.records import SEVERITIES, Severity

from ..errors import DashboardError

VARIABLE: Final = "NANSCOPE_OUTLETS"
_NAME = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
_OWN: Final = frozenset({"content-type", "content-length", "host"})


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a webhook and OpenTelemetry have in common: an address, and patience."""

    url: str | None = None
    url_env: str | None = None
    """Variable that holds the address."""
    url_file: str | None = None
    """File whose text is the address."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    """For each read and write of a request."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 6
    """How often a request is tried."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class Webhook(Place, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table `[[webhook]]`."""

    name: _NAME
    kind: Literal["json", "slack", "discord"] = "json"
    secret: str | None = None
    """Signs each request; so do the next two."""
    secret_env: str | None = None
    secret_file: str | None = None
    severities: Annotated[tuple[Severity, ...], msgspec.Meta(min_length=1)] = ("critical", "warning")
    kinds: tuple[str, ...] = ()
    """Kinds of events; empty: all."""
    group_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    """How long the first event of a message waits for others."""
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=600)] = 6
    """Most messages in a minute; what comes meanwhile is in the next one."""


class OtlpPlace(Place, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[otlp]`; its address is that of the collector, without `/v1/metrics`."""

    headers: dict[str, str] = {}
    headers_env: str | None = None
    """Variable that holds them as `name=value,name=value`, like OTEL_EXPORTER_OTLP_HEADERS."""
    interval_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 15.0
    """Between two sendings of metrics."""
    severities: tuple[Severity, ...] = SEVERITIES
    """Events that are sent as log records; empty: none."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    webhook: Annotated[list[Webhook], msgspec.Meta(max_length=16)] = []
    otlp: OtlpPlace | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go, and how; looked up whole. It is never logged."""

    url: str
    headers: dict[str, str] = {}
    secret: bytes | None = None
    timeout_s: float
    attempts: int

    def __repr__(self) -> str:
        return "Target(...)"


class Outlets(msgspec.Struct, frozen=True, kw_only=True):
    """All that the file says."""

    webhooks: list[tuple[Webhook, Target]] = []
    otlp: tuple[OtlpPlace, Target] | None = None


def chosen_outlets(path: Path | None, environment: Mapping[str, str]) -> Outlets | None:
    """Read the file that was given, or else the one that `NANSCOPE_OUTLETS` names; None where neither is.

    Raises:
        DashboardError: as `read_outlets`.
    """
    if path is None and environment.get(VARIABLE):
        path = Path(environment[VARIABLE]).expanduser()
    return None if path is None else read_outlets(path, environment)


def read_outlets(path: Path, environment: Mapping[str, str]) -> Outlets:
    """Read and check the file.

    Raises:
        DashboardError: it cannot be read, says something that is not allowed, or others may read its secrets.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        found = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise DashboardError(f"{path}: {error}; see docs/outlets.md") from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and endless nesting
        form = "JSON" if path.suffix == ".json" else "TOML"
        raise DashboardError(f"{path} is no {form}: {type(error).__name__}; see docs/outlets.md") from None
    except OSError as error:
        raise DashboardError(f"cannot read {path}: {error.strerror or error}") from None
    _require_private(path, found)
    names = [hook.name for hook in found.webhook]
    if twice := sorted({name for name in names if names.count(name) > 1} | ({"otlp"} & set(names))):
        raise DashboardError(f"{path}: each outlet needs a name of its own; {twice[0]!r} is taken")
    look_up = _LookUp(path, environment)
    return Outlets(
        webhooks=[(hook, look_up.webhook(hook)) for hook in found.webhook],
        otlp=None if found.otlp is None else (found.otlp, look_up.otlp(found.otlp)),
    )


def _require_private(path: Path, found: _File) -> None:
    """An address of Slack or Discord is a secret, too."""
    places: list[Place] = [*found.webhook, *([found.otlp] if found.otlp else [])]
    holds = any(place.url is not None for place in places) or any(hook.secret for hook in found.webhook)
    if holds and path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise DashboardError(
            f"{path} holds addresses or secrets, and every user of this machine may read it: "
            f"chmod 600 {path}, "
            "or name them by url_env, url_file, secret_env and secret_file"
        )


class _LookUp:
    """Finds what the file only names."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self._path, self._environment = path, environment

    def webhook(self, hook: Webhook) -> Target:
        where = f"webhook {hook.name}"
        secret = self._text(where, "secret", hook, is_needed=False)
        url = self._url(where, hook)
        return Target(
            url=url,
            secret=secret.encode() if secret else None,
            timeout_s=hook.timeout_s,
            attempts=hook.attempts,
        )

    def otlp(self, place: OtlpPlace) -> Target:
        headers = dict(place.headers)
        if place.headers_env is not None:
            headers |= self._headers(place.headers_env)
        for name, value in headers.items():
            plain = name.replace("-", "").replace("_", "")
            is_header = plain.isascii() and plain.isalnum() and value.isascii() and value.isprintable()
            if not is_header or name.lower() in _OWN:
                raise self._error("otlp", f"{name!r} is not a header that can be set")
        url = self._url("otlp", place).rstrip("/")
        return Target(url=url, headers=headers, timeout_s=place.timeout_s, attempts=place.attempts)

    def _headers(self, variable: str) -> dict[str, str]:
        pairs = self._variable("otlp", variable).split(",")
        split = [pair.partition("=") for pair in pairs if pair.strip()]
        return {name.strip(): urllib.parse.unquote(value.strip()) for name, _, value in split}

    def _url(self, where: str, place: Place) -> str:
        url = self._text(where, "url", place, is_needed=True) or ""
        try:
            parts = urllib.parse.urlsplit(url)
            is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_right = False
        if not is_right or not url.isascii() or not url.isprintable() or " " in url or parts.username:
            raise self._error(where, "its address must be http://HOST/... or https://HOST/...")
        return url

    def _text(self, where: str, name: str, place: Any, *, is_needed: bool) -> str | None:
        """Return the one of `NAME`, `NAME_env` and `NAME_file` that is given."""
        fields = (name, f"{name}_env", f"{name}_file")
        given = [field for field in fields if getattr(place, field) is not None]
        if len(given) > 1 or (is_needed and not given):
            raise self._error(where, f"needs one of {', '.join(fields)}, and has {len(given)}")
        if not given:
            return None
        value: str = getattr(place, given[0])
        if given[0].endswith("_env"):
            value = self._variable(where, value)
        elif given[0].endswith("_file"):
            file = self._path.parent / Path(value).expanduser()
            try:
                value = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                raise self._error(where, f"cannot read its {given[0]}, {file}") from None
        if not value.strip():
            raise self._error(where, f"its {given[0]} is empty")
        return value.strip()

    def _variable(self, where: str, name: str) -> str:
        if name not in self._environment:
            raise self._error(where, f"the environment has no variable {name}")
        return self._environment[name]

    def _error(self, where: str, what: str) -> DashboardError:
        return DashboardError(f"{self._path}: {where}: {what}")
