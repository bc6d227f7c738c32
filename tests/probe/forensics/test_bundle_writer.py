"""What is written of a fault, how much of it, and what is said when it cannot be."""

import contextlib
import dataclasses
import json
import math
import os
import resource
import threading
from collections.abc import Iterator

import msgspec
import pytest
import torch
from bundle_models import Planted
from bundled_step import RUN, Bundles, content_of, event_of
from replayed_step import CapturedStep, batch, run_step
from torch import nn

from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import read_run_json
from probe.delivery.recorder import beside
from probe.delivery.recorder import recorder as recorder_module
from probe.errors import BundleError
from probe.forensics.bundle import writer as writer_module
from probe.forensics.bundle.reproduce import read_bundle, reproduce
from probe.wire import Event, Frame, RunStart, decode_record
from probe.wire.bundle_format import MAX_DESCRIPTION_BYTES, check_folder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def step() -> CapturedStep:
    torch.manual_seed(3)
    return run_step(Planted(), batch(32), shift=1.0)


@pytest.fixture
def bundles(spool, monkeypatch) -> Iterator[Bundles]:
    # A busy machine is no slow disk.
    monkeypatch.setattr(writer_module, "SLOW_S", math.inf)
    monkeypatch.setattr(writer_module, "WAIT_S", 30.0)
    opened = Bundles(spool)
    yield opened
    opened.close()


def with_options(bundles: Bundles, **options) -> Bundles:
    bundles.writer = type(bundles.writer)(bundles.recorder, bundles.start, **options)
    return bundles


def replay(folder):
    return reproduce(read_bundle(folder), folder, Planted)


def test_event_is_told_where_the_bundle_is(bundles, step):
    event = event_of(bundles.start)
    told = bundles.writer.attach(event, content_of(step))
    folder = bundles.recorder.folder.parent / "bundles" / event.id
    assert told.message == f"NaN first at step 7\nBundle for dashboard replay: {folder}"
    assert (folder / "tensors.safetensors").is_file()
    assert bundles.writer.written == 1


def test_line_about_the_bundle_fits_a_long_message(bundles, step):
    event = msgspec.structs.replace(event_of(bundles.start), message="x" * 5000)
    told = bundles.writer.attach(event, content_of(step))
    assert len(told.message) == 4000
    assert told.message.splitlines()[1].startswith("Bundle for dashboard replay: ")


