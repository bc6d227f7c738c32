"""A session's life: it begins, is refused, switched off or closed, and training does not notice."""

import copy
import gc
import io
import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_scripts import ForkedScripts
from run_numbers import run_of, runs_of
from small_training import seeded_model, train
from torch import nn

import probe

pytestmark = pytest.mark.usefixtures("one_thread")


def test_training_with_probe_is_bit_identical() -> None:
    plain, watched = seeded_model(), seeded_model()
    torch.manual_seed(7)
    expected = train(plain, torch.optim.AdamW(plain.parameters()), 200)
    generator_after = torch.get_rng_state()
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(watched.parameters())
    with probe.watch(watched, optimizer):
        losses = train(watched, optimizer, 200)
    assert losses == expected
    assert torch.equal(torch.get_rng_state(), generator_after)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


def test_second_watch_returns_the_running_session() -> None:
    model = seeded_model()
    with probe.watch(model) as first:
        assert probe.watch(model) is first


def test_close_takes_everything_back() -> None:
    model = seeded_model()
    backward, clip, hook = torch.autograd.backward, nn.utils.clip_grad_norm_, sys.excepthook
    run = probe.watch(model)
    assert "__call__" in nn.Sequential.__dict__
    run.close()
    run.close()
    assert "__call__" not in nn.Sequential.__dict__
    assert (torch.autograd.backward, nn.utils.clip_grad_norm_) == (backward, clip)
    assert sys.excepthook is hook


def test_model_stays_clean_for_copies_and_pickles() -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        train(model, optimizer, 2)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        twin = copy.deepcopy(model)
    assert b"probe" not in buffer.getvalue()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_dropped_model_ends_its_session() -> None:
    run = probe.watch(seeded_model())
    assert not run.active


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "loud"}, "level='loud' is not available; choose one of 'off', 'basic'"),
        ({"mode": "shout"}, "mode='shout'"),
        ({"parameter_norm_every": 0}, "parameter_norm_every=0 must be a whole number of at least 1"),
        ({"speed": 3}, "unknown option 'speed'"),
    ],
)
def test_watch_of_a_wrong_option_says_what_is_allowed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        probe.watch(seeded_model(), **arguments)


def test_watch_of_a_model_without_parameters_says_what_to_pass() -> None:
    with pytest.raises(ValueError, match="ReLU has no trainable parameters; pass the model"):
        probe.watch(nn.ReLU())


def test_watch_of_something_else_says_what_it_got() -> None:
    with pytest.raises(ValueError, match=r"takes a torch.nn.Module, got list"):
        probe.watch([1])  # type: ignore[arg-type]


def test_switched_off_by_environment_is_inert(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    model = seeded_model()
    run = probe.watch(model)
    run.log(loss=1.0)
    assert not run.active
    assert not spool.exists()


def test_spool_that_cannot_be_written_leaves_training_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.ERROR), probe.watch(model, optimizer, spool=blocked / "spool") as run:
        train(model, optimizer, 2)
    assert not run.active
    assert "this run is not recorded" in caplog.text


def test_untested_torch_is_used_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    model = seeded_model()
    with probe.watch(model) as run:
        assert run.active
    assert "tested with torch 2.11 to 2.14; this is 2.99.0" in caplog.text


def test_missing_torch_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import probe; probe.watch"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert finished.stderr.splitlines()[-1] == (
        "ImportError: probe.watch needs PyTorch, which is not installed here: pip install torch==2.13.0"
    )


def test_watch_in_a_deleted_folder_records_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    model = seeded_model()
    with probe.watch(model) as run:
        assert run.active


def test_model_dropped_after_an_evaluation_is_freed() -> None:
    model = seeded_model()
    run = probe.watch(model)
    model(torch.ones(8, 6))
    del model
    assert not run.active


def test_output_is_saved_without_a_warning_of_ours() -> None:
    model = seeded_model()
    buffer = io.BytesIO()
    with probe.watch(model), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.save(model(torch.ones(8, 6)), buffer)
    assert [str(warning.message) for warning in seen] == []
    assert b"probe" not in buffer.getvalue()


def test_model_collected_by_the_recorders_own_thread_ends_its_session(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = seeded_model()
    model.cycle = [model]  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = probe.watch(model, optimizer)
    train(model, optimizer, 2)
    recorder = run._recorder
    assert recorder is not None
    write_events = recorder._events.write

    def collect_amid_writing() -> None:
        gc.collect()
        write_events()

    monkeypatch.setattr(recorder._events, "write", collect_amid_writing)
    gc.disable()
    try:
        del model, optimizer
        recorder._thread.join(10)
    finally:
        gc.enable()
    assert not run.active
    assert not recorder._thread.is_alive()
    end = run_of(spool).end
    assert end is not None
    assert (end.outcome, end.step) == ("finished", 1)


def test_close_after_the_model_is_gone_has_written_everything(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = probe.watch(model, optimizer)
    train(model, optimizer, 2)
    del model, optimizer
    run.close()
    assert len(run_of(spool).frames) == 2
    assert run_of(spool).end is not None


_ENDS_WHILE_ITS_SESSION_IS_BEING_CLOSED = """
import time
import torch
import probe
from probe.delivery.recorder.recorder import Recorder

write_frames, slow = Recorder._write_frames, []

def write_slowly(recorder):
    if recorder._closed:
        slow.append(True)
        time.sleep(0.5)
    write_frames(recorder)

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe.watch(model, optimizer, overhead_limit=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

Recorder._write_frames = write_slowly
main()
while not slow:
    time.sleep(0.001)
"""


def test_script_that_ends_while_its_session_is_being_closed_waits_for_it(
    spool: Path, forked: ForkedScripts
) -> None:
    """The model goes with the function that made it, and the recorder's own thread closes the session."""
    ended = forked.start(["-c", _ENDS_WHILE_ITS_SESSION_IS_BEING_CLOSED], spool.parent)
    code, out, err = ended.finish(60)
    assert (code, out, len(err.splitlines())) == (0, "", 1)
    run = run_of(spool)
    assert [frame.step for frame in run.frames] == [0, 1, 2]
    assert run.end is not None


def closes_before_the_thread() -> bool:
    """Whether the script was the first to close a session whose model is gone."""
    model = seeded_model()
    run = probe.watch(model)
    recorder = run._recorder
    assert recorder is not None
    joined: list[float | None] = []
    join = recorder._thread.join

    def note_join(timeout: float | None = None) -> None:
        join(timeout)
        joined.append(timeout)
        assert not recorder._thread.is_alive(), "it waits for who waits for it"

    recorder._thread.join = note_join  # type: ignore[method-assign]
    del model
    run.close()
    return bool(joined)


def test_script_that_closes_its_session_before_the_thread_could_does_not_wait_for_it(spool: Path) -> None:
    # The thread may come first, four times a second.
    assert any(closes_before_the_thread() for _ in range(10))
    assert all(run.end is not None for run in runs_of(spool))


def test_run_keeps_the_seed_of_torch_and_draws_nothing(spool: Path) -> None:
    torch.manual_seed(1234)
    model = nn.Linear(2, 1)
    before = torch.get_rng_state()
    with probe.watch(model) as run:
        pass
    assert json.loads((spool / run.run / "run.json").read_text())["torch_seed"] == 1234
    assert torch.equal(torch.get_rng_state(), before)
