"""What the routes answer for a run whose numbers are known, over real HTTP."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import api_server
import duckdb
import page_runs
import pytest
from api_server import RUN, call
from sample_runs import write_models

from dashboard.ingest.spool import ingest_spool
from dashboard.serving.server import Server
from probe.delivery.spool_care import is_starred

API = f"/api/v1/runs/{RUN}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests that change nothing."""
    with api_server.serving(tmp_path_factory.mktemp("api")) as started:
        api_server.fill(started, is_full=True)
        api_server.add_document(started, b'{"rss_bytes": 1}')
        yield started


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with api_server.serving(tmp_path) as started:
        api_server.fill(started)
        yield started


@pytest.mark.capability(52)
def test_debug_summary_has_the_documented_fields_and_each_event_once(server: Server) -> None:
    assert call(server, "/training-logs/debug/summary").json() == {
        "training_debugger": {
            "total_anomalies": 2,
            "debug_history_length": 2,
            "total_steps": 40,
            "anomaly_rate": 3 / 40,
            "gradient_explosion_rate": 1 / 40,
        },
        "diffusion_debugger": {"total_anomalies": 0, "debug_history_length": 0},
        "general_debugger": {"total_anomalies": 1, "debug_history_length": 1},
    }


@pytest.mark.capability(53)
@pytest.mark.parametrize("query", ["", f"?run={RUN}"])
def test_training_summary_counts_steps_and_rates(server: Server, query: str) -> None:
    assert call(server, f"/training-logs/debug/training/summary{query}").json() == {
        "total_steps": 40,
        "anomaly_steps": 3,
        "gradient_explosions": 1,
        "gradient_vanishing": 0,
        "loss_anomalies": 1,
        "anomaly_rate": 3 / 40,
        "loss_anomaly_rate": 1 / 40,
        "gradient_explosion_rate": 1 / 40,
        "gradient_vanishing_rate": 0.0,
    }


@pytest.mark.capability(54)
@pytest.mark.parametrize("path", ["level/advanced", "clear"])
def test_change_of_a_run_that_has_ended_is_a_conflict_with_a_sentence(server: Server, path: str) -> None:
    got = call(server, f"/training-logs/debug/{path}", method="POST")
    assert (got.status, got.json()["error"]["code"]) == (409, "conflict")
    assert got.problem == f"no training of run {RUN} is connected: it has ended, or its helper has"


def test_training_logs_without_a_run_are_not_found(tmp_path: Path) -> None:
    with api_server.serving(tmp_path) as empty:
        got = call(empty, "/training-logs/debug/summary")
    assert got.status == 404
    assert "probe.watch" in got.problem


def test_runs_are_read_page_by_page_newest_first(own_server: Server) -> None:
    for number in range(3):
        page_runs.fill(own_server.store, steps=range(1), run=f"r{number}", start_time=1.8e9 + number)
    found, cursor = [], ""
    while cursor is not None:
        page = call(own_server, f"/api/v1/runs?limit=2{cursor and '&cursor=' + cursor}").json()
        assert len(page["runs"]) <= 2
        found += [run["run"] for run in page["runs"]]
        cursor = page["next_cursor"]
    assert found == ["r2", "r1", "r0", RUN]


@pytest.mark.capability(55)
def test_events_are_filtered_and_paged(server: Server) -> None:
    first = call(server, f"{API}/events?severity=warning&limit=1").json()
    assert [event["kind"] for event in first["events"]] == ["gradient_explosion"]
    rest = call(server, f"{API}/events?severity=warning&limit=1&cursor={first['next_cursor']}").json()
    assert [event["kind"] for event in rest["events"]] == ["memory_leak"]
    assert rest["next_cursor"] is None
    by_step = call(server, f"{API}/events?first=8&end=12&kind=gradient_explosion&kind=nonfinite_loss").json()
    assert [event["step"] for event in by_step["events"]] == [9]


