"""The one exception of ours that scripts see."""

import pickle
import traceback

import probe
from probe.errors import AnomalyError


def test_anomaly_is_told_under_the_name_that_scripts_import() -> None:
    assert traceback.format_exception_only(AnomalyError("x")) == ["probe.AnomalyError: x\n"]
    assert probe.AnomalyError is AnomalyError


def test_anomaly_crosses_processes() -> None:
    received = pickle.loads(pickle.dumps(AnomalyError("x")))  # noqa: S301 - bytes of our own
    assert type(received) is AnomalyError and received.args == ("x",)
