"""`/metrics` on a real server: what it says, its form, its bounds, and who may read it."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import page_runs
import pytest

from dashboard.ingest.collector_status import CollectorStatus
from dashboard.outlets import families as families_module
from dashboard.outlets.exposition import exposition
from dashboard.outlets.families import MOST_CHARACTERS, Family, FamilyReader
from dashboard.outlets.status import OutletStatus
from dashboard.serving.server import Server
from dashboard.store.duck import DuckStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))
import api_server
from exposition_text import Key, read_exposition

NAME = 'a "quoted" \\ name\nof two lines'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with api_server.serving(tmp_path) as started:
        yield started


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path / "data", clock=lambda: 1_700_000_010.0)
    yield opened
    opened.close()


def metrics(server: Server) -> dict[Key, float]:
    got = api_server.call(server, "/metrics")
    assert (got.status, got.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return read_exposition(got.body.decode())


def of(store: DuckStore, **outlets: OutletStatus) -> dict[Key, float]:
    reader = FamilyReader(store, collector=CollectorStatus, outlets=lambda: list(outlets.values()))
    return read_exposition(exposition(reader.read()))


def value(found: dict[Key, float], metric: str, /, **labels: str) -> float:
    return found[metric, frozenset(labels.items())]


@pytest.mark.capability(6)
def test_metrics_say_the_newest_numbers_of_a_run_and_count_its_events(server: Server) -> None:
    api_server.fill(server, steps=40)
    found = metrics(server)
    last = page_runs.frame(39, page_runs.layout(), time=0).scalars
    rank = {"run": api_server.RUN, "rank": "0"}
    assert value(found, "nanscope_step", **rank) == 39
    assert value(found, "nanscope_loss", **rank) == pytest.approx(last["loss"])
    assert value(found, "nanscope_grad_norm", **rank) == pytest.approx(last["grad_norm"])
    assert value(found, "nanscope_step_time_seconds", **rank) == 0.1
    assert value(found, "nanscope_step_timestamp_seconds", **rank) == pytest.approx(1_700_000_003.9)
    counted = {
        (dict(labels)["severity"], dict(labels)["kind"]): number
        for (name, labels), number in found.items()
        if name == "nanscope_events_by_kind_total"
    }
    assert counted == {
        ("critical", "nonfinite_loss"): 1,
        ("warning", "gradient_explosion"): 1,
        ("warning", "memory_leak"): 1,
    }
    assert value(found, "nanscope_records_stored_total", run=api_server.RUN, stream="metrics") == 40
    assert value(found, "nanscope_ingest_store_up") == 1


def test_metrics_count_events_from_zero_so_that_a_rate_sees_the_first(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(1))
    page_runs.add_event(store, page_runs.event(0, severity="warning"))
    found = of(store)
    counts = [
        value(found, "nanscope_events_total", run="demo-run", severity=severity)
        for severity in ("critical", "warning", "info")
    ]
    assert counts == [0, 1, 0]


def test_metrics_without_the_token_are_refused(server: Server) -> None:
    assert api_server.call(server, "/metrics", headers={}).status == 401


def test_metrics_of_an_empty_store_are_well_formed(server: Server) -> None:
    assert value(metrics(server), "nanscope_runs") == 0


def test_metrics_follow_a_run_that_goes_on(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(3))
    reader = FamilyReader(store, collector=CollectorStatus)
    before = read_exposition(exposition(reader.read()))
    page_runs.fill(store, steps=range(3, 5), bad={4: "nan"})
    after = read_exposition(exposition(reader.read()))
    rank = {"run": "demo-run", "rank": "0"}
    assert math.isfinite(value(before, "nanscope_loss", **rank))
    assert math.isnan(value(after, "nanscope_loss", **rank))
    assert value(after, "nanscope_step", **rank) == 4


def test_metrics_of_an_infinite_loss_are_infinite(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(3), bad={2: "inf"})
    assert value(of(store), "nanscope_loss", run="demo-run", rank="0") == math.inf


def test_metrics_escape_what_a_training_is_called(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(1), name=NAME)
    labels = {"run": "demo-run", "name": NAME, "model": "", "group": ""}
    assert value(of(store), "nanscope_run_info", **labels) == 1


def test_metrics_shorten_long_names(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(1), name="x" * 4000)
    (name,) = [dict(labels)["name"] for key, labels in of(store) if key == "nanscope_run_info"]
    assert name == "x" * MOST_CHARACTERS


def test_metrics_of_kinds_that_are_not_known_are_one(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(1))
    page_runs.add_event(store, *(page_runs.event(0, kind=f"mine_{number}") for number in range(5)))
    found = of(store)
    assert (
        value(found, "nanscope_events_by_kind_total", run="demo-run", severity="critical", kind="other") == 5
    )


def test_metrics_keep_runs_that_are_written_and_bound_the_others(
    store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families_module, "MOST_RUNS", 2)
    for number in range(4):
        page_runs.fill(store, steps=range(1), run=f"r{number}", start_time=1_700_000_000.0 + number)
        if number:
            page_runs.end_run(store, run=f"r{number}")
    found = of(store)
    shown = {dict(labels)["run"] for name, labels in found if name == "nanscope_run_info"}
    assert shown == {"r0", "r3"}
    assert value(found, "nanscope_runs_left_out") == 2


def test_metrics_of_an_outlet_say_what_it_has_lost(store: DuckStore) -> None:
    status = OutletStatus(name="ops", kind="slack", sent=3, failed=2, dropped=1)
    found = of(store, ops=status)
    assert value(found, "nanscope_outlet_failed_total", outlet="ops") == 2


def test_exposition_of_hostile_labels_is_read_back_by_prometheus_own_client() -> None:
    if importlib.util.find_spec("prometheus_client") is None:
        pytest.skip("prometheus_client is not installed")
    from prometheus_client.parser import text_string_to_metric_families

    family = Family("nanscope.x", "counter", "", "Help \\ with\na line.")
    family.add(1.5, name=NAME)
    (read,) = text_string_to_metric_families(exposition([family]))
    assert (read.type, read.documentation) == ("counter", family.text)
    assert [(sample.labels["name"], sample.value) for sample in read.samples] == [(NAME, 1.5)]


@pytest.fixture
def promtool() -> str:
    """Prometheus' own program; where `make trackers` could not fetch it, its log says why."""
    beside = Path(sys.prefix)
    path = shutil.which("promtool", path=os.pathsep.join((str(beside / "bin"), os.environ["PATH"])))
    if path is None:
        log = beside / "promtool.log"
        said = log.read_text().split("\n")[-2:-1] if log.exists() else []
        pytest.skip(f"promtool is not there: {said[0] if said else 'make trackers fetches it'}")
    return path


