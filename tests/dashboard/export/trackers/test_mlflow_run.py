"""`dashboard export --format mlflow`, read back by MLflow's own client out of its database."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracked_journal import BEGAN, ODD_NAME, STEPS, expected, require, time_of, write_tracked_run

from dashboard.cli import main
from dashboard.export.trackers.mlflow_run import MOST_KEY, with_keys

pytestmark = pytest.mark.filterwarnings("default")
"""MLflow's and SQLAlchemy's own are theirs."""


def exported(folder: Path, *options: str, has_ended: bool = True) -> tuple[Any, Any]:
    """The client, and the only run of the experiment."""
    require("mlflow")
    require("sqlalchemy")
    run = write_tracked_run(folder / "spool", has_ended=has_ended)
    assert main(["export", str(run), "--format", "mlflow", *options]) == 0
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'out' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("nanscope")
    (found,) = client.search_runs([experiment.experiment_id])
    return client, found


@pytest.mark.capability(67)
def test_mlflow_has_every_number_at_its_step_and_time(tmp_path: Path) -> None:
    client, run = exported(tmp_path, "-o", str(tmp_path / "out"))
    for name, values in expected().items():
        key = "log/acc ___ _b_" if name == ODD_NAME else name
        history = sorted(client.get_metric_history(run.info.run_id, key), key=lambda metric: metric.step)
        assert [metric.step for metric in history] == list(values)
        assert [metric.timestamp for metric in history] == [round(time_of(step) * 1000) for step in values]
        kept = [
            sys.float_info.max if value == math.inf else value for value in values.values()
        ]  # its database
        np.testing.assert_array_equal([metric.value for metric in history], kept)


@pytest.mark.capability(67)
def test_mlflow_has_parameters_tags_for_events_and_the_report(tmp_path: Path) -> None:
    client, run = exported(tmp_path, "-o", str(tmp_path / "out"))
    assert run.data.params == {"lr": "0.001", "batch_size": "32"}
    assert run.data.tags["nanscope.run"] == "run-a"
    assert run.data.tags["nanscope.events.nonfinite_gradient"].startswith("1, first at step 7: ")
    assert run.data.tags["nanscope.events.loss_spike"].startswith(f"1, first at step {STEPS + 3}: ")
    assert (run.info.status, run.info.run_name) == ("FINISHED", "train.py")
    assert (run.info.start_time, run.info.end_time) == (BEGAN * 1000, time_of(STEPS - 1) * 1000)
    report = client.download_artifacts(run.info.run_id, "nanscope.html", str(tmp_path))
    assert Path(report).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not Path("mlruns").exists()


def test_mlflow_run_of_a_training_that_goes_on_stays_open(tmp_path: Path) -> None:
    _, run = exported(tmp_path, "-o", str(tmp_path / "out"), has_ended=False)
    assert (run.info.status, run.info.end_time) == ("RUNNING", None)


def test_mlflow_writes_to_the_address_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    uri = f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}"
    _, run = exported(tmp_path, "--tracking-uri", uri)
    assert run.info.status == "FINISHED"
    assert run.info.artifact_uri.startswith((tmp_path / "out").as_uri())


def test_mlflow_that_cannot_be_reached_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = write_tracked_run(tmp_path / "spool")
    assert main(["export", str(run), "--format", "mlflow", "--tracking-uri", "http://127.0.0.1:9"]) == 2
    assert "MLflow refuses" in capsys.readouterr().err


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
