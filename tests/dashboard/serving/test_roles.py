"""Who may only look: routes and callbacks of a real server, with a view token and with its session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import api_server
import pytest
from api_server import BEARER, RUN, TOKEN, VIEW_TOKEN, call

from dashboard import ids
from dashboard.callers import VIEW_ONLY
from dashboard.page.views.controls import act_id
from dashboard.serving.server import Server

VIEWER = {"authorization": f"Bearer {VIEW_TOKEN}"}
SCOPE = {"run": RUN, "state": "finished", "level": "basic"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_server.serving(tmp_path_factory.mktemp("roles")) as started:
        api_server.fill(started, steps=3)
        yield started


def routes_of(server: Server) -> list[tuple[str, str]]:
    names = {"run": RUN, "kind": "profile", "event": "0" * 16, "level": "basic", "key": "x", "note": "n1"}
    paths: dict[str, Any] = call(server, "/openapi.json").json()["paths"]
    return [(method.upper(), path.format(**names)) for path, methods in paths.items() for method in methods]


def test_viewer_is_refused_by_every_route_that_changes_something(server: Server) -> None:
    changing = [route for route in routes_of(server) if route[0] != "GET"]
    assert len(changing) > 20
    for headers in (VIEWER, api_server.session(server, VIEW_TOKEN)):
        got = [call(server, path, method=method, headers=headers) for method, path in changing]
        assert {one.status for one in got} == {403}
        assert {one.json()["error"]["code"] for one in got} == {"forbidden"}
    assert VIEW_ONLY[1:] in got[0].problem


def test_viewer_gets_what_others_get_from_every_route_that_reads(server: Server) -> None:
    for method, path in routes_of(server):
        if method == "GET":
            assert call(server, path, headers=VIEWER).status == call(server, path, headers=BEARER).status, (
                path
            )


def callback(server: Server, headers: dict[str, str], output: str, **fields: Any) -> Any:
    """Ask a callback over HTTP as the page does; `fields` are `id__property=value`, the first has changed."""
    wanted = [one.rpartition(".") for one in output.strip(".").split("...")]
    outputs: Any = [{"id": component, "property": prop} for component, _, prop in wanted]
    given = [
        {"id": name.rpartition("__")[0], "property": name.rpartition("__")[2], "value": value}
        for name, value in fields.items()
    ]
    registered = next(one for one in call(server, "/_dash-dependencies").json() if one["output"] == output)
    places = {(one["id"], one["property"]): one["value"] for one in given}

    def filled(one: dict[str, Any]) -> Any:
        value = {**one, "value": places.get((one["id"], one["property"]))}
        return [] if one["id"].startswith("{") else value  # ALL of none

    body = {
        "output": output,
        "outputs": outputs if output.startswith("..") else outputs[0],
        "inputs": [filled(one) for one in registered["inputs"]],
        "state": [filled(one) for one in registered["state"]],
        "changedPropIds": [f"{given[0]['id']}.{given[0]['property']}"],
    }
    got = call(server, "/_dash-update-component", method="POST", body=body, headers=headers)
    assert got.status == 200, got.body
    return got.json()["response"]


def output_of(server: Server, component: str, changed: str = "") -> str:
    """The output of the callback of a component; of several that of what has changed, `id__property`."""
    return next(
        str(one["output"])
        for one in call(server, "/_dash-dependencies").json()
        if f"{component}." in one["output"]
        and (not changed or changed in [f"{given['id']}__{given['property']}" for given in one["inputs"]])
    )


@pytest.mark.parametrize("act", ["star", "unstar", "note", "delete"])
def test_viewer_s_page_changes_no_run(server: Server, act: str) -> None:
    store = server.store
    store.mark_run(RUN, note="mine", starred=act == "unstar")
    before = store.marks()
    action = {"run": RUN, "act": act, "value": "theirs"}
    viewer = api_server.session(server, VIEW_TOKEN)
    said = callback(server, viewer, "runs-said.data", **{"runs-action__data": action})
    assert said["runs-said"]["data"]["problem"] == VIEW_ONLY
    assert (store.marks(), [run.run for run in store.runs()]) == (before, [RUN])


def test_page_of_who_may_change_does(server: Server) -> None:
    action = {"run": RUN, "act": "note", "value": "theirs"}
    headers = api_server.session(server, TOKEN)
    said = callback(server, headers, "runs-said.data", **{"runs-action__data": action})
    assert said["runs-said"]["data"]["problem"] == ""
    assert server.store.marks()[RUN].note == "theirs"


def test_viewer_s_page_deletes_nothing_and_says_why(server: Server) -> None:
    viewer = api_server.session(server, VIEW_TOKEN)
    output = output_of(server, ids.DELETE_DIALOG)
    said = callback(server, viewer, output, **{"delete-confirm__n_clicks": 1, "delete-asked__data": RUN})
    assert VIEW_ONLY[1:] in str(said)
    assert [run.run for run in server.store.runs()] == [RUN]


@pytest.mark.parametrize(
    ("component", "fields"),
    [
        (ids.PROFILE_SAID, {"profile-ask__n_clicks": 1, "profile-steps__value": 5, "run-select__value": RUN}),
        (
            ids.WATCHPOINT_RESUME,
            {
                "watchpoint-add__n_clicks": 1,
                "watchpoint-condition__value": "step > 1",
                "run-select__value": RUN,
            },
        ),
        (ids.CONTROLS_REASON, {f"{act_id('pause')}__n_clicks": 1, "actions-scope__data": SCOPE}),
        (ids.CONTROLS_REASON, {"actions-scope__data": SCOPE}),
        (ids.LEVEL_SET, {"actions-scope__data": SCOPE}),
        (ids.WATCHPOINT_RESUME, {"watchpoint-resume__n_clicks": 1, "run-select__value": RUN}),
        (
            ids.ROW_WATCH_SAID,
            {
                "row-watch__n_clicks": 1,
                "row-scope__data": {"run": RUN, "row": "head"},
                "row-condition__value": "step > 1",
            },
        ),
    ],
)
def test_viewer_s_page_asks_nothing_of_a_training(
    server: Server, component: str, fields: dict[str, Any]
) -> None:
    output = output_of(server, component, changed=next(iter(fields)))
    said = callback(server, api_server.session(server, VIEW_TOKEN), output, **fields)
    assert VIEW_ONLY[1:] in str(said)


def test_page_says_to_its_scripts_whether_it_may_change(server: Server) -> None:
    pages = [
        call(server, "/", headers=api_server.session(server, token)).body for token in (TOKEN, VIEW_TOKEN)
    ]
    assert [b'<html data-role="view" lang="en">' in page for page in pages] == [False, True]


def test_address_that_a_caller_makes_up_is_not_believed(server: Server) -> None:
    """Each of these would else be a try of a machine of its own."""
    wrong = [
        call(server, "/health", headers={"x-nanscope-token": "wrong", "x-forwarded-for": f"10.0.0.{number}"})
        for number in range(11)
    ]
    assert (wrong[-1].status, wrong[-1].json()["error"]["code"]) == (429, "too_many_tries")
    assert call(server, "/health").status == 200
