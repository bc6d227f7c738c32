"""Families and news as requests of OTLP/HTTP in its JSON encoding. Pure.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: names in lowerCamelCase, 64-bit integers as
decimal strings, enumerations as numbers; NaN and infinity as protobuf's JSON has them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from probe import __version__

from .families import Family, Sample
from .news import News

METRICS_PATH: Final = "/v1/metrics"
LOGS_PATH: Final = "/v1/logs"
CUMULATIVE: Final = 2
SEVERITY_NUMBERS: Final = {"critical": 17, "warning": 13, "info": 9}
"""ERROR, WARN, INFO: https://opentelemetry.io/docs/specs/otel/logs/data-model/#field-severitynumber."""
_SCOPE: Final = {"name": "nanscope", "version": __version__}


def metrics_request(families: Iterable[Family], *, now: float, since: float) -> bytes:
    """Return all families as one request.

    Args:
        families: What to send.
        now: When they were read; UNIX seconds.
        since: When counting began, as far as the receiver is concerned; UNIX seconds.
    """
    metrics = [_metric(family, now=_nanoseconds(now), since=_nanoseconds(since)) for family in families]
    scope = {"scope": _SCOPE, "metrics": metrics}
    return _encoded({"resourceMetrics": [{"resource": _resource(), "scopeMetrics": [scope]}]})


def logs_request(news: Sequence[News], *, now: float) -> bytes:
    """Return a log record for each event."""
    scope = {"scope": _SCOPE, "logRecords": [_record(each, observed=_nanoseconds(now)) for each in news]}
    return _encoded({"resourceLogs": [{"resource": _resource(), "scopeLogs": [scope]}]})


def rejected(answer: bytes) -> int:
    """Return how many points or records the receiver says that it has thrown away, out of its answer."""
    try:
        partial = json.loads(answer).get("partialSuccess") or {}
        return sum(int(partial.get(name) or 0) for name in ("rejectedDataPoints", "rejectedLogRecords"))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return 0


def _metric(family: Family, *, now: str, since: str) -> dict[str, Any]:
    metric: dict[str, Any] = {"name": family.name, "description": family.text, "unit": family.unit or "1"}
    points = [_point(sample, now) for sample in family.samples]
    if family.kind == "gauge":
        return {**metric, "gauge": {"dataPoints": points}}
    points = [{"startTimeUnixNano": since, **point} for point in points]
    return {
        **metric,
        "sum": {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": True},
    }


def _point(sample: Sample, now: str) -> dict[str, Any]:
    point: dict[str, Any] = {"timeUnixNano": now, "attributes": _attributes(dict(sample.labels))}
    if isinstance(sample.value, int):
        return {**point, "asInt": str(sample.value)}
    return {**point, "asDouble": _double(sample.value)}


def _double(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _record(news: News, *, observed: str) -> dict[str, Any]:
    event = news.event
    origin = event.origin
    attributes: dict[str, str | int] = {
        "nanscope.run": event.run,
        "nanscope.run_name": news.run_name,
        "nanscope.rank": event.rank,
        "nanscope.step": event.step,
        "nanscope.event.id": event.id,
        "nanscope.event.kind": event.kind,
        "nanscope.event.subject": event.subject,
        "nanscope.model": event.model,
        "nanscope.origin.op": origin.op if origin else "",
        "nanscope.origin.module": (origin.module or "") if origin else "",
    }
    return {
        "timeUnixNano": _nanoseconds(event.time),
        "observedTimeUnixNano": observed,
        "severityNumber": SEVERITY_NUMBERS[event.severity],
        "severityText": event.severity,
        "eventName": f"nanscope.{event.kind}",
        "body": {"stringValue": event.message},
        "attributes": _attributes({name: value for name, value in attributes.items() if value != ""}),
    }


def _resource() -> dict[str, Any]:
    return {"attributes": _attributes({"service.name": "nanscope", "service.version": __version__})}


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


def _nanoseconds(unix_s: float) -> str:
    # A float of today's UNIX time has no nanoseconds.
    return str(max(0, round(unix_s * 1e6)) * 1000)


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
