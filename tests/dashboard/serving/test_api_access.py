"""Who may call: every route of the description refuses who shows no token, or comes from another site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import api_server
import pytest
from api_server import BEARER, TOKEN, call

from dashboard.serving.server import Server

UNSAFE = {"post", "put", "delete"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_server.serving(tmp_path_factory.mktemp("access")) as started:
        api_server.fill(started, steps=3)
        yield started


@pytest.fixture(scope="module")
def routes(server: Server) -> list[tuple[str, str]]:
    """(method, path) of everything that is described, about the run that is there."""
    names = {"run": api_server.RUN, "kind": "profile", "event": "0" * 16, "level": "basic"}
    names |= {"key": "x", "note": "n1"}
    paths: dict[str, Any] = call(server, "/openapi.json").json()["paths"]
    found = [(method, path.format(**names)) for path, methods in paths.items() for method in methods]
    assert len(found) > 40
    return found


def answers(server: Server, routes: list[tuple[str, str]], headers: dict[str, str]) -> set[int]:
    return {call(server, path, method=method.upper(), headers=headers).status for method, path in routes}


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}]
)
def test_routes_without_a_right_token_refuse(
    server: Server, routes: list[tuple[str, str]], headers: dict[str, str]
) -> None:
    # The first of wrong tokens are refused as such, all after them for their number.
    assert answers(server, routes, headers) <= {401, 429}


def test_routes_from_another_site_refuse_even_with_a_token(
    server: Server, routes: list[tuple[str, str]]
) -> None:
    assert answers(server, routes, {**BEARER, "origin": "http://evil.example"}) == {403}


def test_routes_that_change_something_want_an_origin_with_a_cookie(
    server: Server, routes: list[tuple[str, str]]
) -> None:
    own = api_server.session(server, TOKEN)
    cookie = {"cookie": own["cookie"]}
    changing = [route for route in routes if route[0] in UNSAFE]
    assert len(changing) > 12
    assert answers(server, changing, cookie) == {403}
    assert not answers(server, [("post", "/api/v1/runs/nobody/control/resume")], own) & {401, 403}


def test_bearer_token_needs_no_origin(server: Server) -> None:
    assert call(server, f"/api/v1/runs/{api_server.RUN}/star", method="PUT").status == 200


def test_refusal_has_the_one_form_and_says_how_to_show_the_token(server: Server) -> None:
    got = call(server, "/api/v1/runs", headers={})
    assert (got.json()["error"]["code"], got.headers["www-authenticate"]) == ("unauthorized", "Bearer")
    assert "`dashboard url`" in got.problem
