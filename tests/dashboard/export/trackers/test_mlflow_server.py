"""`dashboard export --format mlflow` to a server that is down, dies, or asks for a user.

The servers are real ones, but for the token, which MLflow's own does not know, and for counting requests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracked_journal import STEPS, require, write_tracked_run
from tracking_server import TrackingServer, tracking_server

from dashboard.cli import main
from dashboard.errors import DashboardError
from dashboard.export.trackers import mlflow_run
from dashboard.export.trackers.mlflow_address import mlflow_errors

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "outlets"))
from receiver import Answer, receiving

pytestmark = pytest.mark.filterwarnings("default")
"""MLflow's own are its."""
USER, PASSWORD = "admin", "not-to-be-shown-1"
VARIABLES = "MLFLOW_TRACKING_USERNAME"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    require("mlflow")
    folder = tmp_path_factory.mktemp("server")
    users = folder / "users.ini"
    users.write_text(
        f"[mlflow]\nadmin_username = {USER}\nadmin_password = {PASSWORD}\n"
        f"database_uri = sqlite:///{folder / 'users.db'}\ndefault_permission = READ\n"
        "auth_cache_ttl_seconds = 60\n"  # to check a password takes the server a tenth of a second
    )
    variables = {"MLFLOW_FLASK_SERVER_SECRET_KEY": "key", "MLFLOW_AUTH_CONFIG_PATH": str(users)}
    with tracking_server(folder, "--app-name", "basic-auth", **variables) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No user of this machine's, and no wait before MLflow asks again."""
    require("mlflow")
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")


def export(run: Path, project: str, *options: str) -> int:
    return main(["export", str(run), "--format", "mlflow", "--project", project, *options])


