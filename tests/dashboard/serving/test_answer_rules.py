"""Who may keep an answer, and that a body is JSON: for every route of a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api_server
import pytest
from api_server import BEARER, RUN, TOKEN, Got, call

from dashboard.serving.answer_rules import ASK_AGAIN, FOR_EVER, NO_STORE, asset_versions, cache_rule
from dashboard.serving.api.export_routes import download
from dashboard.serving.server import Server

NAMES = {"run": RUN, "kind": "memory_snapshot", "event": "0" * 16, "level": "basic", "key": "x", "note": "n1"}
VERSIONS = {"/assets/a.js": "m=1.5"}
JSON = {"content-type": "application/json"}
CONTROL = f"/api/v1/runs/{RUN}/control"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_server.serving(tmp_path_factory.mktemp("rules")) as started:
        api_server.fill(started)
        yield started


@pytest.fixture(scope="module")
def described(server: Server) -> dict[str, dict[str, Any]]:
    """Path, filled in -> its operations, of everything that /openapi.json has."""
    paths: dict[str, dict[str, Any]] = call(server, "/openapi.json").json()["paths"]
    return {path.format(**NAMES): operations for path, operations in paths.items()}


def cookie(server: Server) -> dict[str, str]:
    """What the page's own scripts send along."""
    own = api_server.session(server, TOKEN)
    return {**own, "cookie": f"a=b; {own['cookie']}"}