def test_bundle_is_private(bundles, step):
    _, folder = bundles.write(step)
    files = [path for path in folder.rglob("*") if path.is_file()]
    folders = [folder.parent, folder, *(path for path in folder.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_description_is_plain_json_with_event_environment_and_rates(bundles, step):
    _, folder = bundles.write(step)
    found = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    assert found["event"]["kind"] == "nonfinite_loss"
    assert found["environment"]["settings"]["threads"] == 1
    assert found["environment"]["facts"]["torch"] == torch.__version__
    assert found["run"]["name"] == "train.py"
    assert found["learning_rates"] == {"lr": 0.1, "lr/head": 0.2, "amp_scale": 8.0}
    assert [parameter["name"] for parameter in found["contents"]["model"]["parameters"]] == [
        name for name, _ in step.model.named_parameters()
    ]


def test_last_steps_are_there_as_json_and_as_a_spool(bundles, step):
    _, folder = bundles.write(step)
    steps = json.loads((folder / "statistics.json").read_text(encoding="utf-8"))
    assert [(one["step"], one["loss"]) for one in steps] == [(n, 1.0 + n) for n in range(36, 100)]
    (writer,) = (folder / "spool" / RUN).glob("0-*")
    events = [decode_record(data) for _, data in read_stream(writer, "events")]
    assert [type(record).__name__ for record in events] == ["RunStart", "Layout", "Event"]
    frames = [decode_record(data) for _, data in read_stream(writer, "metrics")]
    assert [frame.step for frame in frames if isinstance(frame, Frame)] == list(range(36, 100))
    assert isinstance(read_run_json(folder / "spool" / RUN), RunStart)


def test_frames_that_are_not_in_the_journal_yet_come_last(bundles, step):
    frame = Frame(step=100, time=1.0, scalars={"loss": float("nan"), "lr": 0.3})
    given = dataclasses.replace(content_of(step), frames=lambda: [frame])
    event = event_of(bundles.start)
    bundles.writer.write(event, given)
    folder = bundles.recorder.folder.parent / "bundles" / event.id
    steps = json.loads((folder / "statistics.json").read_text(encoding="utf-8"))
    assert (steps[0]["step"], steps[-1]) == (37, {"step": 100, "time": 1.0, "loss": "NaN", "lr": 0.3})


def test_training_state_is_the_same_after_writing(bundles, step):
    before = {name: value.clone() for name, value in step.model.state_dict().items()}
    gradients = {name: value.clone() for name, value in step.gradients().items()}
    generator = torch.get_rng_state()
    bundles.write(step)
    assert all(torch.equal(value, before[name]) for name, value in step.model.state_dict().items())
    assert all(torch.equal(v.isnan(), gradients[n].isnan()) for n, v in step.gradients().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert step.replay().fidelity == "exact"


# ---------------------------------------------------------------------------- what is left out


def test_without_inputs_nothing_of_the_data_is_written_and_it_says_so(bundles, step):
    line, folder = with_options(bundles, with_inputs=False).write(step)
    assert "cannot be replayed (its inputs were left out (bundle_inputs=False))" in line
    bundle = read_bundle(folder)
    assert bundle.left_out == ["inputs and outputs"]
    assert bundle.contents.calls == []
    assert all(
        name.startswith(("parameters/", "buffers/", "gradients/", "loss")) for name in bundle.contents.blobs
    )
    with pytest.raises(BundleError, match="inputs were left out"):
        replay(folder)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({1, 2}, "an argument is a set, which cannot be captured"),
        (batch, r"args\[1\] is a function, which a bundle cannot hold"),
    ],
)
def test_argument_that_cannot_be_written_is_named(bundles, argument, said):
    class Taking(nn.Linear):
        def forward(self, x, what):
            return super().forward(x)

    line, folder = bundles.write(run_step(Taking(4, 3), batch(), argument))
    assert "cannot be replayed" in line
    bundle = read_bundle(folder)
    with pytest.raises(BundleError, match=said):
        reproduce(bundle, folder, Planted)
    assert bundle.contents.gradients


def test_batch_that_was_changed_in_place_is_said_to_be(bundles):
    x = batch()
    step = run_step(nn.Linear(4, 3), x)
    x.zero_()
    line, _ = bundles.write(step)
    assert "cannot be replayed (an input was changed in place" in line


def test_event_without_a_step_is_kept_with_its_statistics(bundles):
    line, folder = bundles.write(None)
    assert "nothing of the step was at hand" in line
    assert isinstance(read_bundle(folder).event.step, int)
    (writer,) = (folder / "spool" / RUN).glob("0-*")
    assert any(isinstance(decode_record(d), Event) for _, d in read_stream(writer, "events"))


# ---------------------------------------------------------------------------- what is not written


def test_a_run_gets_so_many_and_no_more(bundles, step):
    with_options(bundles, most=2)
    written = [bundles.write(step, number=number) for number in range(4)]
    assert [folder.is_dir() for _, folder in written] == [True, True, False, False]
    assert written[2][0] == "No bundle: this run has 2 already (bundles)."


def test_none_are_written_where_none_are_wanted(bundles, step):
    line, folder = with_options(bundles, most=0).write(step)
    assert (line, folder.parent.exists()) == ("", False)


def test_bundle_has_the_step_as_it_was_though_the_training_goes_on(bundles, step, monkeypatch):
    _, whole = bundles.write(step)
    held = hold_thread(bundles, monkeypatch)
    event = event_of(bundles.start, step=8)
    line = bundles.writer.write(event, content_of(step))
    with torch.no_grad():
        for value in (*step.model.parameters(), *step.model.buffers(), *step.gradients().values()):
            value.zero_()
    held.set()
    bundles.recorder.beside.wait()
    assert line == f"Its bundle is still being written: {whole.parent / event.id}"
    name = "tensors.safetensors"
    assert (whole.parent / event.id / name).read_bytes() == (whole / name).read_bytes()


def hold_thread(bundles, monkeypatch):
    """Let nothing be written before the event that is returned is set; the step does not wait for it."""
    held, write = threading.Event(), bundles.writer._write_folder

    def write_later(*given):
        held.wait(30)
        write(*given)

    monkeypatch.setattr(bundles.writer, "_write_folder", write_later)
    monkeypatch.setattr(writer_module, "WAIT_S", 0.0)
    return held


def test_bundle_that_is_not_complete_at_the_end_is_said_in_its_events_newest_state(
    bundles, step, monkeypatch, caplog
):
    monkeypatch.setattr(recorder_module, "END_WAIT_S", 0.01)
    monkeypatch.setattr(beside, "SILENT_S", 0.005)
    held = hold_thread(bundles, monkeypatch)
    told = bundles.writer.attach(event_of(bundles.start), content_of(step))
    bundles.recorder.event(told)
    bundles.recorder._end_bundles()
    assert [record.getMessage().partition(":")[2] for record in caplog.records] == [
        " waiting up to 0 s for bundles that are being written",
        " bundles that are not complete at the end of the run: 1",
    ]
    bundles.recorder.event(msgspec.structs.replace(told, count=2))
    said = [state.message.splitlines()[-1] for state in states_of(bundles)]
    assert [line.partition(":")[0] for line in said] == [
        "Its bundle is still being written",
        "No bundle yet",
        "No bundle yet",
    ]
    other = "Its bundle is still being written: /elsewhere/0123"
    bundles.recorder.event(msgspec.structs.replace(told, id="0123" * 4, message=f"{told.message}\n{other}"))
    held.set()
    bundles.recorder.beside.wait()
    newest = {state.id: state for state in states_of(bundles)}
    line = f"Bundle for dashboard replay: {bundles.recorder.folder.parent / 'bundles' / told.id}"
    assert (newest[told.id].count, newest[told.id].message.splitlines()[1:]) == (2, [line])
    assert newest["0123" * 4].message.splitlines()[1:] == [line, other]


def states_of(bundles):
    """The states of all events that are in the journal."""
    bundles.recorder.flush()
    records = [decode_record(data) for _, data in read_stream(bundles.recorder.folder, "events")]
    return [record for record in records if isinstance(record, Event)]


def test_disk_that_takes_no_more_is_said_and_leaves_nothing(bundles, step):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        line, folder = bundles.write(step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert line == f"No bundle was written in {folder.parent}: File too large."
    assert list(folder.parent.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_after_an_hour(bundles, step):
    folder = bundles.recorder.folder.parent / "bundles"
    old, new = folder / ".0123-1", folder / ".4567-2"
    for path in (old, new):
        path.mkdir(parents=True)
        (path / "tensors.safetensors").write_bytes(b"part")
    os.utime(old, (1.0, 1.0))
    _, written = bundles.write(step)
    assert sorted(folder.iterdir()) == [new, written]


def test_place_where_no_folder_can_be_is_said(bundles, step):
    place = bundles.recorder.folder.parent / "bundles"
    place.write_text("in the way", encoding="utf-8")
    assert bundles.write(step)[0] == f"No bundle was written in {place}: File exists."


# ---------------------------------------------------------------------------- what is not read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a bundle's description"),
        ("{", "not a bundle's description"),
        ('{"version": 2}', "version 2, which a newer nanscope has written; this nanscope reads version 1"),
        ('{"version": 0}', "version 0, which an older nanscope has written; this nanscope reads version 1"),
        ('{"version": 1}', "missing required field"),
        ("[" * 100_000, "not a bundle's description"),
    ],
)
def test_description_that_is_none_is_refused(tmp_path, text, said):
    (tmp_path / "bundle.json").write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=said):
        read_bundle(tmp_path)