def test_event_by_its_id_names_numbers_that_are_not_finite(server: Server) -> None:
    (known,) = call(server, f"{API}/events?kind=nonfinite_loss").json()["events"]
    got = call(server, f"{API}/events/{known['id']}")
    assert got.json() == known
    assert got.json()["evidence"]["value"] == "NaN"
    assert call(server, f"{API}/events/{'0' * 16}").status == 404


@pytest.mark.capability(55)
def test_series_of_a_range_have_the_values_of_its_steps(server: Server) -> None:
    found = call(server, f"{API}/series/values?name=loss&name=log/accuracy&first=5&end=9").json()["series"]
    assert found["log/accuracy"]["step"] == [5, 6, 7, 8]
    assert found["log/accuracy"]["mean"] == [0.005, 0.006, 0.007, 0.008]
    assert found["loss"]["mean"][2] == "NaN"
    names = {one["name"] for one in call(server, f"{API}/series").json()["series"]}
    assert {"loss", "grad_norm", "log/accuracy"} <= names


def test_series_as_csv_have_the_same_values(server: Server) -> None:
    got = call(server, f"{API}/series/values?name=log/accuracy&first=5&end=9&format=csv")
    assert got.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(got.body.decode())))
    assert [(row["step"], float(row["mean"])) for row in rows] == [
        ("5", 0.005),
        ("6", 0.006),
        ("7", 0.007),
        ("8", 0.008),
    ]


def test_series_pooled_to_points_say_how_many_steps_each_has(server: Server) -> None:
    found = call(server, f"{API}/series/values?name=log/accuracy&points=3").json()["series"]["log/accuracy"]
    assert len(found["step"]) <= 3
    assert sum(found["pooled"]) == 40


def test_heatmap_has_a_row_a_layer_and_flags_what_is_not_finite(server: Server) -> None:
    found = call(server, f"{API}/heatmap?first=0&end=16&columns=16").json()
    layers = call(server, f"{API}/layers").json()
    assert found["rows"] == [layer["name"] for layer in layers["layers"]]
    column = found["steps"].index(7)
    assert found["flags"][0][column] & 2
    assert not found["flags"][-1][column] & 2
    assert call(server, f"{API}/heatmap?statistic=nothing").status == 404


def test_histograms_count_all_elements(server: Server) -> None:
    found = call(server, f"{API}/histograms?subject=embed.weight").json()
    assert {one["name"] for one in found["histograms"]} == {"gradient", "parameter"}
    assert all(sum(one["counts"]) == 200 for one in found["histograms"])
    assert len(found["histograms"][0]["counts"]) == len(found["edges"]) + 3
    assert "embed.weight" in call(server, f"{API}/histograms/subjects").json()["subjects"]


def test_documents_come_with_their_bodies_and_broken_ones_with_null(own_server: Server) -> None:
    api_server.add_document(own_server, b'{"rss_bytes": 5}')
    api_server.add_document(own_server, b"{broken", key="later")
    assert call(own_server, f"{API}/documents").json()["kinds"] == {"memory_snapshot": 2}
    found = call(own_server, f"{API}/snapshots").json()["documents"]
    assert {one["key"]: one["body"] for one in found} == {"start": {"rss_bytes": 5}, "later": None}
    assert call(own_server, f"{API}/documents/memory_snapshot?limit=1").json()["left_out"] == 1


def test_report_holds_summary_events_series_and_documents(server: Server) -> None:
    found = call(server, f"{API}/report").json()
    assert found["summary"]["total_anomalies"] == 3
    assert [event["step"] for event in found["events"]] == [7, 9, 12]
    assert found["series"]["log/accuracy"]["last"] == 0.039
    assert found["documents"]["memory_snapshot"][0]["body"] == {"rss_bytes": 1}


def test_delivery_accounts_for_every_record(server: Server) -> None:
    positions = call(server, f"{API}/delivery").json()["positions"]
    assert all(one["next_seq"] == one["stored"] + one["gaps"] + one["dropped"] for one in positions)
    assert {one["stream"]: one["stored"] for one in positions}["metrics"] == 40