def send(
    server: Server, path: str, *, method: str = "POST", body: bytes | None = None, **headers: str
) -> Got:
    """Ask with these headers alone, and no others: `call` says that it sends JSON."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(server, path, method=method, body=body, headers={"content-type": "", **named})


@pytest.mark.parametrize(
    ("path", "query", "status", "rule"),
    [
        ("/", "", 200, NO_STORE),
        ("/assets/a.js", "m=1.5", 200, FOR_EVER),
        ("/assets/a.js", "m=1.5", 304, FOR_EVER),
        ("/assets/a.js", "m=1.5", 404, NO_STORE),
        ("/assets/a.js", "m=1.4", 200, ASK_AGAIN),
        ("/assets/a.js", "m=1.5&x", 200, ASK_AGAIN),
        ("/assets/a.js", "", 200, ASK_AGAIN),
        ("/assets/b.js", "m=1.5", 200, ASK_AGAIN),
        (
            "/_dash-component-suites/dash/dash-renderer/build/dash_renderer.v4_4_1m17.min.js",
            "",
            200,
            FOR_EVER,
        ),
        (
            "/_dash-component-suites/dash/dash-renderer/build/dash_renderer.v4_4_1m17.min.js",
            "",
            404,
            NO_STORE,
        ),
        ("/_dash-component-suites/plotly/package_data/plotly.min.js", "", 200, ASK_AGAIN),
        ("/_dash-component-suites/plotly.v1m1.d/plotly.js", "", 200, ASK_AGAIN),
        ("/api/v1/runs/assets", "m=1.5", 200, NO_STORE),
        ("/assetsx", "", 200, NO_STORE),
    ],
)
def test_cache_rule_of_an_answer(path: str, query: str, status: int, rule: str) -> None:
    assert cache_rule(path, query, status, VERSIONS) == rule


def test_asset_versions_name_each_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.js", "sub/b.css"):
        (tmp_path / name).write_text("x")
    assert set(asset_versions(tmp_path)) == {"/assets/a.js", "/assets/sub/b.css"}


def test_all_that_the_page_loads_is_kept_for_ever_and_privately(server: Server) -> None:
    page = call(server, "/").body.decode()
    addresses = [one for one in re.findall(r'(?:src|href)="(/[^"]+)"', page) if "ns_icon" not in one]
    assert len(addresses) > 50
    assert {call(server, one).headers["cache-control"] for one in addresses} == {FOR_EVER}


@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies", "/openapi.json", "/nothing"])
def test_page_is_not_stored(server: Server, path: str) -> None:
    assert call(server, path).headers["cache-control"] == NO_STORE


def test_no_described_route_is_stored(server: Server, described: dict[str, dict[str, Any]]) -> None:
    """Whatever it answers, refusals too."""
    routes = [(path, method.upper()) for path, methods in described.items() for method in methods]
    got = {(path, method): call(server, path, method=method) for path, method in routes if method != "DELETE"}
    assert len(got) > 40
    assert {route for route, answer in got.items() if answer.headers["cache-control"] != NO_STORE} == set()
    assert {answer.status for answer in got.values()} >= {200, 404, 409, 422}


def test_answer_still_has_a_tag_for_programs_that_keep_it(server: Server) -> None:
    path = f"/api/v1/runs/{RUN}"
    tag = call(server, path).headers["etag"]
    again = call(server, path, headers={**BEARER, "if-none-match": tag})
    assert (again.status, again.body, again.headers["cache-control"]) == (304, b"", NO_STORE)


def test_every_range_that_ends_before_it_begins_is_refused(
    server: Server, described: dict[str, dict[str, Any]]
) -> None:
    ranged = [
        path
        for path, operations in described.items()
        if {"first", "end"} <= {one["name"] for one in operations.get("get", {}).get("parameters", [])}
    ]
    assert len(ranged) >= 6
    given = f"first=5&end=2&run={RUN}&name=loss&subject=head"
    answers = {path: call(server, f"{path}?{given}") for path in ranged}
    assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(ranged, 422)
    assert all("end=2 lies before first=5" in answer.problem for answer in answers.values())


def test_every_route_with_a_rank_does_not_know_an_absent_one(
    server: Server, described: dict[str, dict[str, Any]]
) -> None:
    """Events and documents of a rank without any are an empty list."""
    ranked = [
        path
        for path, operations in described.items()
        if any(
            one["name"] == "rank" and one["schema"].get("type") == "integer"
            for one in operations.get("get", {}).get("parameters", [])
        )
    ]
    assert len(ranked) >= 10
    answers = {
        path: call(server, f"{path}?rank=55&run={RUN}&name=loss&subject=head").status for path in ranked
    }
    assert answers == dict.fromkeys(ranked, 404)


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "text/json",
        "application/json, text/plain",
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_body_that_is_not_called_json_is_refused(server: Server, kind: str, method: str) -> None:
    got = send(server, CONTROL, method=method, body=b'{"do": "resume"}', content_type=kind, **BEARER)
    assert (got.status, got.json()["error"]["code"]) == (415, "not_json")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON ;charset=utf-8"])
def test_body_that_is_called_json_passes(server: Server, kind: str) -> None:
    got = send(server, CONTROL, body=b'{"do": "resume"}', content_type=kind, **BEARER)
    assert got.status == 409  # no training is there


@pytest.mark.parametrize("path", [f"{CONTROL}/resume", "/training-logs/debug/clear", "/nothing"])
def test_change_without_a_body_needs_no_type_with_a_bearer_token(server: Server, path: str) -> None:
    assert send(server, path, **BEARER).status in (404, 409)


def test_change_with_the_cookie_needs_the_type_without_a_body_too(server: Server) -> None:
    assert send(server, f"{CONTROL}/resume", **cookie(server)).status == 415
    assert send(server, f"{CONTROL}/resume", **cookie(server), **JSON).status == 409
    assert send(server, f"{CONTROL}/resume", **cookie(server), **BEARER).status == 415


def test_callback_with_another_type_is_refused(server: Server) -> None:
    got = send(server, "/_dash-update-component", body=b"{}", content_type="text/plain", **cookie(server))
    assert got.status == 415


@pytest.mark.parametrize(
    "name",
    ['x"; filename="evil.exe', "../x", "a\r\nset-cookie: a=b", "\u202egnp", "", "a/b\\c;d"],
)
def test_name_of_a_download_is_letters_alone(name: str) -> None:
    header = download(b"x", name=name, form="csv").headers["content-disposition"]
    assert re.fullmatch(r'attachment; filename="nanscope-[A-Za-z0-9._-]*\.csv"', header)
