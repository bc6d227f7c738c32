"""OpenTelemetry over HTTP: a stand-in for a collector, the form of what it gets, and the real messages."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import page_runs
import pytest
from receiver import Answer, Receiver, Request, receiving, wait_for

from dashboard.ingest.collector_status import CollectorStatus
from dashboard.outlets.families import Family, FamilyReader
from dashboard.outlets.news import News
from dashboard.outlets.otlp import OtlpThread
from dashboard.outlets.otlp_messages import logs_request, metrics_request
from dashboard.outlets.settings import OtlpPlace, Target, read_outlets
from dashboard.store.duck import DuckStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))
import api_server

from dashboard.serving.server import Server

ACCEPTED = Answer(200, {"content-type": "application/json"}, b"{}")
NOW = 1_700_000_000.25


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path / "data")
    page_runs.fill(opened, steps=range(5), bad={4: "nan"})
    yield opened
    opened.close()


def news(step: int = 7, **fields: Any) -> News:
    return News(run_name="train.py", event=page_runs.event(step, **fields))


@contextmanager
def sending(store: DuckStore, url: str, **options: Any) -> Iterator[OtlpThread]:
    target = Target(url=url, headers={"api-key": "k"}, timeout_s=5.0, attempts=2)
    reader = FamilyReader(store, collector=CollectorStatus)
    thread = OtlpThread(OtlpPlace(**{"interval_s": 3600.0, **options}), target, reader, first_wait_s=0.01)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def of_path(receiver: Receiver, path: str) -> list[Request]:
    return [request for request in receiver.requests if request.path == path]


def plain(attributes: list[dict[str, Any]]) -> dict[str, str]:
    """Attributes; every value is of one of the kinds that OTLP has, an integer as a string of digits."""
    found = {}
    for attribute in attributes:
        assert set(attribute) == {"key", "value"}
        ((kind, value),) = attribute["value"].items()
        assert kind in ("stringValue", "intValue")
        assert isinstance(value, str)
        assert kind == "stringValue" or value.isdecimal()
        found[attribute["key"]] = value
    assert len(found) == len(attributes)
    return found


def points_of(document: Any) -> dict[str, list[dict[str, Any]]]:
    """Metric -> its points, out of a request whose form is checked against the specification."""
    (resource,) = document["resourceMetrics"]
    assert plain(resource["resource"]["attributes"])["service.name"] == "nanscope"
    (scope,) = resource["scopeMetrics"]
    found = {}
    for metric in scope["metrics"]:
        (kind,) = set(metric) - {"name", "description", "unit"}
        assert kind in ("gauge", "sum")
        if kind == "sum":
            assert metric["sum"]["aggregationTemporality"] == 2
            assert metric["sum"]["isMonotonic"] is True
        for point in metric[kind]["dataPoints"]:
            assert point["timeUnixNano"].isdecimal()
            assert ("startTimeUnixNano" in point) == (kind == "sum")
            assert ("asInt" in point) != ("asDouble" in point)
        found[metric["name"]] = metric[kind]["dataPoints"]
    return found


def test_otlp_sends_metrics_and_an_event_as_a_log_record(store: DuckStore) -> None:
    with receiving(ACCEPTED) as collector, sending(store, collector.url) as thread:
        thread.offer([news()])
        wait_for(lambda: of_path(collector, "/v1/logs") and of_path(collector, "/v1/metrics"))
    metrics, logs = of_path(collector, "/v1/metrics")[0], of_path(collector, "/v1/logs")[0]
    for request in (metrics, logs):
        assert (request.headers["content-type"], request.headers["api-key"]) == ("application/json", "k")
    points = points_of(metrics.json())
    (loss,) = points["nanscope.loss"]
    assert (loss["asDouble"], plain(loss["attributes"])) == ("NaN", {"run": "demo-run", "rank": "0"})
    assert points["nanscope.step"][0]["asInt"] == "4"
    (record,) = logs.json()["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert (record["severityNumber"], record["severityText"]) == (17, "critical")
    assert record["timeUnixNano"] == "1700000000700000000"
    assert record["body"]["stringValue"].startswith("NaN first at step 7")
    attributes = plain(record["attributes"])
    assert attributes["nanscope.event.kind"] == "nonfinite_loss"
    assert (attributes["nanscope.step"], attributes["nanscope.origin.op"]) == ("7", "aten.div")


def test_otlp_sends_metrics_again_at_its_interval_and_once_more_at_the_end(store: DuckStore) -> None:
    with receiving(ACCEPTED) as collector:
        with sending(store, collector.url, interval_s=1.0):
            wait_for(lambda: len(of_path(collector, "/v1/metrics")) >= 2)
            count = len(of_path(collector, "/v1/metrics"))
        assert len(of_path(collector, "/v1/metrics")) > count


def test_otlp_sends_only_the_severities_that_are_asked_for(store: DuckStore) -> None:
    with receiving(ACCEPTED) as collector, sending(store, collector.url, severities=("critical",)) as thread:
        thread.offer([news(1, severity="info"), news(2)])
        wait_for(lambda: of_path(collector, "/v1/logs"))
    records = of_path(collector, "/v1/logs")[0].json()["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert [plain(record["attributes"])["nanscope.step"] for record in records] == ["2"]


def test_otlp_tries_again_and_shows_a_collector_that_fails(store: DuckStore) -> None:
    with receiving(Answer(503), Answer(503), ACCEPTED) as collector:
        with sending(store, collector.url) as thread:
            wait_for(lambda: thread.status.failed == 1)
            assert thread.status.problem == "it answered 503"
            thread.offer([news()])
            wait_for(lambda: thread.status.sent == 1)
            assert thread.status.problem is None


def test_otlp_counts_what_the_collector_throws_away_and_logs_it_once(
    store: DuckStore, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"partialSuccess": {"rejectedLogRecords": "2", "errorMessage": "SECRET"}}).encode()
    with caplog.at_level(logging.INFO), receiving(Answer(200, {}, body)) as collector:
        with sending(store, collector.url) as thread:
            wait_for(lambda: thread.status.dropped == 2)
    assert [record.message for record in caplog.records] == [
        "outlet otlp: the collector has thrown away 2 records or points"
    ]


@pytest.mark.parametrize(
    "body", [b"", b"\x0a\x00", b"[]", b'{"partialSuccess": {"rejectedDataPoints": "x"}}']
)
def test_otlp_takes_any_answer_of_a_collector(store: DuckStore, body: bytes) -> None:
    with receiving(Answer(200, {}, body)) as collector, sending(store, collector.url) as thread:
        wait_for(lambda: thread.status.sent == 1)
        assert (thread.status.dropped, thread.status.problem) == (0, None)


def test_otlp_messages_are_what_protobuf_reads() -> None:
    proto = "opentelemetry.proto.collector.logs.v1.logs_service_pb2"
    pytest.importorskip(proto, reason="opentelemetry-proto is not installed; make trackers runs this with it")
    from google.protobuf import json_format
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    family = Family("nanscope.x", "gauge", "s", "X.")
    for value in (1, 0.5, float("nan"), float("inf"), -float("inf")):
        family.add(value, run="r")
    counter = Family("nanscope.y", "counter", "", "Y.")
    counter.add(3)
    body = metrics_request([family, counter], now=NOW, since=NOW - 1)
    metrics = json_format.Parse(body, ExportMetricsServiceRequest())
    gauge, total = metrics.resource_metrics[0].scope_metrics[0].metrics
    assert [point.as_int or repr(point.as_double) for point in gauge.gauge.data_points] == [
        1, "0.5", "nan", "inf", "-inf",
    ]  # fmt: skip
    assert gauge.gauge.data_points[0].time_unix_nano == 1_700_000_000_250_000_000
    assert (total.sum.is_monotonic, total.sum.data_points[0].start_time_unix_nano) == (
        True,
        1_699_999_999_250_000_000,
    )
    logs = json_format.Parse(logs_request([news()], now=NOW), ExportLogsServiceRequest())
    (record,) = logs.resource_logs[0].scope_logs[0].log_records
    assert (record.severity_number, record.event_name) == (17, "nanscope.nonfinite_loss")


@pytest.mark.capability(6)
def test_serve_sends_metrics_and_events_to_a_collector(tmp_path: Path) -> None:
    with receiving(ACCEPTED) as collector:
        path = tmp_path / "outlets.toml"
        path.write_text('[otlp]\nurl_env = "COLLECTOR"\ninterval_s = 1\n')
        server = Server(
            port=0,
            ingest="tcp://127.0.0.1:0",
            data=tmp_path / "data",
            spool=tmp_path / "spool",
            outlets=read_outlets(path, {"COLLECTOR": collector.url}),
            environment={"XDG_STATE_HOME": str(tmp_path / "state"), "NANSCOPE_TOKEN": api_server.TOKEN},
        )
        server.start()
        try:
            page_runs.fill(server.store, steps=range(3))
            page_runs.add_event(server.store, page_runs.event(2, time=time.time()))
            wait_for(lambda: of_path(collector, "/v1/logs"))
        finally:
            server.stop()
    last = points_of(of_path(collector, "/v1/metrics")[-1].json())
    assert last["nanscope.step"][0]["asInt"] == "2"
    (critical,) = [
        point for point in last["nanscope.events"] if plain(point["attributes"])["severity"] == "critical"
    ]
    assert critical["asInt"] == "1"
