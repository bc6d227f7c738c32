"""The report of a run, read from journals that are written here record by record."""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from probe import wire
from probe.actions.analysis import report_contents, report_curves
from probe.actions.analysis.recorded import summarise_recorded
from probe.actions.analysis.report_files import report_path, write_report
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


def loss_of(report: RunReport) -> report_curves.SeriesSummary:
    return next(series for series in report.series if series.name == "loss")


@pytest.mark.parametrize("last", [math.nan, math.inf, 1.0])
def test_first_and_last_value_of_a_series_are_what_they_were(tmp_path: Path, last: float) -> None:
    frames = [frame(step, loss) for step, loss in enumerate([math.nan, 0.0, last])]
    folder = written(tmp_path, frames)
    loss = loss_of(read_report(folder))
    assert str((loss.first, loss.last, loss.low)) == str((math.nan, last, 0.0))
    summary = summarise_recorded(folder, mode="detect").training
    assert str((summary.last_loss, summary.best_loss)) == str((last, 0.0))


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
    monkeypatch.setattr(report_contents, "METRICS_BYTES", 3000)
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


@pytest.mark.parametrize(
    ("wanted", "rank", "name"),
    [
        (None, 0, "nanscope-r.json"),
        ("debug_report.json", 0, "debug_report.json"),
        ("report", 0, "report.json"),
        ("report.html", 3, "report-rank3.html"),
        ("folder", 0, "folder/nanscope-r.json"),
        ("new/", 1, "new/nanscope-r-rank1.json"),
        ("v1.2", 0, "v1.2"),
    ],
)
def test_report_goes_exactly_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str | None, rank: int, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert (tmp_path / report_path(wanted, run="r", rank=rank)) == tmp_path / name


@pytest.mark.parametrize(
    ("ending", "begins"), [(".json", "{"), (".txt", "run r (mine), rank 3"), (".html", "<!doctype html>")]
)
def test_report_has_the_form_of_its_ending_and_is_one_file(tmp_path: Path, ending: str, begins: str) -> None:
    report = read_report(written(tmp_path, [frame(0, 1.0)]), extra={"notes": {"nan": math.nan}})
    path = write_report(report, tmp_path / "deep" / "er" / f"r{ending}")
    assert path.read_text().startswith(begins)
    assert list(path.parent.iterdir()) == [path]


def test_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    report = read_report(written(tmp_path, [frame(0, 1.0)]))
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(OSError, match=r"taken\.json"):
        write_report(report, tmp_path / "taken.json")
    assert not list(tmp_path.glob(".taken*"))


def test_page_of_a_report_escapes_what_the_run_says_and_requests_nothing(tmp_path: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    found = event(1, kind="gradient_explosion", message=f"{bad} exploded", subject=bad)
    frames = [frame(step, math.nan if step == 3 else float(step)) for step in range(6)]
    report = read_report(written(tmp_path, frames, found), extra={"settings": {"name": bad}})
    text = write_report(report, tmp_path / "r.html").read_text()
    assert "<img" not in text and text.count("&lt;img") >= 3
    assert "<script" not in text and "src=" not in text.replace("&lt;img src=x", "")
    pictures = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(pictures) == 3 and all(ElementTree.fromstring(picture) is not None for picture in pictures)
    assert text.count("NaN or Inf</title>") == 1


def test_curve_is_bounded_and_keeps_highs_and_nan() -> None:
    curve = report_curves.Curve()
    for step in range(10_000):
        curve.add(step, {5000: 99.0, 6000: math.nan}.get(step, 1.0))
    points = curve.points()
    assert report_curves.BUCKETS // 2 <= len(points) <= report_curves.BUCKETS
    assert (points[0].first_step, points[-1].last_step) == (0, 9999)
    assert max(point.high or 0.0 for point in points) == 99.0
    assert sum(point.nonfinite for point in points) == 1


def test_gradient_flow_has_each_layer_at_spread_steps_with_ratios(tmp_path: Path) -> None:
    frames = [frame(step, 1.0, norms=(3.0 + step, 4.0, 2.0)) for step in range(300)]
    flow = read_report(written(tmp_path, frames)).gradient_flow
    assert report_contents.FLOW_STEPS // 2 <= len(flow["steps"]) <= report_contents.FLOW_STEPS
    first = flow["layers"][0]
    assert first["name"] == "a" and first["norms"][0] == 5.0
    assert first["norms"][1] == pytest.approx(math.hypot(3.0 + flow["steps"][1], 4.0))
    assert (
        first["ratio"] == pytest.approx(math.hypot(302.0, 4.0) / 2.0) and flow["layers"][1]["ratio"] is None
    )


def test_report_has_documents_violations_steps_and_parameters(tmp_path: Path) -> None:
    documents = [
        wire.Document(kind="memory_snapshot", key="before", step=0, time=1.0, body=b'{"rss_bytes": 7}'),
        wire.Document(kind="memory_snapshot", key="before", step=2, time=2.0, body=b'{"rss_bytes": 9}'),
        wire.Document(kind="profile", key="p", step=1, time=1.5, body=b"not json"),
    ]
    found = event(4, kind="gradient_vanishing", evidence=wire.Evidence(value=1e-9, threshold=1e-6))
    report = read_report(written(tmp_path, [frame(step, 1.0) for step in range(5)], *documents, found))
    assert [(one["step"], one["body"]) for one in report.memory_snapshots] == [(2, {"rss_bytes": 9})]
    assert "does not decode" in report.profiles[0]["body"]["problem"]
    assert report.gradient_violations[0]["threshold"] == 1e-6 and report.gradient_violations[0]["step"] == 4
    assert [step["step"] for step in report.steps] == [0, 1, 2, 3, 4]
    assert report.parameter_table[2] == {
        "name": "b.weight", "shape": [1], "dtype": "float32", "layer": "b",
    }  # fmt: skip
    assert report.training["gradient_vanishing_rate"] == 0.2
