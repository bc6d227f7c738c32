"""`dashboard export --format tensorboard`, read back by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracked_journal import STEPS, expected, require, time_of, write_tracked_run

from dashboard.cli import main


def exported(folder: Path) -> Any:
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_tracked_run(folder / "spool")
    assert main(["export", str(run), "--format", "tensorboard", "-o", str(folder / "out")]) == 0
    read = EventAccumulator(str(folder / "out"), size_guidance={"scalars": 0, "tensors": 0})
    return read.Reload()


@pytest.mark.capability(67)
def test_tensorboard_reads_every_number_at_its_step_and_time(tmp_path: Path) -> None:
    read = exported(tmp_path)
    assert set(read.Tags()["scalars"]) == set(expected())
    for name, values in expected().items():
        scalars = read.Scalars(name)
        assert [scalar.step for scalar in scalars] == list(values)
        assert [scalar.wall_time for scalar in scalars] == [time_of(step) for step in values]
        np.testing.assert_array_equal(
            np.array([scalar.value for scalar in scalars], np.float32),
            np.array([*values.values()], np.float32),
        )


def test_tensorboard_shows_events_at_their_steps_and_the_configuration_as_text(tmp_path: Path) -> None:
    read = exported(tmp_path)
    (event,) = read.Tensors("events/nonfinite_gradient")
    assert (event.step, event.wall_time) == (7, time_of(7))
    assert event.tensor_proto.string_val[0].startswith(b"- critical: ")
    assert [one.step for one in read.Tensors("events/loss_spike")] == [STEPS + 3]
    (config,) = read.Tensors("run/config")
    assert b"| batch&#124;size | 32 |" in config.tensor_proto.string_val[0]
    assert read.summary_metadata["run/config"].plugin_data.plugin_name == "text"


def test_tensorboard_file_written_again_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    exported(tmp_path)
    arguments = ["--format", "tensorboard", "-o", str(tmp_path / "out")]
    assert main(["export", str(tmp_path / "spool" / "run-a"), *arguments]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 1
