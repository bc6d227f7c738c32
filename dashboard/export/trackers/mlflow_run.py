"""Writes a run into MLflow: metrics by step, parameters, tags for events, the HTML report as an artifact."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from ...errors import DashboardError
from .tracked_run import TrackedRun, events_by_kind, require_package

METRICS_AT_ONCE: Final = 1000
PARAMETERS_AT_ONCE: Final = 100
"""What one request of MLflow's takes at most."""
MOST_KEY: Final = 250
MOST_PARAMETER: Final = 6000
MOST_TAG: Final = 5000
_DATABASE: Final = "sqlite:///"
REPORT: Final = "nanscope.html"
_NOT_IN_A_KEY: Final = re.compile(r"[^\w\-. :/]", re.ASCII)
T = TypeVar("T")


def write_mlflow(
    run: TrackedRun, *, tracking_uri: str | None, folder: Path | None, project: str, report: str
) -> str:
    """Write a new run into an experiment, which is made if it is not there; return where.

    Args:
        run: What to write.
        tracking_uri: MLflow's server or database; None is `MLFLOW_TRACKING_URI`, else one in `folder`.
        folder: For the database and the artifacts, where there is no tracking URI.
        project: Name of the experiment.
        report: The HTML report.

    Raises:
        DashboardError: there is neither address nor folder, or MLflow refuses.
    """
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if uri is None and folder is None:
        raise DashboardError("--format mlflow needs --tracking-uri URI, MLFLOW_TRACKING_URI, or -o FOLDER")
    # The command asks no other host for anything but what it is for.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    if uri is None and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
    artifacts = _artifacts(uri or "", folder)
    if (uri or "").startswith(_DATABASE):
        require_package("sqlalchemy", extra="mlflow")
    try:
        client = MlflowClient(tracking_uri=uri)
        made = client.create_run(
            _experiment(client, project, artifacts),
            start_time=round(run.run.started * 1000),
            run_name=run.name,
            tags=_tags(run),
        )
        _fill(client, made.info.run_id, run, report)
    except MlflowException as error:
        raise DashboardError(f"MLflow refuses: {error}") from error
    return f"run {made.info.run_id} of the experiment {project}"


def _artifacts(uri: str, folder: Path | None) -> str | None:
    """Return where files lie beside a database, rather than in the current folder; a server has a place."""
    if not uri.startswith(_DATABASE):
        return None
    beside = Path(uri.removeprefix(_DATABASE)).parent if folder is None else folder
    return (beside.absolute() / "artifacts").as_uri()


def _experiment(client: Any, project: str, artifacts: str | None) -> str:
    known = client.get_experiment_by_name(project)
    if known is not None:
        return str(known.experiment_id)
    return str(client.create_experiment(project, artifact_location=artifacts))


def _tags(run: TrackedRun) -> dict[str, str]:
    tags = {f"nanscope.{name}": text for name, text in run.facts().items()}
    tags |= {f"nanscope.events.{kind}": text for kind, text in events_by_kind(run.events).items()}
    tags["mlflow.source.name"] = run.run.name
    return {key: text[:MOST_TAG] for key, text in with_keys(tags).items()}


def _fill(client: Any, run_id: str, run: TrackedRun, report: str) -> None:
    """Write all, and close the run; as failed where something of it was refused."""
    from mlflow.entities import Param

    is_whole = False
    last_s = run.run.started
    try:
        parameters = [Param(key, text[:MOST_PARAMETER]) for key, text in with_keys(run.parameters()).items()]
        for some in _batches(parameters, PARAMETERS_AT_ONCE):
            client.log_batch(run_id, params=some)
        for some in _batches(_metrics(run), METRICS_AT_ONCE):
            client.log_batch(run_id, metrics=some)
            last_s = some[-1].timestamp / 1000
        client.log_text(run_id, report, REPORT)
        is_whole = True
    finally:
        if not is_whole or run.has_ended:
            status = "FAILED" if run.has_failed or not is_whole else "FINISHED"
            client.set_terminated(run_id, status, end_time=round(last_s * 1000))


def _metrics(run: TrackedRun) -> Iterator[Any]:
    from mlflow.entities import Metric

    keys = with_keys({name: name for name in run.store.scalar_names(run.run.run, run.rank.rank)})
    key_of = {name: key for key, name in keys.items()}
    for numbers in run.steps():
        for name, value in numbers.values.items():
            yield Metric(key_of[name], value, round(numbers.time * 1000), numbers.step)


def with_keys(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the same with keys that MLflow takes, each still its own."""
    found: dict[str, str] = {}
    for name, text in texts.items():
        plain = key = _NOT_IN_A_KEY.sub("_", name).strip("/. ")[:MOST_KEY] or "_"
        number = 2
        while key in found:
            key, number = f"{plain[: MOST_KEY - 8]}_{number}", number + 1
        found[key] = text
    return found


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
