"""Steps for a comparison, read from journals: restarts, frames that come twice, holes, odd columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sample_runs import LAYERS, frame, layout, run_start, write_models, write_run

from dashboard.arguments import command_parser
from dashboard.commands.diff import RunDifference, compare_asked, compare_runs, json_text, text_lines
from dashboard.comparison.journal_steps import open_rank, read_steps
from dashboard.comparison.parting import TOLERANCE, WINDOW
from dashboard.errors import DashboardError
from probe.delivery.journal.journal import JournalWriter
from probe.wire import Frame, encode
from probe.wire.columns import pack_column


def write(folder: Path, frames: Sequence[Frame], *, incarnation: int = 1, rank: int = 0) -> None:
    """One incarnation of one rank."""
    name = f"{rank}-{incarnation}"
    journal = JournalWriter(folder / name, run=folder.name, writer=name)
    start = msgspec.structs.replace(run_start(folder.name), rank=rank, incarnation=incarnation)
    for record in (start, layout()):
        journal.append("events", encode(record))
    journal.append_many("metrics", [encode(each) for each in frames])
    journal.close()


def with_loss(step: int, loss: float) -> Frame:
    return msgspec.structs.replace(frame(step), scalars={"loss": loss, "step_time_s": 0.1})


def losses(folder: Path) -> dict[int, float]:
    blocks = list(read_steps(open_rank(folder, 0)))
    pairs = [
        (step, value)
        for block in blocks
        for step, value in zip(block.steps.tolist(), block.scalars["loss"].values.tolist(), strict=True)
    ]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_steps_come_in_windows_with_layers_and_compared_scalars_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=WINDOW + 3)
    first, second = read_steps(open_rank(folder, 0))
    assert (first.window, second.window, len(second.steps)) == (0, 1, 3)
    assert first.layers == LAYERS and set(first.scalars) == {"loss", "grad_norm"}
    np.testing.assert_allclose(second.norms[0] / second.norms[0][0], [1, 2, 3], rtol=1e-6)
    assert second.measured.all()


def test_restart_takes_the_place_of_what_it_does_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, [with_loss(step, 1.0) for step in range(300)], incarnation=1)
    write(folder, [with_loss(step, 2.0) for step in range(200, 260)], incarnation=2)
    found = losses(folder)
    assert (len(found), found[199], found[200], found[259]) == (260, 1.0, 2.0, 2.0)


def test_step_that_comes_twice_counts_as_written_last(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, [with_loss(4, 1.0), with_loss(4, 3.0), with_loss(5, 1.0)])
    assert losses(folder) == {4: 3.0, 5: 1.0}


def test_frames_that_go_back_are_counted_and_not_compared(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, [with_loss(step, 1.0) for step in (0, WINDOW, 1, 2, WINDOW + 1)])
    rank = open_rank(folder, 0)
    assert [block.window for block in read_steps(rank)] == [0, 1]
    assert rank.unreadable == 3


def test_column_that_fits_no_layout_is_counted_and_not_measured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    odd = msgspec.structs.replace(frame(1), columns=[pack_column("grad_norm", np.ones(7))])
    unnamed = msgspec.structs.replace(frame(2), layout=9)
    write(folder, [frame(0), odd, unnamed])
    rank = open_rank(folder, 0)
    (block,) = read_steps(rank)
    assert block.measured.any(axis=1).tolist() == [True, False, False]
    assert rank.unreadable == 1


def test_parameter_without_a_gradient_is_not_measured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    missing = np.packbits([False, True, False]).tobytes()
    write(folder, [msgspec.structs.replace(frame(0), missing=missing)])
    (block,) = read_steps(open_rank(folder, 0))
    assert block.measured.tolist() == [[True, False, True]]


def test_each_model_of_a_run_is_compared_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCOPE_SPOOL", str(tmp_path))
    write_models(tmp_path, "sweep", [(1.0, 2.0), (1.0, 3.0), (1.0, 3.0)])
    write_models(tmp_path, "alone", [(1.0, 3.0)])

    def compared(first: str, second: str, *members: int) -> RunDifference:
        options = [word for member in members for word in ("--member", str(member))]
        return compare_asked(command_parser().parse_args(["diff", first, second, *options]))

    found = compared("sweep", "sweep", 0, 1)
    assert found.parting.step == 1
    assert [value for fact in found.facts.differing for value in fact.values] == ["0", "1"]
    assert next(text_lines(found)) == "First: sweep (train.py), model 1. Second: sweep (train.py), model 2."
    assert json.loads(json_text(found))["second"] == {"run": "sweep", "name": "train.py", "member": 1}
    assert compared("sweep", "sweep", 1, 2).is_equal
    assert compared("sweep", "alone", 1, 0).is_equal
    for wrong, said in [((1,), "--member` twice"), ((0, 3), "from 0 to 2"), ((0, 1, 2), "once for both")]:
        with pytest.raises(DashboardError, match=said):
            compared("sweep", "sweep", *wrong)
    with pytest.raises(DashboardError, match="has one model"):
        compared("sweep", "alone", 1)


def difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> RunDifference:
    monkeypatch.setenv("NANSCOPE_SPOOL", str(tmp_path))
    return compare_runs(first, second, rank=0, tolerance=1e-6)


def test_damaged_record_is_said_and_the_rest_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, "one", steps=50)
    other = write_run(tmp_path, "two", steps=50)
    (segment,) = other.glob("0-1/metrics-*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    found = difference(tmp_path, monkeypatch, "one", "two")
    assert found.is_equal and found.unreadable == (0, 1)
    said = "\n".join(text_lines(found))
    assert "The journal of the second run lacks 1 record (deleted" in said
    assert "equal in all 49 steps" in said and "In the first run only, and not compared: step 24" in said


def test_damage_before_the_steps_is_counted_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "one", steps=50)
    for stream in ("events", "metrics"):
        (segment,) = folder.glob(f"0-1/{stream}-*.seg")
        data = bytearray(segment.read_bytes())
        at = data.index(b"layout" if stream == "events" else b"frame")
        data[at] ^= 0xFF
        segment.write_bytes(data)
    rank = open_rank(folder, 0)
    (block,) = read_steps(rank)
    assert (len(block.steps), block.layers, rank.unreadable) == (49, (), 2)


def test_models_of_other_layers_are_named_and_are_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, "one", steps=5, layers=("embedding", "old"))
    write_run(tmp_path, "two", steps=5, layers=("embedding", "\x1b[31mnew"))
    found = difference(tmp_path, monkeypatch, "one", "two")
    assert found.parting.is_equal and not found.is_equal
    said = "\n".join(text_lines(found))
    assert "first run's model only: `old.weight`." in said
    assert "\x1b" not in said and "new.weight" in said


def test_layout_is_that_of_the_first_model_whose_steps_are_compared(tmp_path: Path) -> None:
    """A trial of another width has a layout of its own behind it."""
    folder = tmp_path / "run"
    name = "0-1"
    journal = JournalWriter(folder / name, run=folder.name, writer=name)
    wider = msgspec.structs.replace(layout(), layout=1, member=1)
    for record in (run_start(folder.name), layout(), wider):
        journal.append("events", encode(record))
    journal.append_many("metrics", [encode(with_loss(0, 1.0))])
    journal.close()
    opened = open_rank(folder, 0)
    assert opened.layout is not None and opened.layout.layout == layout().layout
    assert len(opened.layouts) == 2


def test_not_finite_values_are_strings_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one", [with_loss(0, float("nan"))])
    write(tmp_path / "two", [with_loss(0, float("inf"))])
    document = msgspec.json.decode(json_text(difference(tmp_path, monkeypatch, "one", "two")))
    (scalar,) = document["parting"]["scalars"]
    assert (scalar["first"], scalar["second"]) == ("NaN", "Infinity")
    assert document["equal"] is False


@pytest.mark.parametrize(
    ("second", "rank", "said"),
    [("one", 0, "give two runs"), ("nowhere", 0, "No run called"), ("two", 3, "no journal of rank 3")],
)
def test_runs_that_cannot_be_compared_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, rank: int, said: str
) -> None:
    monkeypatch.setenv("NANSCOPE_SPOOL", str(tmp_path))
    write_run(tmp_path, "one", steps=5)
    write_run(tmp_path, "two", steps=5)
    with pytest.raises(DashboardError, match=said):
        compare_runs("one", second, rank=rank, tolerance=0.0)


def test_command_takes_the_tolerance_of_the_page() -> None:
    arguments = command_parser().parse_args(["diff", "one", "two"])
    assert (arguments.tolerance, arguments.rank) == (TOLERANCE, 0)


@pytest.mark.parametrize("given", ["-1", "1", "nan", "x", "inf"])
def test_tolerance_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command_parser().parse_args(["diff", "one", "two", "--tolerance", given])
    assert refused.value.code == 2 and "is not a tolerance" in capsys.readouterr().err
