"""What a step may wait for, when its bundle is copied, and what is left out beyond that."""

import gc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from bundle_models import Planted
from bundled_step import Bundles, content_of, event_of
from replayed_step import CapturedStep, batch, run_step

from probe.delivery.host_memory import MemorySample
from probe.errors import BundleError
from probe.forensics.bundle import chosen_parts, packer
from probe.forensics.bundle import writer as writer_module
from probe.forensics.bundle.batches import load_batches
from probe.forensics.bundle.black_box import BlackBox, PastBatch
from probe.forensics.bundle.reproduce import Reproduction, read_bundle, reproduce
from probe.forensics.bundle.schema import Bundle
from probe.wire.message_lines import bundle as replayable

pytestmark = pytest.mark.usefixtures("one_thread")


class Written(NamedTuple):
    line: str
    bundle: Bundle
    folder: Path

    def replay(self) -> Reproduction:
        return reproduce(self.bundle, self.folder, Planted)

    @property
    def left_out(self) -> list[str]:
        """Without what is not too large: the function that called backward has returned long ago."""
        return [entry for entry in self.bundle.left_out if not entry.startswith("the lines ")]

    def nbytes(self, *labels: str) -> int:
        blobs = self.bundle.contents.blobs
        sizes = {name: blob.elements * getattr(torch, blob.dtype).itemsize for name, blob in blobs.items()}
        return sum(size for name, size in sizes.items() if name.startswith(labels or ("",)))


class Writing:
    """Has bundles of one step written."""

    def __init__(self, spool: Path) -> None:
        torch.manual_seed(3)
        self.bundles = Bundles(spool)
        self.step = run_step(Planted(), batch(32), shift=1.0)
        self.past = _past(self.step)

    def write(self, *, is_asked: bool = False, **options: Any) -> Written:
        self.bundles.writer = type(self.bundles.writer)(
            self.bundles.recorder, self.bundles.start, most=100, **options
        )
        event = event_of(self.bundles.start, step=self.bundles.writer._count())
        line = self.bundles.writer.write(event, content_of(self.step, self.past), is_asked=is_asked)
        folder = self.bundles.recorder.folder.parent / "bundles" / event.id
        return Written(line, read_bundle(folder), folder)


def _past(step: CapturedStep) -> list[PastBatch]:
    box = BlackBox(steps=8, limit_bytes=1 << 20)
    box.keep(5, run_step(Planted(), batch(16)).captures)
    return box.before(6)


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writing]:
    opened = Writing(tmp_path_factory.mktemp("spool"))
    yield opened
    opened.bundles.close()


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SLOW_S", float("inf"))
    monkeypatch.setattr(writer_module, "WAIT_S", 30.0)


PARTS = ("the inputs of the steps before", "gradients", "outputs", "inputs")
"""What is left out, in turn."""
STATE = ("parameters/", "buffers/", "attributes/")


