"""Dash's own routes on a real server: what is malformed is the caller's mistake, never a failure."""

from __future__ import annotations

import copy
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import api_server
import pytest
from api_server import RUN, call
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from dashboard.errors import DashboardError, UnknownRunError
from dashboard.ingest.control_desk import ControlDesk
from dashboard.serving.server import Server

PATH = "/_dash-update-component"
SLOW = "doctor-"
"""Callbacks that look at the machine, for a second each; values do not matter to them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_server.serving(tmp_path_factory.mktemp("dash")) as started:
        api_server.fill(started, is_full=True)
        api_server.add_document(started, b'{"rss_bytes": 1}')
        look_once(started)  # what draws for pages stays with the server
        yield started


def look_once(server: Server) -> None:
    """Open a page, and wait until it has something to show."""
    address, origin = server.page.replace("http", "ws") + "live", Origin(server.page.rstrip("/"))
    with connect(address, additional_headers=api_server.BEARER, origin=origin, close_timeout=1) as page:
        page.send('{"m": "subscribe", "id": 1}')
        assert page.recv(timeout=20)


@pytest.fixture
def callbacks(server: Server) -> list[dict[str, Any]]:
    """A right call of each callback that the server answers, with null for every value."""
    declared = call(server, "/_dash-dependencies").json()
    found = [call_of(one) for one in declared if one["clientside_function"] is None]
    assert len(found) > 20
    return found


def call_of(declared: dict[str, Any]) -> dict[str, Any]:
    output: str = declared["output"]
    names = output.strip(".").split("...") if output.startswith("..") else [output]
    pairs = [name.split("@")[0].rsplit(".", 1) for name in names]
    outputs = [{"id": id_, "property": property_} for id_, property_ in pairs]
    return {
        "output": output,
        "outputs": outputs if output.startswith("..") else outputs[0],
        "inputs": [element_of(one) for one in declared["inputs"]],
        "state": [element_of(one) for one in declared["state"]],
        "changedPropIds": [],
    }


def element_of(one: dict[str, Any]) -> Any:
    if not one["id"].startswith("{"):
        return {"id": one["id"], "property": one["property"], "value": None}
    pattern = json.loads(one["id"])
    id_ = {key: "x" if wanted == ["ALL"] else wanted for key, wanted in pattern.items()}
    return [{"id": id_, "property": one["property"], "value": None}]


def is_opening(element: Any) -> bool:
    """Whether an input is the click that opens the watchpoints' section."""
    return isinstance(element, dict) and element["id"] == "watchpoint-summary"


def post(server: Server, body: object) -> api_server.Got:
    return call(server, PATH, method="POST", body=body)


def test_right_call_is_answered(server: Server, callbacks: list[dict[str, Any]]) -> None:
    (right,) = [one for one in callbacks if one["output"] == "event-content.children"]
    right["inputs"][0]["value"] = {"run": RUN, "event": "unknown"}
    right["changedPropIds"] = ["selection.data"]
    got = post(server, right)
    assert (got.status, got.headers["cache-control"]) == (200, "no-store")
    assert b"event-content" in got.body


@pytest.mark.parametrize("others", [1, 3])
def test_callback_that_waits_holds_up_no_page_and_no_route(
    server: Server, callbacks: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """A training that is stopped answers after seconds, or not at all; everybody else goes on meanwhile."""
    (right,) = [one for one in callbacks if any(is_opening(given) for given in one["inputs"])]
    right["inputs"][0]["value"] = RUN
    right["changedPropIds"] = ["watchpoint-summary.n_clicks"]
    asked, may_answer = threading.Semaphore(0), threading.Event()

    def wait(*_: object, **__: object) -> list[Any]:
        asked.release()
        assert may_answer.wait(60)
        return []

    monkeypatch.setattr(ControlDesk, "ask", wait)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(post, server, right) for _ in range(others)]
        try:
            assert all(asked.acquire(timeout=20) for _ in waiting), [one.result() for one in waiting]
            assert call(server, "/health").status == 200
            quick = copy.deepcopy(next(one for one in callbacks if one["output"] == "event-content.children"))
            quick["inputs"][0]["value"] = {"run": RUN, "event": "unknown"}
            quick["changedPropIds"] = ["selection.data"]
            assert post(server, quick).status == 200
            look_once(server)
            assert not any(one.done() for one in waiting)
        finally:
            may_answer.set()
    assert {one.result().status for one in waiting} == {200}
    assert b"does not answer" in waiting[0].result().body


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 5000, b"null"])
def test_call_that_is_no_json_is_a_bad_request(server: Server, body: bytes) -> None:
    got = post(server, body)
    assert (got.status, got.json()["error"]["code"]) == (400, "bad_request")


