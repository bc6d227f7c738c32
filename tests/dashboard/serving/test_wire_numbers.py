"""No number on the wire makes the server warn, whatever a page or program asks of runs with extreme values.

A run may have numbers that no float32 holds, whose squares, sums or ratios no float64 holds, that are zero,
subnormal or not finite. numpy would say so on the terminal of `serve`, once for each line of code.
"""

from __future__ import annotations

import itertools
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import api_server
import numpy as np
import page_runs
import pytest
from api_server import RUN, call
from test_dash_routes import call_of, post

from dashboard.live.message import ClientView
from dashboard.live.pictures import Pictures
from dashboard.live.tracks import line_track
from dashboard.live.view import Subscription
from dashboard.page.views.heatmap_statistics import STATISTICS
from dashboard.page.views.rank_statistics import RANK_STATISTICS
from dashboard.serving.server import Server
from dashboard.store.protocol import Store
from probe.wire import SCALARS, Frame, encode
from probe.wire.columns import pack_column
from probe.wire.module_frames import pack_module_columns

SEED = 20
STEPS = 70
HUGE = [1.7e308, -1.7e308, 1e300, 3.5e38, -3.5e38, 3.4e38]
TINY = [5e-324, -5e-324, 1e-300, 1e-46, 0.0, -0.0]
EXTREME = [*HUGE, *TINY, 1.0, float("nan"), float("inf"), float("-inf")]
NAMES = [*SCALARS, "log/accuracy", "val_loss"]
OTHER = "other-run"
WARNED = (RuntimeWarning, FutureWarning, DeprecationWarning)


def hostile_frame(step: int, values: list[float], *, time: float) -> Frame:
    """All series, columns and statistics of one step, drawn from some values."""
    draw = np.random.default_rng((SEED, step, len(values)))
    description = page_runs.layout()
    parameters, modules = len(description.parameters), len(description.modules)

    def some(count: int) -> Any:
        return np.asarray(values)[draw.integers(len(values), size=count)]

    of_modules = ("activation_rms", "saved_bytes", "forward_time_s", "backward_time_s")
    return Frame(
        step=step,
        time=time,
        scalars=dict(zip(NAMES, some(len(NAMES)).tolist(), strict=True)),
        columns=[pack_column("grad_norm", some(parameters))],
        parameter_columns=pack_module_columns(
            {name: some(parameters) for name in ("update_ratio", "parameter_norm", "grad_max_abs")}, {}
        ),
        module_columns=pack_module_columns({name: some(modules) for name in of_modules}, {}),
    )


def fill(store: Store, *, run: str, rank: int) -> None:
    """Steps of huge numbers, of tiny ones, and of all of them."""
    page_runs.fill(store, steps=range(3), run=run, rank=rank, is_full=True)
    metrics = page_runs.key("metrics", run=run, rank=rank)
    kinds = itertools.cycle([HUGE, TINY, EXTREME])
    frames = [
        hostile_frame(step, next(kinds), time=1.7e9 + step / 10 if step % 7 else 1e300)
        for step in range(3, STEPS)
    ]
    store.append(metrics, store.position(metrics).next_seq, [encode(frame) for frame in frames])
    store.commit()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With two runs of two ranks."""
    with api_server.serving(tmp_path_factory.mktemp("numbers")) as started, quiet():
        for run, rank in itertools.product((RUN, OTHER), (0, 1)):
            fill(started.store, run=run, rank=rank)
        add_snapshots(started.store)
        yield started


@contextmanager
def quiet() -> Iterator[None]:
    """Fail where anything, on any thread, warns meanwhile; says in which line of ours."""
    said: set[str] = set()

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if isinstance(message, WARNED):
            frames = traceback.extract_stack()
            ours = next(
                (
                    frame
                    for frame in reversed(frames)
                    if "/dashboard/" in frame.filename and "/tests/" not in frame.filename
                ),
                frames[0],
            )
            said.add(f"{ours.filename}:{ours.lineno} {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield
    assert not said, "\n".join(sorted(said))


def add_snapshots(store: Store) -> None:
    snapshots = [page_runs.memory_snapshot(step) for step in (5, 60)]
    page_runs.add_records(store, *snapshots)


def scopes() -> Iterator[dict[str, Any]]:
    """What the page's scripts ask callbacks with."""
    for rank, (first, end) in itertools.product((0, 1), ((None, None), (3, 40), (10, 11))):
        steps = {"first": first, "end": end}
        yield {
            "run": RUN,
            "rank": rank,
            "subject": "head",
            "kind": "layer",
            "name": "head",
            "step": 30,
            **steps,
        }
        yield {"run": RUN, "rank": rank, "row": "head.weight", "statistic": "grad_norm", **steps}
        yield {"run": RUN, "runs": [RUN, OTHER], "rank": rank, "names": ["loss"], **steps}


def test_routes_warn_of_no_number(server: Server) -> None:
    with quiet():
        paths: dict[str, Any] = call(server, "/openapi.json").json()["paths"]
        names = {"run": RUN, "kind": "memory_snapshot", "event": "0" * 16, "key": "x"}
        query = f"run={RUN}&subject=head&event=x" + "".join(f"&name={name}" for name in NAMES[:60])
        answers = {}
        for path, operations in paths.items():
            for more in (
                ("", "&points=20&columns=20", "&rank=1&first=3&end=40") if "get" in operations else ()
            ):
                address = f"{path.format(**names)}?{query}{more}"
                answers[address] = call(server, address).status
        for form in ("html", "csv", "parquet"):
            answers[form] = call(server, f"/api/v1/runs/{RUN}/export?format={form}").status
        for statistic in STATISTICS:
            address = f"/api/v1/runs/{RUN}/heatmap?statistic={statistic.id}"
            answers[address] = call(server, address).status
        assert not [address for address, status in answers.items() if status >= 500]
        assert list(answers.values()).count(200) > 60


def test_live_pictures_warn_of_no_number(server: Server) -> None:
    pictures = Pictures(server.store)
    wishes = [
        Subscription(id=number, run=RUN, rank=number % 2, statistic=one.id, columns=16 + 500 * (number % 3))
        for number, one in enumerate(STATISTICS)
    ]
    wishes += [Subscription(id=1, run=RUN, ranks=one.id) for one in RANK_STATISTICS]
    wishes += [Subscription(id=2, run=RUN, rank=1, logged=True, points=points) for points in (16, 600)]
    wishes += [Subscription(id=3, run=RUN, logged=True, first=first, end=first + 30) for first in (3, 30)]
    with quiet():
        for wish in wishes:
            assert ClientView(pictures).message(wish, with_data=True)


def test_line_with_a_number_beyond_float32_stays_finite() -> None:
    track = line_track("loss", np.arange(4.0), np.array([1e300, -1e300, 1e-300, np.inf]))
    largest = np.finfo(np.float32).max
    assert track.values.tolist()[:2] == [largest, -largest]
    assert 0 < track.values[2] < 1e-44
    assert np.isinf(track.values[3])


def test_callbacks_warn_of_no_number(server: Server) -> None:
    with quiet():
        declared = call(server, "/_dash-dependencies").json()
        for one in declared:
            if one["clientside_function"] is None and "doctor" not in one["output"]:
                for scope in scopes():
                    asked = call_of(one)
                    for element in asked["inputs"]:
                        if isinstance(element, dict):
                            element["value"] = scope
                    assert post(server, asked).status == 200, asked["output"]


def test_metrics_warn_of_no_number(server: Server) -> None:
    with quiet():
        assert call(server, "/metrics").status == 200
