"""The report of a run, read from journals that are written here record by record."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from probe import wire
from probe.actions.analysis import run_report
from probe.actions.analysis.run_report import RunReport, read_report
from probe.delivery.journal.journal import JournalWriter
from probe.wire.columns import pack_column

START = wire.RunStart(
    run="r", rank=3, incarnation=7, name="mine", level="basic", versions={"torch": "2.13.0"}
)
LAYOUT = wire.Layout(
    layout=0,
    model="Net",
    layers=[wire.LayerInfo(name="a", type="Linear"), wire.LayerInfo(name="b", type="Linear")],
    parameters=[
        wire.ParameterInfo(name="a.weight", shape=[2], dtype="float32", layer=0),
        wire.ParameterInfo(name="a.bias", shape=[1], dtype="float32", layer=0),
        wire.ParameterInfo(name="b.weight", shape=[1], dtype="float32", layer=1),
    ],
)


def event(step: int, **fields: object) -> wire.Event:
    given = {"kind": "loss_spike", "severity": "warning", "message": "Loss 9 is high", **fields}
    return wire.Event(id="0" * 15 + "1", run="r", rank=3, incarnation=7, step=step, time=1.0, **given)


def frame(
    step: int, loss: float, *, norms: tuple[float, ...] = (3.0, 4.0, 2.0), missing: bytes = b""
) -> wire.Frame:
    columns = [pack_column("grad_norm", np.array(norms))]
    return wire.Frame(step=step, time=1.0, scalars={"loss": loss}, columns=columns, missing=missing)


def written(
    tmp_path: Path, frames: list[wire.Frame], *others: wire.Record, segment_bytes: int = 10**6
) -> Path:
    folder = tmp_path / "r" / "3-7"
    journal = JournalWriter(folder, run="r", writer="3-7", segment_bytes=segment_bytes)
    for record in (START, LAYOUT, *others):
        journal.append("events", wire.encode(record))
    for record in frames:
        journal.append("metrics", wire.encode(record))
    journal.close()
    return folder


def loss_of(report: RunReport) -> run_report.SeriesSummary:
    return next(series for series in report.series if series.name == "loss")


def test_report_summarises_series_events_and_layers(tmp_path: Path) -> None:
    losses = [2.0, 5.0, math.nan, 1.0]
    frames = [frame(step, loss) for step, loss in enumerate(losses)]
    states = event(1), event(1, count=3, ended=True, last_step=3)
    report = read_report(written(tmp_path, frames, *states))
    loss = loss_of(report)
    assert (loss.count, loss.first, loss.last, loss.low, loss.high, loss.nonfinite) == (
        4,
        2.0,
        1.0,
        1.0,
        5.0,
        1,
    )
    assert loss.mean == pytest.approx((2 + 5 + 1) / 3)
    assert (report.run, report.rank, report.name, report.model) == ("r", 3, "mine", "Net")
    assert report.last_gradient_norms == {"a": 5.0, "b": 2.0}
    assert len(report.events) == 1 and report.events[0]["count"] == 3
    assert report.event_counts == {"loss_spike": 1} and not report.ok
    assert report.metrics_complete and report.notes == ()
    assert "loss_spike x3: Loss 9 is high" in str(report)


def test_report_leaves_out_layers_without_a_gradient(tmp_path: Path) -> None:
    missing = np.packbits(np.array([False, False, True])).tobytes()
    report = read_report(written(tmp_path, [frame(0, 1.0, missing=missing)]))
    assert report.last_gradient_norms == {"a": 5.0}


def test_report_of_nonfinite_gradients_is_json(tmp_path: Path) -> None:
    report = read_report(written(tmp_path, [frame(0, math.inf, norms=(math.nan, 1.0, math.inf))]))
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["last_gradient_norms"] == {"a": "NaN", "b": "Infinity"}
    assert loss_of(report).mean is None and loss_of(report).nonfinite == 1


def test_report_of_a_long_run_reads_the_newest_metrics_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_report, "METRICS_BYTES", 3000)
    folder = written(tmp_path, [frame(step, 1.0) for step in range(200)], segment_bytes=1000)
    report = read_report(folder)
    assert report.last_step == 199 and report.first_step is not None and report.first_step > 100
    assert not report.metrics_complete and f"from step {report.first_step}" in report.notes[0]


def test_report_counts_records_that_are_lost_or_unreadable(tmp_path: Path) -> None:
    folder = written(tmp_path, [frame(step, 1.0) for step in range(100)], segment_bytes=1000)
    segments = sorted(folder.glob("metrics-*.seg"))
    segments[1].unlink()
    report = read_report(folder)
    assert not report.metrics_complete and "lost or unreadable" in report.notes[0]
    assert loss_of(report).count < 100 and report.last_step == 99


def test_report_of_an_empty_folder_says_nothing_wrong(tmp_path: Path) -> None:
    (tmp_path / "r" / "0-1").mkdir(parents=True)
    report = read_report(tmp_path / "r" / "0-1")
    assert report.ok and report.last_step is None and "no step" in str(report)


def test_report_is_saved_in_one_piece_each(tmp_path: Path) -> None:
    report = read_report(written(tmp_path, [frame(0, 1.0)]), extra={"notes": {"nan": math.nan}})
    paths = report.save(tmp_path / "deep" / "er" / "v1.2")
    assert [path.name for path in paths] == ["v1.2.json", "v1.2.txt"]
    assert json.loads(paths[0].read_text())["extra"] == {"notes": {"nan": "NaN"}}
    assert len(list((tmp_path / "deep" / "er").iterdir())) == 2