def checked(promtool: str, text: str | bytes) -> tuple[int, str]:
    """How `promtool check metrics` ends, and what it says; it says nothing of what is in order."""
    body = text if isinstance(text, bytes) else text.encode()
    done = subprocess.run(
        [promtool, "check", "metrics"], input=body, capture_output=True, timeout=60, check=False
    )
    return done.returncode, (done.stdout + done.stderr).decode()


def test_metrics_of_a_server_pass_prometheus_own_check(server: Server, promtool: str) -> None:
    api_server.fill(server, steps=40, is_full=True)
    page_runs.fill(server.store, steps=range(5), run="hostile", name=NAME, bad={4: "nan"})
    page_runs.fill(server.store, steps=range(5), run="infinite", rank=1, bad={4: "inf"})
    text = api_server.call(server, "/metrics").body
    assert b'name="a \\"quoted\\"' in text
    assert b"} NaN\n" in text
    assert b"} +Inf\n" in text
    assert checked(promtool, text) == (0, "")


def test_metrics_of_outlets_pass_prometheus_own_check(store: DuckStore, promtool: str) -> None:
    status = OutletStatus(name=NAME, kind="slack", sent=3, failed=2, dropped=1)
    reader = FamilyReader(store, collector=CollectorStatus, outlets=lambda: [status])
    assert checked(promtool, exposition(reader.read())) == (0, "")


@pytest.mark.parametrize(
    "broken",
    [
        "# HELP nanscope_x Text.\n# TYPE nanscope_x counter\nnanscope_x 1\n",
        '# HELP nanscope_x Text.\n# TYPE nanscope_x gauge\nnanscope_x{a="\n"} 1\n',
        "# HELP nanscope_x Text.\n# TYPE nanscope_x gauge\nnanscope_x one\n",
        "# TYPE nanscope_x gauge\nnanscope_x 1\n",
    ],
    ids=["counter without total", "line feed in a label", "no number", "no help"],
)
def test_what_prometheus_own_check_refuses_our_reader_of_the_format_does_too(
    broken: str, promtool: str
) -> None:
    code, said = checked(promtool, broken)
    assert code != 0
    assert said
    with pytest.raises(AssertionError):
        read_exposition(broken)