def test_folder_that_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match=r"is not a bundle: .* No such file"):
        read_bundle(tmp_path)


def test_endless_description_is_refused(tmp_path):
    with (tmp_path / "bundle.json").open("wb") as file:
        file.truncate(MAX_DESCRIPTION_BYTES + 1)
    for read in (read_bundle, check_folder):
        with pytest.raises(BundleError, match="and at most 268,435,456 are read"):
            read(tmp_path)


def test_description_that_is_a_pipe_or_a_link_is_refused(tmp_path):
    path = tmp_path / "bundle.json"
    os.mkfifo(path)
    for read in (read_bundle, check_folder):
        with pytest.raises(BundleError, match="not a regular file"):
            read(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    for read in (read_bundle, check_folder):
        with pytest.raises(BundleError, match="it is a link"):
            read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda contents: contents["calls"][0].update(root="missing"),
        lambda contents: contents["calls"][0].update(args={"list": [{"eval": 1}]}),
        lambda contents: contents["calls"][0].update(args=3),
        lambda contents: contents["calls"][0].update(rng_cpu=0),
        lambda contents: contents["calls"][0].update(rng_numpy=["x"]),
        lambda contents: contents["calls"][0]["passes"][0].update(gradients=[[0, 10**6]]),
        lambda contents: contents["model"].update(naming_root="elsewhere"),
        lambda contents: contents["model"]["buffers"].append(
            {"name": "a.b.c", "tensor": 0, "is_persistent": True}
        ),
        lambda contents: contents["model"]["buffers"].append(
            {"name": "forward", "tensor": 0, "is_persistent": False}
        ),
        lambda contents: contents["gradients"][0].update(name="elsewhere"),
        lambda contents: contents.update(loss=10**6),
        lambda contents: contents["tensors"].clear(),
    ],
)
def test_description_that_was_tampered_with_is_refused(bundles, step, change):
    _, folder = bundles.write(step)
    path = folder / "bundle.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    change(description["contents"])
    path.write_text(json.dumps(description), encoding="utf-8")
    with contextlib.suppress(BundleError):
        assert not replay(folder).is_reproduced
