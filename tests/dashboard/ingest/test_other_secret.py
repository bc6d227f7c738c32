"""A training whose NANSCOPE_CONNECT names a dashboard with another ingest secret: both sides say so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard.serving.server import Server
from probe.delivery.helper import helper
from probe.delivery.helper.helper import HelperKeeper
from probe.delivery.helper.shipper import Shipper
from probe.settings.places import serve_state_path


def wait_for(condition: Callable[[], object], shipper: Shipper) -> None:
    until_s = time.monotonic() + 10.0
    while not condition() and time.monotonic() < until_s:
        shipper._exchange()
        time.sleep(0.02)
    assert condition()


def test_training_and_dashboard_say_that_their_secrets_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    monkeypatch.setattr("dashboard.ingest.peers._PROOF_S", 0.0)
    monkeypatch.setattr(helper, "lock_owner", lambda path: 1)
    server = Server(
        port=0, ingest="tcp://127.0.0.1:0", data=tmp_path / "data", spool=tmp_path, environment=environment
    )
    server.start()
    run = tmp_path / "run"
    shipper, keeper = Shipper(run, server.ingest), HelperKeeper(run, server.ingest)
    try:
        assert keeper.ensure() is None and not caplog.records
        monkeypatch.setenv("NANSCOPE_SECRET", "ab" * 32)
        wait_for(lambda: server.notices(), shipper)
        (notice,) = server.notices()
        assert notice.startswith(f"A training tries to ship to {server.ingest} with another ingest secret")
        assert str(serve_state_path(environment)) in notice
        with caplog.at_level(logging.WARNING, "probe"):
            assert [keeper.ensure() for _ in range(3)] == [None] * 3
        (record,) = caplog.records
        said = f"{run}, but {server.ingest} does not get it: it has another ingest secret"
        assert said in record.getMessage()
        # With the right one it is shipped, and a training that begins later hears nothing of it.
        monkeypatch.setenv("NANSCOPE_SECRET", server._credentials.secret)
        wait_for(lambda: shipper._link is not None and shipper._link.ready, shipper)
        shipper._next_census = 0.0
        shipper._look_around()
        HelperKeeper(run, server.ingest).ensure()
        assert len(caplog.records) == 1
    finally:
        shipper._drop_link()
        shipper._context.term()
        shipper._census.close()
        server.stop()
