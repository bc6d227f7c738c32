"""Which trace a request gets, and that no request reaches another file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from dashboard.serving.profile_routes import add_profile_routes


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    folder = tmp_path / "spool" / "run-1" / "profiles"
    folder.mkdir(parents=True)
    (folder.parent / "run.json").write_text("{}")
    (folder / "5.json.gz").write_bytes(b"trace")
    (folder.parent / "secret.json.gz").write_bytes(b"secret")
    os.symlink(folder.parent / "secret.json.gz", folder / "link.json.gz")
    server = FastAPI()
    add_profile_routes(server, tmp_path / "spool")
    return TestClient(server)


def test_trace_is_downloaded_under_a_name_of_its_own(client: TestClient) -> None:
    answer = client.get("/api/v1/runs/run-1/profiles/5/trace")
    assert (answer.status_code, answer.content) == (200, b"trace")
    assert 'filename="nanscope-run-1-5.json.gz"' in answer.headers["content-disposition"]


@pytest.mark.parametrize(
    "path",
    [
        "run-1/profiles/6/trace",
        "run-2/profiles/5/trace",
        "run-1/profiles/..%2Fsecret/trace",
        "run-1/profiles/link/trace",
        "..%2Fspool%2Frun-1/profiles/5/trace",
        "run-1/profiles/%00/trace",
        "./profiles/5/trace",
    ],
)
def test_anything_else_is_not_found(client: TestClient, path: str) -> None:
    answer = client.get(f"/api/v1/runs/{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"


def test_spool_that_is_gone_has_no_traces(tmp_path: Path) -> None:
    server = FastAPI()
    add_profile_routes(server, tmp_path / "none")
    assert TestClient(server).get("/api/v1/runs/a/profiles/b/trace").status_code == 404