def log_in(server: TrackingServer, way: str, monkeypatch: pytest.MonkeyPatch, *, password: str) -> None:
    """Configure MLflow as its documentation has it, the address too."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    if way == "variables":
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", USER)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    elif way == "file":
        file = Path.home() / ".mlflow" / "credentials"
        file.parent.mkdir(parents=True)
        file.write_text(
            f"[mlflow]\nmlflow_tracking_username = {USER}\nmlflow_tracking_password = {password}\n"
        )
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url.replace("://", f"://{USER}:{password}@"))


def only_run(server: TrackingServer, project: str) -> tuple[Any, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=server.url)
    (run,) = client.search_runs([client.get_experiment_by_name(project).experiment_id])
    return client, run


@pytest.mark.parametrize("way", ["variables", "file", "address"])
def test_mlflow_user_of_the_configuration_is_known_to_the_server_and_shown_nowhere(
    way: str,
    tmp_path: Path,
    server: TrackingServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    log_in(server, way, monkeypatch, password=PASSWORD)
    assert export(write_tracked_run(tmp_path / "spool"), way) == 0
    printed = "".join(capfd.readouterr())
    log_in(server, "variables", monkeypatch, password=PASSWORD)
    _, run = only_run(server, way)
    assert run.info.status == "FINISHED"
    assert f"{server.url}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}" in printed
    assert PASSWORD not in printed + str(run.to_dictionary())


@pytest.mark.parametrize("way", ["variables", "file", "address"])
def test_mlflow_user_that_the_server_does_not_know_is_one_sentence_without_the_password(
    way: str,
    tmp_path: Path,
    server: TrackingServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    log_in(server, way, monkeypatch, password="wrong-and-not-shown")
    assert export(write_tracked_run(tmp_path / "spool"), "refused") == 2
    printed = "".join(capfd.readouterr())
    assert f"MLflow at {server.url} does not know this user: set {VARIABLES}" in printed
    assert "wrong-and-not-shown" not in printed


def test_mlflow_token_of_the_configuration_goes_with_every_request_and_is_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token-not-to-be-shown")
    with receiving(Answer(401)) as stand_in:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", stand_in.url)
        assert export(write_tracked_run(tmp_path / "spool"), "mine") == 2
    assert {request.headers["authorization"] for request in stand_in.requests} == {
        "Bearer token-not-to-be-shown"
    }
    printed = "".join(capfd.readouterr())
    assert f"does not know this user: set {VARIABLES}" in printed
    assert "token-not-to-be-shown" not in printed


@pytest.mark.parametrize("user", ["someone:hidden", "hidden"])
def test_mlflow_user_on_the_command_line_is_refused_before_anything_is_asked(
    user: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = write_tracked_run(tmp_path / "spool")
    with receiving() as stand_in:
        address = stand_in.url.replace("://", f"://{user}@")
        assert export(run, "mine", "--tracking-uri", address) == 2
    assert stand_in.requests == []
    printed = "".join(capfd.readouterr())
    assert VARIABLES in printed
    assert "hidden" not in printed


def test_mlflow_that_is_down_says_what_to_do_and_leaves_the_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = write_tracked_run(tmp_path / "spool")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with receiving() as gone:
        url = gone.url
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url.replace("://", f"://{USER}:{PASSWORD}@"))
    assert export(run, "mine") == 2
    printed = "".join(capfd.readouterr())
    assert f"MLflow does not answer at {url}. Nothing is lost" in printed
    assert "Start the server (mlflow server) or give its address with --tracking-uri" in printed
    assert "Traceback" not in printed
    assert PASSWORD not in printed
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_mlflow_that_only_fails_is_asked_three_times_and_not_for_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with receiving(Answer(503)) as stand_in:
        assert export(write_tracked_run(tmp_path / "spool"), "mine", "--tracking-uri", stand_in.url) == 2
    assert len(stand_in.requests) == 3


def test_mlflow_that_dies_half_way_has_each_number_once_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from mlflow.tracking import MlflowClient

    run, real, batches = write_tracked_run(tmp_path / "spool"), MlflowClient.log_batch, []
    monkeypatch.setattr(mlflow_run, "METRICS_AT_ONCE", 10)

    def dies_before_the_third(client: MlflowClient, run_id: str, **what: Any) -> None:
        batches.append(list(what))
        if batches.count(["metrics"]) == 3:
            server.kill()
        real(client, run_id, **what)

    with tracking_server(tmp_path) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        with monkeypatch.context() as patch:
            patch.setattr(MlflowClient, "log_batch", dies_before_the_third)
            patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
            assert export(run, "mine") == 2
        assert f"MLflow does not answer at {server.url}. Nothing is lost" in "".join(capfd.readouterr())
        server.start()
        client, found = only_run(server, "mine")
        assert 0 < len(client.get_metric_history(found.info.run_id, "loss")) < STEPS
        assert export(run, "mine") == 0
        client, found = only_run(server, "mine")
        for name in ("loss", "grad_norm"):
            history = client.get_metric_history(found.info.run_id, name)
            assert sorted(metric.step for metric in history) == list(range(STEPS))
        assert found.info.status == "FINISHED"
        assert [artifact.path for artifact in client.list_artifacts(found.info.run_id)] == ["nanscope.html"]


@pytest.mark.parametrize(
    ("kind", "text", "status", "sentence"),
    [
        ("ConnectionError", "gone", None, "MLflow does not answer at http://host. "),
        ("ReadTimeout", "slow", None, "MLflow does not answer at http://host. "),
        ("SSLError", "certificate verify failed", None, "MLflow refuses: certificate verify failed"),
        ("HTTPError", "Unauthorized", 401, "MLflow at http://host does not know this user: "),
        (
            "HTTPError",
            "507 for http://user:p@ss@host/artifacts",
            507,
            "MLflow refuses: 507 for http://host/a",
        ),
    ],
)
def test_mlflow_artifact_that_cannot_be_sent_is_one_sentence_too(
    kind: str, text: str, status: int | None, sentence: str
) -> None:
    """It goes by requests, whose errors MLflow leaves as they are."""
    import requests

    answer = requests.Response()
    answer.status_code = status
    with pytest.raises(DashboardError, match=f"^{re.escape(sentence)}"):
        with mlflow_errors("http://user:p@ss@host"):
            raise getattr(requests.exceptions, kind)(text, response=answer)