WRONG = {
    "no object": lambda right: [right],
    "a number": lambda right: 3,
    "no output": lambda right: {key: value for key, value in right.items() if key != "output"},
    "no outputs": lambda right: {key: value for key, value in right.items() if key != "outputs"},
    "no inputs": lambda right: {key: value for key, value in right.items() if key != "inputs"},
    "an unknown output": lambda right: {**right, "output": "nobody.children"},
    "an output that is a number": lambda right: {**right, "output": 5},
    "an output that a script of the page makes": lambda right: {**right, "output": CLIENT_SIDE},
    "other outputs": lambda right: {**right, "outputs": [{"id": "a", "property": "b"}]},
    "a missing input": lambda right: {**right, "inputs": right["inputs"][1:]},
    "an input too many": lambda right: {**right, "inputs": [*right["inputs"], right["inputs"][0]]},
    "inputs of nothing": lambda right: {**right, "inputs": [None] * len(right["inputs"])},
    "a state too many": lambda right: {**right, "state": [*right["state"], right["inputs"][0]]},
    "an input of another element": lambda right: {
        **right,
        "inputs": [{"id": "x", "property": "y", "value": 1}, *right["inputs"][1:]],
    },
    "a change of another element": lambda right: {**right, "changedPropIds": ["x.y"]},
    "a change that is no id": lambda right: {**right, "changedPropIds": ["{.data"]},
    "changes that are numbers": lambda right: {**right, "changedPropIds": [1]},
    "changes that are none": lambda right: {**right, "changedPropIds": None},
}
CLIENT_SIDE = "run-select.data"


@pytest.mark.parametrize("wrong", WRONG)
def test_malformed_call_is_refused_by_every_callback(
    server: Server, callbacks: list[dict[str, Any]], wrong: str
) -> None:
    for right in callbacks:
        got = post(server, WRONG[wrong](copy.deepcopy(right)))
        assert (got.status, got.json()["error"]["code"]) == (422, "invalid"), right["output"]


def test_deeply_nested_value_is_no_failure(server: Server, callbacks: list[dict[str, Any]]) -> None:
    value: Any = 1
    for _ in range(900):
        value = {"run": value}
    for right in callbacks:
        for one in right["inputs"]:
            (one[0] if isinstance(one, list) else one)["value"] = value
        assert post(server, right).status < 500, right["output"]


TEXTS = st.sampled_from([RUN, "", "0", "nan", "x" * 5000, "\x00", "../etc/passwd", "\ud7ff", "=1", "loss"])
NUMBERS = st.sampled_from(
    [0, 1, -1, 7, 2**31, 2**31 + 1, 2**53, 2**53 + 1, 2**63, -(2**70), 1e308, 0.5, float("nan"), float("inf")]
)
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS
ANY = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
KEYS = (
    "rank first end step mark picked event seen epoch low high before runs names name row subject kind do "
    "note id action statistic columns points key level ids keep undo wanted all"
)
SCOPES = st.fixed_dictionaries({"run": st.just(RUN) | ANY}, optional=dict.fromkeys(KEYS.split(), ANY))


