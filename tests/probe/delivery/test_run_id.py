"""Run ids: the user's choice, the launcher's, or random; never from the script's own random state."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from probe.delivery.recorder.run_id import derive_run_id, run_id_of_thread

ROOT = Path(__file__).resolve().parents[3]
TORCHRUN = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}


def test_derive_run_id_takes_the_users_choice() -> None:
    assert derive_run_id({"NANSCOPE_RUN": "my-run_1.2", **TORCHRUN}) == "my-run_1.2"


@pytest.mark.parametrize("bad", ["a/b", "..", ".", "x" * 65, "a b", "a\n"])
def test_derive_run_id_unfit_choice_says_what_is_allowed(bad: str) -> None:
    with pytest.raises(ValueError, match=r"NANSCOPE_RUN is .* allowed are"):
        derive_run_id({"NANSCOPE_RUN": bad})


def test_derive_run_id_ranks_of_one_launcher_agree() -> None:
    script = "from probe.delivery.recorder.run_id import derive_run_id; print(derive_run_id())"
    ids = {
        subprocess.run(
            [sys.executable, "-c", script], env=TORCHRUN, cwd=ROOT,
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    assert len(ids) == 1


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"])
def test_derive_run_id_another_launch_is_another_run(name: str) -> None:
    slurm = {key: value for key, value in TORCHRUN.items() if key != "TORCHELASTIC_RUN_ID"}
    base = slurm if name == "SLURM_JOB_ID" else TORCHRUN
    assert derive_run_id(base) != derive_run_id({**base, name: "77"})


def test_derive_run_id_without_a_launcher_differs_and_leaves_random_alone() -> None:
    before = random.getstate()
    assert derive_run_id({}) != derive_run_id({})
    assert random.getstate() == before


@pytest.mark.parametrize("environment", [{"NANSCOPE_RUN": "r" * 64}, TORCHRUN], ids=["chosen", "launcher"])
def test_threads_that_train_at_the_same_time_have_a_run_each(environment: dict[str, str]) -> None:
    own = run_id_of_thread(None, environment)
    together = threading.Barrier(3)

    def take(_: int) -> list[str]:
        together.wait(timeout=30)
        found = [run_id_of_thread(None, environment) for _ in range(2)]
        together.wait(timeout=30)
        return found

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(take, range(3)))
    assert all(first == second for first, second in found)
    assert len({own, *(first for first, _ in found)}) == 4
    assert own == derive_run_id(environment) == run_id_of_thread(None, environment)
    assert all(len(first) <= 64 for first, _ in found)


def test_thread_after_another_takes_its_run_again() -> None:
    found: list[str] = []
    environment = {"NANSCOPE_RUN": "one after the other"}
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: found.append(run_id_of_thread("one after the other", environment))
        )
        thread.start()
        thread.join()
    assert found == ["one after the other"] * 2
    assert run_id_of_thread(None, {}) != run_id_of_thread(None, {})
    assert run_id_of_thread("own", environment) == "own"
