"""The routes of notes at steps over real HTTP: bounds, ids, refusals, and what the exports have of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import api_server
import pytest
from api_server import RUN, call, serving

from dashboard.serving.api.note_routes import MAX_NOTES, MAX_TEXT
from dashboard.serving.server import Server

NOTES = f"/api/v1/runs/{RUN}/notes"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as started:
        api_server.fill(started)
        yield started


def write(server: Server, step: int = 7, text: str = "lr halved") -> str:
    got = call(server, NOTES, method="POST", body={"step": step, "text": text})
    assert got.status == 200, got.body
    return str(got.json()["note"]["id"])


def texts(server: Server) -> list[tuple[int, str]]:
    return [(note["step"], note["text"]) for note in call(server, NOTES).json()["notes"]]


def test_note_is_written_changed_deleted_and_put_back(server: Server) -> None:
    write(server, 30, "later")
    first = write(server, 7, "  <b>lr</b> halved\u202e ")
    assert texts(server) == [(7, "<b>lr</b> halved\u202e"), (30, "later")]
    changed = call(server, f"{NOTES}/{first}", method="PUT", body={"step": 8, "text": "better"}).json()
    assert (changed["note"]["step"], changed["note"]["text"]) == (8, "better")
    assert call(server, f"{NOTES}/{first}", method="DELETE").json() == {"v": 1, "run": RUN, "id": first}
    assert texts(server) == [(30, "later")]
    assert call(server, f"{NOTES}/{first}", method="PUT", body={"step": 8, "text": "better"}).status == 200
    assert texts(server) == [(8, "better"), (30, "later")]


@pytest.mark.parametrize(
    "body",
    [
        {"step": -1, "text": "x"},
        {"step": 2**53 + 1, "text": "x"},
        {"step": 1.5, "text": "x"},
        {"step": "7", "text": "x"},
        {"step": 7},
        {"step": 7, "text": ""},
        {"step": 7, "text": " \n "},
        {"step": 7, "text": "\ud800"},
        {"step": 7, "text": "x" * (MAX_TEXT + 1)},
        {"step": 7, "text": "x", "run": "other"},
    ],
)
def test_note_that_breaks_a_bound_is_refused(server: Server, body: dict[str, object]) -> None:
    assert call(server, NOTES, method="POST", body=body).status == 422
    assert texts(server) == []


def test_note_of_the_greatest_length_is_kept(server: Server) -> None:
    write(server, 2**53, "x" * MAX_TEXT)
    assert texts(server) == [(2**53, "x" * MAX_TEXT)]


def test_run_takes_so_many_notes_and_no_more(server: Server) -> None:
    ids = [write(server, step) for step in range(MAX_NOTES)]
    got = call(server, NOTES, method="POST", body={"step": 1, "text": "one more"})
    assert got.status == 409 and str(MAX_NOTES) in got.problem
    assert call(server, f"{NOTES}/abc", method="PUT", body={"step": 1, "text": "one more"}).status == 409
    assert call(server, f"{NOTES}/{ids[0]}", method="PUT", body={"step": 1, "text": "other"}).status == 200
    assert len(texts(server)) == MAX_NOTES


@pytest.mark.parametrize("id_", ["..", "A", "x" * 33, "a%2Fb", "%00"])
def test_id_of_a_note_is_short_and_plain(server: Server, id_: str) -> None:
    got = call(server, f"{NOTES}/{id_}", method="PUT", body={"step": 1, "text": "x"})
    assert got.status in (404, 405, 422)
    assert texts(server) == []


def test_unknown_runs_and_notes_are_404(server: Server) -> None:
    other = "/api/v1/runs/gone/notes"
    for path, method, body in (
        (other, "GET", None),
        (other, "POST", {"step": 1, "text": "x"}),
        (f"{other}/abc", "PUT", {"step": 1, "text": "x"}),
        (f"{other}/abc", "DELETE", None),
        (f"{NOTES}/abc", "DELETE", None),
    ):
        assert call(server, path, method=method, body=body).status == 404, (path, method)


def test_note_wants_the_token_or_the_pages_own_origin(server: Server) -> None:
    body = {"step": 1, "text": "x"}
    assert call(server, NOTES, method="POST", body=body, headers={}).status == 401
    own = api_server.session(server, api_server.TOKEN)
    cookie = {"cookie": own["cookie"]}
    assert call(server, NOTES, method="POST", body=body, headers=cookie).status == 403
    foreign = {**cookie, "origin": "http://evil.example"}
    assert call(server, NOTES, method="POST", body=body, headers=foreign).status == 403
    assert call(server, NOTES, method="POST", body=body, headers=own).status == 200


def test_exports_have_the_notes_of_their_steps_as_text(server: Server) -> None:
    write(server, 7, "<script>alert(1)</script>")
    write(server, 39, "outside")
    path = f"/api/v1/runs/{RUN}/export?first=0&end=20&format="
    document = json.loads(call(server, path + "json").body)
    (only,) = document["notes"]
    assert (only["step"], only["text"]) == (7, "<script>alert(1)</script>")
    html = call(server, path + "html").body.decode()
    section = html.partition('<section id="notes">')[2].partition("</section>")[0]
    assert "step 7" in section and "&lt;script&gt;alert(1)" in section
    assert "outside" not in section and "<script>" not in section