def ask_odd_values(server: Server, right: dict[str, Any], statuses: Counter[int], examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        drawn = copy.deepcopy(right)
        for one in [*drawn["inputs"], *drawn["state"]]:
            for element in one if isinstance(one, list) else [one]:
                element["value"] = data.draw(SCOPES | ANY)
        first = drawn["inputs"][0]
        if isinstance(first, dict):
            drawn["changedPropIds"] = [f"{first['id']}.{first['property']}"]
        got = post(server, drawn)
        statuses[got.status] += 1
        assert got.status < 500, (json.dumps(drawn), got.body)

    ask()


def problems_of_odd_values(
    server: Server, callbacks: list[dict[str, Any]], statuses: Counter[int], examples: int
) -> list[str]:
    problems = []
    for right in callbacks:
        if not right["output"].strip(".").startswith(SLOW):
            try:
                ask_odd_values(server, right, statuses, examples)
            except AssertionError as error:
                problems.append(str(error)[:3000])
    return problems


@pytest.mark.parametrize(
    "examples", [5, pytest.param(200, marks=[pytest.mark.faults, pytest.mark.timeout(3600)])]
)
def test_odd_values_are_no_failure_of_any_callback(
    server: Server, callbacks: list[dict[str, Any]], examples: int
) -> None:
    statuses: Counter[int] = Counter()
    problems = problems_of_odd_values(server, callbacks, statuses, examples)
    print(f"{statuses.total():,} calls with odd values: {dict(statuses)}")
    assert not problems, "\n".join(problems)
    assert statuses[200] > examples * len(callbacks) / 2


def test_failed_callback_is_logged_and_answered_in_the_one_form(
    server: Server,
    callbacks: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(self: object, run: str, event: str) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(type(server.store), "event", fail)
    (right,) = [one for one in callbacks if one["output"] == "event-content.children"]
    right["inputs"][0]["value"] = {"run": RUN, "event": "unknown"}
    with caplog.at_level(logging.ERROR):
        got = post(server, right)
    assert (got.status, got.json()["error"]["code"]) == (500, "failed")
    assert b"planted" not in got.body
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["planted"]


@pytest.mark.parametrize(("error", "status"), [(DashboardError("full"), 503), (UnknownRunError("gone"), 404)])
def test_error_of_the_dashboard_in_a_callback_keeps_its_status(
    server: Server,
    callbacks: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    error: DashboardError,
    status: int,
) -> None:
    def fail(self: object, run: str, event: str) -> None:
        raise error

    monkeypatch.setattr(type(server.store), "event", fail)
    (right,) = [one for one in callbacks if one["output"] == "event-content.children"]
    right["inputs"][0]["value"] = {"run": RUN, "event": "unknown"}
    got = post(server, right)
    assert (got.status, got.problem) == (status, str(error))


@pytest.mark.parametrize(
    "path",
    ["dash/nope.js", "nobody/dash.js", "dash/../x", "dash/dcc/", "os/__init__.py", "%00/%00"],
)
def test_wrong_path_of_a_component_is_not_found(server: Server, path: str) -> None:
    got = call(server, f"/_dash-component-suites/{path}")
    assert (got.status, got.json()["error"]["code"]) == (404, "not_found")


def test_component_that_the_page_names_is_there(server: Server) -> None:
    page = call(server, "/").body.decode()
    paths = re.findall(r'src="(/_dash-component-suites/[^"]+)"', page)
    assert len(paths) > 5
    assert {call(server, path).status for path in paths} == {200}


def test_socket_of_dash_is_closed(server: Server) -> None:
    address = server.page.replace("http", "ws") + "_dash-ws-callback"
    headers = {"cookie": api_server.session(server, api_server.TOKEN)["cookie"]}
    with pytest.raises(InvalidStatus) as refused:
        connect(address, origin=Origin(server.page.rstrip("/")), additional_headers=headers).close()
    assert refused.value.response.status_code in (403, 404)


def test_page_does_not_try_the_socket_of_dash(server: Server) -> None:
    page = call(server, "/").body
    assert b"_dash-config" in page
    assert b"_dash-ws-callback" not in page
