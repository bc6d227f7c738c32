"""What `golden.py` takes for a difference, and what not."""

from pathlib import Path

import msgspec
import pytest
from golden import Program, compare, essence
from journal_differences import between
from journals import Journal, read_journal
from small_training import batches, small_model
from torch import optim
from torch.nn import functional as F

import probe


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """Of three steps."""
    spool = tmp_path_factory.mktemp("golden")
    model = small_model()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, spool=spool, run="run"):
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return read_journal(spool / "run")


def changed(journal: Journal, **scalars: float) -> Journal:
    """The same run with other numbers of its last step."""
    last = msgspec.structs.replace(journal.frames[-1], scalars=journal.frames[-1].scalars | scalars)
    return Journal(**{**vars(journal), "frames": [*journal.frames[:-1], last]})


@pytest.mark.parametrize("name", ["loss", "grad_norm", "samples"])
def test_number_of_a_step_that_differs_is_told_with_its_place(journal: Journal, name: str) -> None:
    (line,) = between("run", essence(journal), essence(changed(journal, **{name: 0.25})))
    assert line.startswith(f"run.steps.(2, 0).{name}: '0.25', not ")


def test_stage_and_lost_step_are_told(journal: Journal) -> None:
    other = msgspec.structs.replace(journal.frames[-1], stage="clipped")
    frames = [*journal.frames[1:-1], other]
    lines = list(between("run", essence(journal), essence(Journal(**{**vars(journal), "frames": frames}))))
    assert [line.partition(":")[0] for line in lines] == ["run.steps.(0, 0)", "run.steps.(2, 0).stage"]


def test_clock_readings_are_no_difference(journal: Journal) -> None:
    assert essence(journal) == essence(changed(journal, step_time_s=9.0, forward_s=9.0))


def test_program_that_records_nothing_differs(tmp_path: Path) -> None:
    program = Program("nothing", ("-c", "pass"), prints_weights=False)
    assert compare(program, tmp_path, tmp_path / "runs") == ["nothing was recorded"]
