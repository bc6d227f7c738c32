"""The store's statements on today's ClickHouse, which `chdb` embeds: what is read is what DuckDB has."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(
    importlib.util.find_spec("chdb") is None, reason="chdb is not installed (1 GB): make dialect"
)
def test_store_reads_the_same_on_todays_engine() -> None:
    paths = [HERE.parents[2], HERE.parents[1], HERE.parent, HERE]
    path = os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(HERE / "modern_dialect.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("same ") and int(done.stdout.split()[1].split(".")[0]) >= 24
