"""Writes a run into MLflow: metrics by step, parameters, tags for events, the HTML report as an artifact.

A run that is there from an earlier export goes on: it gets what it has not. Addresses and errors are in
`mlflow_address.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from .mlflow_address import DATABASE, brief_patience, mlflow_errors, run_page, tracking_address
from .tracked_run import TrackedRun, events_by_kind, require_package

METRICS_AT_ONCE: Final = 1000
PARAMETERS_AT_ONCE: Final = 100
"""What one request of MLflow's takes at most; so it does of tags."""
MOST_KEY: Final = 250
MOST_PARAMETER: Final = 6000
MOST_TAG: Final = 5000
REPORT: Final = "nanscope.html"
_NOT_IN_A_KEY: Final = re.compile(r"[^\w\-. :/]", re.ASCII)
_QUIET: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
"""The command asks no other host for anything but what it is for, and an address can hold a secret."""
T = TypeVar("T")


def write_mlflow(
    run: TrackedRun, *, tracking_uri: str | None, folder: Path | None, project: str, report: str
) -> str:
    """Write a run into an experiment, which is made if it is not there; return where.

    A run of an earlier export into it goes on, so that it has every number once.

    Args:
        run: What to write.
        tracking_uri: MLflow's server or database; None is `MLFLOW_TRACKING_URI`, else one in `folder`.
        folder: For the database and the artifacts, where there is no tracking URI.
        project: Name of the experiment.
        report: The HTML report.

    Raises:
        DashboardError: there is neither address nor folder, `tracking_uri` names a user, or MLflow does not
            answer or refuses.
    """
    address = tracking_address(tracking_uri, folder)
    for name, text in _QUIET.items():
        os.environ.setdefault(name, text)
    from mlflow.tracking import MlflowClient

    if address.startswith(DATABASE):
        require_package("sqlalchemy", extra="mlflow")
    with mlflow_errors(address):
        client = MlflowClient(tracking_uri=address)
        with brief_patience():
            experiment = _experiment(client, project, _artifacts(address, folder))
        known = _open_run(client, experiment, run)
        _fill(client, known, run, report)
    place = f"run {known.info.run_id} of the experiment {project}"
    page = run_page(address, experiment, known.info.run_id)
    return f"{place}: {page}" if page else place


def _artifacts(uri: str, folder: Path | None) -> str | None:
    """Return where files lie beside a database, rather than in the current folder; a server has a place."""
    if not uri.startswith(DATABASE):
        return None
    beside = Path(uri.removeprefix(DATABASE)).parent if folder is None else folder
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


def _open_run(client: Any, experiment: str, run: TrackedRun) -> Any:
    """Return the run of an earlier export, open again and with the tags of today, else a new one."""
    from mlflow.entities import RunTag

    facts, tags = run.facts(), _tags(run)
    same = f"tags.`nanscope.run` = '{facts['run']}' and tags.`nanscope.rank` = '{facts['rank']}'"
    for earlier in client.search_runs([experiment], same, max_results=1):
        client.update_run(earlier.info.run_id, status="RUNNING")
        for some in _batches((RunTag(*tag) for tag in tags.items()), PARAMETERS_AT_ONCE):
            client.log_batch(earlier.info.run_id, tags=some)
        return earlier
    return client.create_run(
        experiment, start_time=round(run.run.started * 1000), run_name=run.name, tags=tags
    )


def _fill(client: Any, known: Any, run: TrackedRun, report: str) -> None:
    """Write what MLflow's run has not, and close it; as failed where something of it was refused."""
    from mlflow.entities import Param
    from mlflow.exceptions import MlflowException

    run_id = known.info.run_id
    is_whole = False
    last_s = run.run.started
    try:
        # MLflow refuses to change a parameter.
        parameters = (
            Param(key, text[:MOST_PARAMETER])
            for key, text in with_keys(run.parameters()).items()
            if key not in known.data.params
        )
        for some in _batches(parameters, PARAMETERS_AT_ONCE):
            client.log_batch(run_id, params=some)
        there = _numbers_there(client, known)
        for some in _batches(_metrics(run), METRICS_AT_ONCE):
            new = [metric for metric in some if (metric.key, metric.step, metric.timestamp) not in there]
            if new:
                client.log_batch(run_id, metrics=new)
            last_s = some[-1].timestamp / 1000
        client.log_text(run_id, report, REPORT)
        is_whole = True
    finally:
        if not is_whole:
            with contextlib.suppress(MlflowException), brief_patience():
                client.set_terminated(run_id, "FAILED", end_time=round(last_s * 1000))
        elif run.has_ended:
            status = "FAILED" if run.has_failed else "FINISHED"
            client.set_terminated(run_id, status, end_time=round(last_s * 1000))


def _numbers_there(client: Any, known: Any) -> set[tuple[str, int, int]]:
    """Name, step and time of every number that MLflow's run has; a step trained again has another time."""
    return {
        (metric.key, metric.step, metric.timestamp)
        for key in known.data.metrics
        for metric in client.get_metric_history(known.info.run_id, key)
    }


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
