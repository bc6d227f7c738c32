"""Which MLflow an export goes to, and its errors as sentences that hold no secret of the address.

Users and tokens come out of MLflow's own configuration, which MLflow reads itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...errors import DashboardError

DATABASE: Final = "sqlite:///"
_USER: Final = re.compile(r"(?<=://)\S*@")
"""Up to the last @, whatever stands in it: better an address cut short than half of a password."""
_PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""By MLflow's own seven times, of up to two minutes each, one waits long for an address with a slip in it."""
_LOGIN: Final = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, "
    "or write ~/.mlflow/credentials"
)


def tracking_address(given: str | None, folder: Path | None) -> str:
    """Return the address of the command line, else `MLFLOW_TRACKING_URI`, else a database in `folder`.

    Raises:
        DashboardError: there is none, or that of the command line names a user.
    """
    if given is not None:
        if "@" in given.partition("://")[2].partition("/")[0]:
            raise DashboardError(
                "--tracking-uri names a user, and other users of this machine can read a command line: "
                f"leave it out of {without_secret(given)}, and {_LOGIN}; or set MLFLOW_TRACKING_URI instead"
            )
        return given
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return uri
    if folder is None:
        raise DashboardError("--format mlflow needs --tracking-uri URI, MLFLOW_TRACKING_URI, or -o FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    return f"{DATABASE}{folder.absolute() / 'mlflow.db'}"


def without_secret(text: str) -> str:
    """Return the text with no user, password or token in the addresses that it holds."""
    return _USER.sub("", text)


def run_page(address: str, experiment: str, run: str) -> str | None:
    """Return where a server shows the run; None of a database."""
    if not address.startswith(("http://", "https://")):
        return None
    return f"{without_secret(address).rstrip('/')}/#/experiments/{experiment}/runs/{run}"


@contextmanager
def brief_patience() -> Iterator[None]:
    """Have MLflow give up soon, unless the user has said when."""
    ours = {name: text for name, text in _PATIENCE.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


@contextmanager
def mlflow_errors(address: str) -> Iterator[None]:
    """Have what MLflow and its requests raise as one sentence that says what to do.

    Raises:
        DashboardError: in place of theirs.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    try:
        yield
    except (MlflowException, RequestException) as error:
        raise DashboardError(_sentence(error, without_secret(address))) from error


def _sentence(error: Exception, address: str) -> str:
    import requests

    causes = list(_causes(error))
    is_unheard = any(isinstance(cause, requests.ConnectionError | requests.Timeout) for cause in causes)
    # Of a certificate MLflow's own text says more.
    if is_unheard and not any(isinstance(cause, requests.exceptions.SSLError) for cause in causes):
        return (
            f"MLflow does not answer at {address}. Nothing is lost: the run stays in its journals, and the "
            "same command writes what is missing. Start the server (mlflow server) or give its address with "
            "--tracking-uri"
        )
    statuses = {getattr(getattr(cause, "response", None), "status_code", None) for cause in causes}
    if "error code 401" in str(error) or 401 in statuses:
        return f"MLflow at {address} does not know this user: {_LOGIN}"
    return f"MLflow refuses: {without_secret(str(error))}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised out of: MLflow names a failed connection in the text alone."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
