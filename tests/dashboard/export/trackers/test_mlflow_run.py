"""`dashboard export --format mlflow` into a database and a real server, read back by MLflow's client."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracked_journal import (
    BEGAN,
    ODD_NAME,
    STEPS,
    expected,
    go_on_with_tracked_run,
    require,
    restart_tracked_run,
    time_of,
    write_tracked_run,
)
from tracking_server import TrackingServer, tracking_server

from dashboard.cli import main
from dashboard.export import snapshot
from dashboard.export.trackers.mlflow_run import MOST_KEY, with_keys

pytestmark = pytest.mark.filterwarnings("default")
"""MLflow's and SQLAlchemy's own are theirs."""


@dataclass(frozen=True)
class Place:
    """Where the command writes; each test has an experiment of its own."""

    uri: str
    options: tuple[str, ...]
    experiment: str

    def export(self, run: Path) -> Any:
        """The run as MLflow has it, the only one of its experiment."""
        options = ("--project", self.experiment, *self.options)
        assert main(["export", str(run), "--format", "mlflow", *options]) == 0
        experiment = self.client.get_experiment_by_name(self.experiment)
        (found,) = self.client.search_runs([experiment.experiment_id])
        return found

    @property
    def client(self) -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self.uri)

    def history(self, run: Any, name: str) -> list[Any]:
        key = "log/acc ___ _b_" if name == ODD_NAME else name
        return sorted(self.client.get_metric_history(run.info.run_id, key), key=lambda metric: metric.step)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    require("mlflow")
    with tracking_server(tmp_path_factory.mktemp("server")) as started:
        yield started


on_a_server = pytest.mark.parametrize("place", ["server"], indirect=True)


@pytest.fixture(params=["database", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path, server: TrackingServer) -> Place:
    require("sqlalchemy")
    if request.param == "database":
        return Place(f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}", ("-o", str(tmp_path / "out")), "mine")
    return Place(server.url, ("--tracking-uri", server.url), request.node.name)


def test_mlflow_server_is_the_version_that_our_client_is(server: TrackingServer) -> None:
    import mlflow

    assert server.version() == mlflow.__version__


@pytest.mark.capability(67)
def test_mlflow_has_every_number_at_its_step_and_time(tmp_path: Path, place: Place) -> None:
    run = place.export(write_tracked_run(tmp_path / "spool"))
    for name, values in expected().items():
        history = place.history(run, name)
        assert [metric.step for metric in history] == list(values)
        assert [metric.timestamp for metric in history] == [round(time_of(step) * 1000) for step in values]
        kept = [
            sys.float_info.max if value == math.inf else value for value in values.values()
        ]  # its database
        np.testing.assert_array_equal([metric.value for metric in history], kept)


@pytest.mark.capability(67)
def test_mlflow_has_parameters_name_and_tags_for_events(tmp_path: Path, place: Place) -> None:
    run = place.export(write_tracked_run(tmp_path / "spool"))
    assert run.data.params == {"lr": "0.001", "batch_size": "32"}
    assert run.data.tags["nanscope.run"] == "run-a"
    assert run.data.tags["nanscope.events.nonfinite_gradient"].startswith("1, first at step 7: ")
    assert run.data.tags["nanscope.events.loss_spike"].startswith(f"1, first at step {STEPS + 3}: ")
    assert (run.info.status, run.info.run_name) == ("FINISHED", "train.py")
    assert (run.info.start_time, run.info.end_time) == (BEGAN * 1000, time_of(STEPS - 1) * 1000)


@pytest.mark.capability(67)
def test_mlflow_has_the_report_byte_for_byte(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot.time, "time", lambda: time_of(STEPS))  # the report says when it was written
    folder = write_tracked_run(tmp_path / "spool")
    run = place.export(folder)
    report = Path(place.client.download_artifacts(run.info.run_id, "nanscope.html", str(tmp_path)))
    assert main(["export", str(folder), "--theme", "dark", "-o", str(tmp_path / "same.html")]) == 0
    assert report.read_bytes() == (tmp_path / "same.html").read_bytes()
    assert not Path("mlruns").exists()


@on_a_server
def test_mlflow_run_of_a_training_that_goes_on_stays_open(tmp_path: Path, place: Place) -> None:
    run = place.export(write_tracked_run(tmp_path / "spool", has_ended=False))
    assert (run.info.status, run.info.end_time) == ("RUNNING", None)


def test_mlflow_run_that_is_written_again_is_the_same_and_has_each_number_once(
    tmp_path: Path, place: Place
) -> None:
    folder = write_tracked_run(tmp_path / "spool")
    before = place.export(folder)
    again = place.export(folder)
    assert again.info == before.info
    assert (again.data.params, again.data.tags) == (before.data.params, before.data.tags)
    for name, values in expected().items():
        assert [metric.step for metric in place.history(again, name)] == list(values)
    (artifact,) = place.client.list_artifacts(again.info.run_id)
    assert artifact.path == "nanscope.html"


@on_a_server
def test_mlflow_run_of_a_training_that_went_on_has_its_new_steps_and_events(
    tmp_path: Path, place: Place
) -> None:
    folder = write_tracked_run(tmp_path / "spool", has_ended=False)
    before = place.export(folder)
    go_on_with_tracked_run(folder)
    after = place.export(folder)
    assert after.info.run_id == before.info.run_id
    assert (after.info.status, after.info.end_time) == ("FINISHED", time_of(2 * STEPS - 1) * 1000)
    assert [metric.step for metric in place.history(after, "loss")] == list(range(2 * STEPS))
    assert after.data.tags["nanscope.events.loss_spike"].startswith("2, first at step ")


@on_a_server
def test_mlflow_run_that_is_written_again_keeps_what_people_wrote_there(tmp_path: Path, place: Place) -> None:
    folder = write_tracked_run(tmp_path / "spool")
    run_id = place.export(folder).info.run_id
    place.client.update_run(run_id, name="the good one")
    place.client.set_tag(run_id, "mlflow.note.content", "Keep.")
    again = place.export(folder)
    assert (again.info.run_id, again.info.run_name) == (run_id, "the good one")
    assert again.data.tags["mlflow.note.content"] == "Keep."


@on_a_server
def test_mlflow_run_that_was_deleted_there_is_written_anew(tmp_path: Path, place: Place) -> None:
    folder = write_tracked_run(tmp_path / "spool")
    deleted = place.export(folder).info.run_id
    place.client.delete_run(deleted)
    again = place.export(folder)
    assert again.info.run_id != deleted
    assert len(place.history(again, "loss")) == STEPS


@on_a_server
def test_mlflow_run_of_a_training_that_was_restarted_has_both_of_a_step_and_the_first_parameters(
    tmp_path: Path, place: Place
) -> None:
    folder = write_tracked_run(tmp_path / "spool")
    place.export(folder)
    restart_tracked_run(folder, first=STEPS - 1)
    run = place.export(folder)
    last = [(metric.timestamp, metric.value) for metric in place.history(run, "loss")[STEPS - 1 :]]
    assert sorted(last) == [
        (time_of(STEPS - 1) * 1000, expected()["loss"][STEPS - 1]),
        (time_of(1000 + STEPS - 1) * 1000, 0.5),
    ]
    assert run.data.params["lr"] == "0.001"


@on_a_server
def test_mlflow_has_each_rank_as_a_run(tmp_path: Path, place: Place) -> None:
    folder = write_tracked_run(tmp_path / "spool")
    write_tracked_run(tmp_path / "spool", rank=1)
    first = place.export(folder)
    options = ("--format", "mlflow", "--project", place.experiment, *place.options)
    assert main(["export", str(folder), "--rank", "1", *options]) == 0
    runs = place.client.search_runs([first.info.experiment_id])
    assert {run.data.tags["nanscope.rank"]: run.info.run_name for run in runs} == {
        "0": "train.py",
        "1": "train.py rank 1",
    }


def test_mlflow_keeps_artifacts_beside_the_database_that_it_is_given(tmp_path: Path) -> None:
    require("mlflow")
    require("sqlalchemy")
    (tmp_path / "out").mkdir()
    uri = f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}"
    run = Place(uri, ("--tracking-uri", uri), "mine").export(write_tracked_run(tmp_path / "spool"))
    assert run.info.status == "FINISHED"
    assert run.info.artifact_uri.startswith((tmp_path / "out").as_uri())


def test_mlflow_of_files_which_takes_a_number_twice_has_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    place = Place(str(tmp_path / "mlruns"), ("--tracking-uri", str(tmp_path / "mlruns")), "mine")
    folder = write_tracked_run(tmp_path / "spool")
    place.export(folder)
    again = place.export(folder)
    for name, values in expected().items():
        assert [metric.step for metric in place.history(again, name)] == list(values)


def test_mlflow_without_address_or_folder_asks_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require("mlflow")
    assert main(["export", str(write_tracked_run(tmp_path / "spool")), "--format", "mlflow"]) == 2
    assert "--tracking-uri" in capsys.readouterr().err


def test_keys_that_mlflow_refuses_are_changed_and_stay_apart() -> None:
    long = "x" * 400
    assert with_keys({"a|b": "1", "a?b": "2", "/.": "3"}) == {"a_b": "1", "a_b_2": "2", "_": "3"}
    assert [len(key) <= MOST_KEY for key in with_keys({long: "1", long + "y": "2"})] == [True, True]