def test_delivery_of_a_later_member_is_that_of_its_run(own_server: Server, tmp_path: Path) -> None:
    write_models(tmp_path / "models", "tried", [[0.5] * 2, [0.4] * 3])
    ingest_spool(own_server.store, tmp_path / "models")
    positions = call(own_server, "/api/v1/runs/tried.m1/delivery").json()["positions"]
    assert {one["stream"]: one["stored"] for one in positions} == {"events": 4, "metrics": 5}


@pytest.mark.capability(5)
@pytest.mark.parametrize("form", ["html", "json", "csv", "parquet"])
def test_export_is_a_download_with_the_runs_values(server: Server, form: str, tmp_path: Path) -> None:
    got = call(server, f"{API}/export?format={form}&end=20")
    assert got.headers["content-disposition"] == f'attachment; filename="nanscope-{RUN}.{form}"'
    if form == "html":
        assert b"<title>" in got.body
    elif form == "json":
        assert got.json()["series"]["log/accuracy"]["mean"][:3] == [0.0, 0.001, 0.002]
    else:
        path = tmp_path / f"export.{form}"
        path.write_bytes(got.body)
        chosen = f"SELECT step, mean FROM '{path}' WHERE name = 'log/accuracy' AND step < 3 ORDER BY step"
        assert duckdb.sql(chosen).fetchall() == [(0, 0.0), (1, 0.001), (2, 0.002)]
        layers = f"SELECT count(DISTINCT layer) FROM '{path}' WHERE name = 'grad_norm' AND layer <> ''"
        assert duckdb.sql(layers).fetchall() == [(27,)]


@pytest.mark.parametrize("form", ["html", "json", "csv", "parquet"])
def test_export_of_one_track_has_that_track_alone(server: Server, form: str, tmp_path: Path) -> None:
    got = call(server, f"{API}/export?format={form}&track=log/accuracy&first=2&end=6")
    assert got.headers["content-disposition"] == f'attachment; filename="nanscope-{RUN}-log_accuracy.{form}"'
    if form == "html":
        assert b"Covers steps 2 to 5." in got.body and b'id="chart-loss"' not in got.body
    elif form == "json":
        (series,) = got.json()["series"].values()
        assert series["mean"] == [0.002, 0.003, 0.004, 0.005]
    else:
        path = tmp_path / f"track.{form}"
        path.write_bytes(got.body)
        assert duckdb.sql(f"SELECT name, step, mean FROM '{path}' ORDER BY step").fetchall() == [
            ("log/accuracy", step, step / 1000) for step in range(2, 6)
        ]


def test_tracks_are_listed_and_each_can_be_exported(server: Server) -> None:
    tracks = call(server, f"{API}/tracks").json()["tracks"]
    assert {"loss", "grad_norm", "heatmap", "log/accuracy", "log/<b>bold</b>"} <= {
        one["id"] for one in tracks
    }
    for track in tracks:
        got = call(server, f"{API}/export?format=csv&track={quote(track['id'])}")
        names = {row["name"] for row in csv.DictReader(io.StringIO(got.body.decode()))}
        assert names == set(track["series"] or ["grad_norm"])
        assert re.fullmatch(r'attachment; filename="[\w.-]+"', got.headers["content-disposition"])


def test_export_of_an_unknown_track_lists_those_that_there_are(server: Server) -> None:
    got = call(server, f"{API}/export?format=csv&track=nosuch")
    assert (got.status, "choose one of loss" in got.problem) == (422, True)


def test_answer_that_has_not_changed_is_sent_once(own_server: Server) -> None:
    first = call(own_server, f"{API}/layers")
    again = call(
        own_server, f"{API}/layers", headers={**api_server.BEARER, "if-none-match": first.headers["etag"]}
    )
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    events = call(own_server, f"{API}/events").headers["etag"]
    page_runs.add_event(own_server.store, page_runs.event(20))
    assert (
        call(own_server, f"{API}/events", headers={**api_server.BEARER, "if-none-match": events}).status
        == 200
    )