@pytest.fixture(scope="module")
def sizes(writing: Writing) -> list[int]:
    """How much there is besides the weights, with everything and without each of `PARTS` more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "WAIT_S", 30.0)
        whole = writing.write()
    rest = whole.nbytes() - whole.nbytes(*STATE)
    labels = ("batches/",), ("gradients/",), ("calls/0/outputs/", "calls/0/backward/")
    found = [rest]
    for label in labels:
        found.append(found[-1] - whole.nbytes(*label))
    return found


@pytest.mark.parametrize("missing", range(5))
def test_what_is_worth_least_is_left_out_first(
    writing: Writing, sizes: list[int], monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    monkeypatch.setattr(chosen_parts, "COPY_BYTES", [*sizes, 1000][missing])
    done = writing.write()
    names = ", ".join(PARTS[:missing])
    assert [entry.partition(":")[0] for entry in done.left_out] == [names] * bool(names)
    assert done.nbytes(*STATE) == sum(value.nbytes for value in writing.step.model.state_dict().values())
    assert (f"Not in its bundle: {names} (" in done.line) == bool(names)
    assert done.line.endswith(str(done.folder))
    assert (replayable(done.line) is not None) == (missing < 4)
    if missing == 4:
        assert "cannot be replayed (its inputs were left out): " in done.line
        assert "`run.save_bundle()`" in done.line
        return
    replay = done.replay().replay
    assert (replay.origin.op, replay.fidelity) == ("sqrt", "exact" if missing < 2 else "confirmed")


def test_copies_end_when_their_time_is_over_but_weights_are_there(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_parts, "COPY_S", -1.0)
    monkeypatch.setattr(packer, "SMALL_BYTES", 100)
    done = writing.write()
    assert done.left_out == [f"{', '.join(PARTS)}: to copy them takes more than -1000 ms"]
    assert done.nbytes(*STATE) == sum(value.nbytes for value in writing.step.model.state_dict().values())
    asked = writing.write(is_asked=True)
    assert (asked.left_out, asked.bundle.not_replayable) == ([], "")


def test_time_that_is_over_in_the_gradients_takes_nothing_from_what_was_copied_before(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = packer._copy

    def slow(source: torch.Tensor, end_s: float) -> torch.Tensor | None:
        # Of the tensors only gradients have these shapes, and weights, whose time does not count.
        return None if tuple(source.shape) == (8, 4) and end_s != float("inf") else copy(source, end_s)

    monkeypatch.setattr(packer, "SMALL_BYTES", 0)
    monkeypatch.setattr(packer, "_copy", slow)
    done = writing.write()
    assert done.left_out[0].startswith(f"{', '.join(PARTS[:2])}: ")
    assert done.replay().outputs.identical == 1


@pytest.mark.parametrize("is_short_of_memory", [False, True])
def test_weights_above_the_limit_leave_the_inputs(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, is_short_of_memory: bool
) -> None:
    """The step's own, those before, and the random generators' states."""
    weights = torch.nn.Linear(200, 200)
    step = run_step(weights, torch.ones(1, 200))
    monkeypatch.setattr(writing, "step", step)
    memory = MemorySample(rss_bytes=0, system_used_bytes=0, system_total_bytes=400_000)
    monkeypatch.setattr(chosen_parts, "read_memory", lambda: memory if is_short_of_memory else None)
    done = writing.write(limit_bytes=1 << 30 if is_short_of_memory else 100_000)
    what = f"{'a quarter of the free memory' if is_short_of_memory else 'bundle_limit_bytes'} (97.7 KiB)"
    assert done.left_out == [f"weights and gradients: 157.0 KiB are more than {what}"]
    assert "cannot be replayed (its weights were left out)" in done.line
    assert [found.step for found in load_batches(done.folder)] == [5, done.bundle.event.step]
    assert done.nbytes("calls/0/rng_cpu") > 0
    with pytest.raises(BundleError, match="its weights were left out"):
        done.replay()


def test_far_above_the_limit_there_is_the_event_alone(writing: Writing) -> None:
    done = writing.write(limit_bytes=100)
    assert "cannot be replayed (all tensors were left out)" in done.line
    (said,) = done.left_out
    assert said.startswith("all tensors: ") and said.endswith(" are more than bundle_limit_bytes (0.1 KiB)")
    assert not (done.folder / "tensors.safetensors").exists()


def test_thread_that_writes_has_nothing_of_torch(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lets go of Python's lock in C++ aborts the process, where the interpreter ends meanwhile."""
    given: list[Any] = []
    write = writer_module.BundleWriter._write_folder
    monkeypatch.setattr(
        writer_module.BundleWriter,
        "_write_folder",
        lambda self, prepared, folder: (given.append(prepared), write(self, prepared, folder)),
    )
    writing.write()
    seen, left = set[int](), given
    while left:
        left = [one for one in left if id(one) not in seen and not isinstance(one, type | ModuleType)]
        assert not [one for one in left if isinstance(one, torch.Tensor | torch.nn.Module)]
        seen |= {id(one) for one in left}
        left = gc.get_referents(*left)
    assert len(seen) > 100
