"""The line above the tiles: what it says of a known length, and what it leaves out where none is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dashboard.page.views.progress_line import duration, newest_progress, progress_line
from dashboard.store.protocol import StoredDocument
from probe.wire import Document
from probe.wire.training_progress import BarState, TrainingProgress


def text(progress: TrainingProgress | None, **options: Any) -> str | None:
    defaults = {"last_step": 339, "step_s": 0.5, "age_s": 0.1, "is_running": True}
    line = progress_line(progress, **{**defaults, **options})
    return None if line is None else line.text


def test_known_length_gives_percentage_and_time_left() -> None:
    progress = TrainingProgress(total_steps=3000, total_epochs=10, epoch=2.0, step=100)
    assert text(progress) == (
        "epoch 2 of 10 \u00b7 step 340 of 3,000 \u00b7 11.3 % \u00b7 about 22 min 10 s left"
    )
    line = progress_line(progress, last_step=339, step_s=0.5, age_s=0.1, is_running=True)
    assert line is not None and line.fraction == pytest.approx(340 / 3000)


def test_ended_run_has_no_time_left_and_no_phase() -> None:
    progress = TrainingProgress(total_steps=400, phase="validation", ended=True)
    assert text(progress, is_running=False) == "step 340 of 400 \u00b7 85.0 %"


def test_time_left_of_an_old_step_says_its_age() -> None:
    progress = TrainingProgress(total_steps=400, phase="validation")
    assert text(progress, age_s=42.0) == (
        "validation \u00b7 step 340 of 400 \u00b7 85.0 % \u00b7 about 30 s left, as of 42 s ago"
    )


def test_steps_before_a_resumed_start_count_and_estimates_are_named() -> None:
    progress = TrainingProgress(total_steps=1000, steps_before=500, is_estimate=True)
    assert text(progress, step_s=None) == "step 840 of about 1,000 \u00b7 84.0 %"


def test_unknown_length_claims_nothing() -> None:
    assert text(None) is None
    assert text(TrainingProgress(step=12)) is None
    assert text(TrainingProgress(epoch=3.0)) == "epoch 3"
    assert text(TrainingProgress(total_steps=10), last_step=None) is None


def test_bar_of_tqdm_is_shown_as_it_stands() -> None:
    bar = BarState(label="Epochs", done=2.0, total=8.0, elapsed_s=60.0)
    assert text(TrainingProgress(bar=bar)) == (
        "\u201cEpochs\u201d: 2 of 8 \u00b7 25.0 % \u00b7 about 3 min left"
    )


def test_document_that_does_not_decode_is_none() -> None:
    def stored(body: bytes) -> StoredDocument:
        document = Document(kind="progress", key="", step=1, time=1.0, body=body)
        return StoredDocument(run="r", rank=0, incarnation=1, document=document)

    good = msgspec.json.encode(TrainingProgress(total_steps=5))
    assert newest_progress([stored(good)]) == TrainingProgress(total_steps=5)
    assert newest_progress([stored(good), stored(b'{"total_steps": "five"}')]) is None
    assert newest_progress([]) is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "1 s"),
        (59.6, "1 min"),
        (3600.0, "1 h"),
        (5430.0, "1 h 30 min"),
        (90_000.0, "25 h"),
        (259_200.0, "3.0 days"),
    ],
)
def test_duration_has_two_units(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.capability(63)
def test_epoch_of_known_length_stands_in_for_a_training_of_unknown_length() -> None:
    progress = TrainingProgress(epoch=4.0, epoch_began=300, epoch_steps=160)
    assert text(progress) == (
        "epoch 4 \u00b7 step 40 of 160 of the epoch \u00b7 25.0 % \u00b7 about 1 min left of the epoch"
    )
    about = msgspec.structs.replace(progress, is_epoch_estimate=True)
    assert "step 40 of about 160 of the epoch" in str(text(about))
    assert text(progress, last_step=999) == "epoch 4 \u00b7 step 160 of 160 of the epoch \u00b7 100 %"


@pytest.mark.parametrize(
    ("last_step", "is_running", "said"),
    [
        (23, True, "epoch 4, step 0 of about 8 of the epoch, 0 %, about 4 s left of the epoch"),
        (23, False, "epoch 3"),
        (24, False, "epoch 4, step 1 of about 8 of the epoch, 12.5 %"),
    ],
)
def test_epoch_that_never_began_is_left_out_once_the_run_is_over(
    last_step: int, is_running: bool, said: str
) -> None:
    progress = TrainingProgress(epoch=4.0, epoch_began=24, epoch_steps=8, is_epoch_estimate=True)
    shown = str(text(progress, last_step=last_step, is_running=is_running))
    assert shown.replace(" \u00b7", ",") == said
    of_three = msgspec.structs.replace(progress, epoch=3.0, total_epochs=3)
    assert text(of_three, last_step=23, is_running=False) == "epoch 3 of 3"


def test_training_of_known_length_goes_before_its_epoch_and_so_does_a_bar() -> None:
    progress = TrainingProgress(total_steps=680, epoch_began=300, epoch_steps=160)
    assert text(progress, step_s=None) == "step 340 of 680 \u00b7 50.0 %"
    bar = BarState(label="", done=2.0, total=8.0, elapsed_s=60.0)
    assert text(TrainingProgress(epoch_began=300, epoch_steps=160, bar=bar)) == (
        "step 40 of 160 of the epoch \u00b7 progress bar: 2 of 8 \u00b7 25.0 % \u00b7 about 3 min left"
    )