def test_note_and_star_are_kept_and_the_folder_is_marked(own_server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "spool" / RUN
    folder.mkdir(parents=True)
    assert call(own_server, f"{API}/note", method="PUT", body={"note": "lr too high"}).status == 200
    assert call(own_server, f"{API}/star", method="PUT").json()["starred"] is True
    assert is_starred(folder)
    (row,) = call(own_server, "/api/v1/runs").json()["runs"]
    assert (row["note"], row["starred"]) == ("lr too high", True)
    assert call(own_server, f"{API}/star", method="DELETE").json()["starred"] is False
    assert not is_starred(folder)
    assert call(own_server, API).json()["note"] == "lr too high"


def test_note_too_long_is_refused(own_server: Server) -> None:
    got = call(own_server, f"{API}/note", method="PUT", body={"note": "x" * 4001})
    assert got.status == 422
    assert "note" in got.problem


def test_run_that_has_ended_is_deleted_with_its_folder(own_server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "spool" / RUN
    folder.mkdir(parents=True)
    page_runs.end_run(own_server.store)
    assert call(own_server, API, method="DELETE").json() == {"v": 1, "run": RUN}
    assert not folder.exists()
    assert call(own_server, API).status == 404


def test_run_that_is_still_written_is_not_deleted(own_server: Server) -> None:
    import time

    page_runs.fill(own_server.store, steps=range(2), run="live", start_time=time.time())
    got = call(own_server, "/api/v1/runs/live", method="DELETE")
    assert (got.status, got.problem) == (409, "run 'live' stays: it is still being written")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/api/v1/nothing", None, 404, "not_found"),
        ("GET", "/api/v1/runs/nobody", None, 404, "not_found"),
        ("GET", f"{API}/series?rank=7", None, 404, "not_found"),
        ("GET", f"{API}/export?format=csv&rank=7", None, 404, "not_found"),
        ("GET", f"{API}/tracks?rank=7", None, 404, "not_found"),
        ("GET", f"/export/json?run={RUN}&rank=55", None, 404, "not_found"),
        ("GET", f"{API}/export?first=5&end=2", None, 422, "invalid"),
        ("GET", f"/export/html?run={RUN}&first=5&end=2", None, 422, "invalid"),
        ("GET", f"{API}/export?track=nosuch", None, 422, "invalid"),
        ("PATCH", "/api/v1/runs", None, 405, "method_not_allowed"),
        ("GET", f"{API}/events?limit=0", None, 422, "invalid"),
        ("GET", f"{API}/events?first=9&end=3", None, 422, "invalid"),
        ("POST", f"{API}/control/level", b"{", 422, "invalid"),
        ("POST", f"{API}/control/preset", {"preset": "nothing"}, 422, "invalid"),
        ("POST", f"{API}/control/watchpoints", {"condition": "loss > lss"}, 422, "invalid"),
        ("POST", "/api/v1/runs/remove", b"x" * (1 << 20) + b"x", 413, "too_large"),
    ],
)
def test_refusals_have_one_form(
    server: Server, method: str, path: str, body: object, status: int, code: str
) -> None:
    got = call(server, path, method=method, body=body)
    assert (got.status, got.json()["error"]["code"]) == (status, code)
    assert got.problem


def test_unknown_path_is_a_page_with_a_link_home_to_a_browser(server: Server) -> None:
    got = call(server, "/<script>", headers={**api_server.BEARER, "accept": "text/html,*/*;q=0.8"})
    assert (got.status, got.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b'<a href="/">' in got.body
    assert b"<script>" not in got.body


def test_description_lists_routes_with_their_refusals(server: Server) -> None:
    document = json.loads(call(server, "/openapi.json").body)
    assert {"bearer", "header", "cookie"} == set(document["components"]["securitySchemes"])
    operation = document["paths"]["/api/v1/runs/{run}/events"]["get"]
    assert {"200", "304", "401", "403", "404", "422"} <= set(operation["responses"])
