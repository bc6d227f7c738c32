"""What may happen to the whole line: each function makes one trial, up to where helpers and server alone run.

`LONG` has what `make faults` makes of each; `test_trials.py` makes the same shorter.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from chaos_proxy import BadBytes, BadMessages, Network
from trial import TRAINING, Process, Trial, wait_for


def kills(trial: Trial, *, count: int) -> None:
    """Kill -9 of trainers, helpers and the server at random moments, one alone or several at once."""
    trial.start_server()
    for run in ("a", "b"):
        trial.start_training(run, pause_s=0.002)
    trial.wait_for_steps("b", 10)
    while sum(trial.account.faults.values()) < count:
        trial.wait_for_steps(trial.chance.choice("ab"), trial.chance.randint(1, 150))
        run = trial.chance.choice("ab")
        victims = trial.chance.sample(["trainer", "helper", "server"], trial.chance.choice([1, 1, 2, 3]))
        # All are dead before one of them starts again: that is what a failing machine does.
        if "trainer" in victims:
            trial.kill_training(run)
        if "helper" in victims:
            trial.kill_helper(run)
        if "server" in victims:
            trial.kill_server()
            trial.start_server(is_awaited=trial.chance.random() < 0.5)
        if "trainer" in victims:
            trial.start_training(run, pause_s=0.002)
    for run in ("a", "b"):
        trial.wait_for_steps(run, 5)
        trial.kill_training(run)


def stopped_server(trial: Trial, *, steps: int) -> None:
    """The server is stopped while a training makes so many steps; at 5 ms each, 6,000 are 30 s."""
    trial.start_server()
    training = trial.start_training("a", pause_s=0.005)
    trial.wait_for_steps("a", 50)
    assert trial.server is not None
    trial.server.send_signal(signal.SIGSTOP)
    trial.count("serve stopped")
    trial.wait_for_steps("a", steps)
    trial.server.send_signal(signal.SIGCONT)
    trial.wait_for_steps("a", 50)
    training.kill()
    training.wait(30)


def late_moved_and_emptied_server(trial: Trial) -> None:
    """The server comes late, goes on at other ports, with another folder, and with its store deleted."""
    training = trial.start_training("a", pause_s=0.004)
    trial.wait_for_steps("a", 200)
    trial.start_server()
    trial.wait_for_steps("a", 100)
    trial.stop_server()
    trial.move_server()
    trial.count("other port")
    trial.start_server()
    trial.wait_for_steps("a", 100)
    trial.stop_server()
    trial.data = trial.root / "elsewhere"
    trial.count("other folder")
    trial.start_server()
    trial.wait_for_steps("a", 100)
    trial.kill_server()
    shutil.rmtree(trial.data)
    trial.count("store deleted")
    trial.start_server()
    trial.wait_for_steps("a", 50)
    training.kill()
    training.wait(30)


def server_that_dies(trial: Trial, *, places: list[str]) -> None:
    """The server dies between a commit and its acknowledgement, in a transaction, in a checkpoint."""
    training = trial.start_training("a", pause_s=0.002)
    trial.wait_for_steps("a", 100)
    for place in places:
        trial.start_server(dies=place, is_awaited=False)
        server = trial.server
        assert server is not None
        wait_for(lambda server=server: server.poll() is not None, f"serve does not die {place}")
        assert server.wait(1) == -signal.SIGKILL
        trial.count(f"died {place.partition(' ')[0]}")
    training.kill()
    training.wait(30)


def bad_network(trial: Trial, kind: Callable[[int, int], Network], *, faults: int) -> None:
    """A proxy spoils what helpers and collector say until it has made so many faults."""
    network = kind(trial.seed, trial.ingest_port)
    network.start()
    trial.connect = f"tcp://127.0.0.1:{network.port}"
    try:
        trial.start_server()
        training = trial.start_training("a", pause_s=0.002)
        wait_for(lambda: sum(network.done.values()) >= faults, f"only {network.done}", 30 + faults)
        network.calm()
        training.kill()
        training.wait(30)
        trial.account.faults |= network.done
        trial.settle()
    finally:
        network.stop()


def namespace_is_possible() -> str:
    """Why no network namespace can be made here; empty where one can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "only root can make a network namespace, with iproute2"
    name = f"nanscope-try-{os.getpid()}"
    made = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True, timeout=30, check=False
    )
    if made.returncode:
        return f"this machine makes no network namespace: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], timeout=30, check=True)
    return ""


def network_that_goes(trial: Trial, *, times: int) -> None:
    """In a namespace of its own the loopback device is switched off and on: nobody gets a reset."""
    name = f"nanscope-{os.getpid()}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], timeout=30, check=True)

    ip("netns", "add", name)
    trial.in_namespace = ["ip", "netns", "exec", name]
    try:
        ip("-n", name, "link", "set", "lo", "up")
        trial.start_server(is_awaited=False)
        training = trial.start_training("a", pause_s=0.004)
        for _ in range(times):
            trial.wait_for_steps("a", 300)
            ip("-n", name, "link", "set", "lo", "down")
            trial.count("network gone")
            trial.wait_for_steps("a", 1000)
            ip("-n", name, "link", "set", "lo", "up")
        trial.wait_for_steps("a", 300)
        training.kill()
        training.wait(30)
        wait_for(lambda: trial.helper_pid("a") is None, "the helper does not deliver")
        assert trial.server is not None
        trial.server.send_signal(signal.SIGTERM)
        trial.server.wait(60)
    finally:
        trial.in_namespace = []
        ip("netns", "del", name)


def mount_is_possible() -> str:
    """Why no file system can be mounted here; empty where one can."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "only root can mount a file system"
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "none", folder], capture_output=True, text=True, timeout=30, check=False
        )
        if made.returncode == 0:
            subprocess.run(["umount", folder], timeout=30, check=True)
    return f"this machine mounts nothing: {made.stderr.strip()}" if made.returncode else ""


def full_disk(trial: Trial, *, is_lasting: bool) -> None:
    """The spool's disk is full from a third of a training's steps on, to its end or for a third of them."""
    trial.spool.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", trial.spool], timeout=30, check=True)
    trial.undo.callback(subprocess.run, ["umount", "--lazy", trial.spool], timeout=30, check=True)
    trial.start_server()
    trial.start_training("full", steps=600, pause_s=0.004)
    trial.wait_for_steps("full", 200)
    ballast = trial.spool / ".ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    trial.count("disk full")
    if not is_lasting:
        trial.wait_for_steps("full", 200)
        ballast.unlink()
    finish_trainings(trial)
    ballast.unlink(missing_ok=True)


def failing_writes(trial: Trial, *, numbers: list[int]) -> None:
    """In each of several trainings the Nth write into the spool fails; all end, with the same weights."""
    for number in numbers:
        trial.start_training(f"w{number}", steps=max(60, number + 10), events=1, writes=number)
        if len(trial.trainers) >= 4:
            finish_trainings(trial)
    finish_trainings(trial)
    for run in trial.runs():
        assert trial.notes(run).failed_writes == 1, f"{run}: no write has failed"
        trial.count("failed write")


def finish_trainings(trial: Trial) -> None:
    """Wait for the end of all; each must end well."""
    for run, training in trial.trainers.items():
        assert training.wait(120) == 0, f"{run}: {getattr(training, 'said', str)()}"
    trial.trainers.clear()


def disturbed_training(trial: Trial, *, how: list[str]) -> None:
    """Python's lock is held for 3 s, the process is stopped, children come by fork, forkserver, spawn."""
    trial.start_server()
    for one in how:
        training = trial.start_training(one, steps=80, at_step=one)
        if one == "stop":
            go_on_when_stopped(training)
        trial.count(one)
    finish_trainings(trial)


def go_on_when_stopped(training: Process) -> None:
    """The training has stopped itself; let it go on."""
    wait_for(lambda: is_stopped(training.pid), "the training does not stop")
    training.send_signal(signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def storm_of_layers(trial: Trial, *, layers: int) -> None:
    """A model of very many layers, at once and quickly."""
    trial.start_server()
    trial.start_training("storm", layers=layers, steps=60, events=5)
    finish_trainings(trial)
    trial.count(f"{layers:,} layers")


def elastic_ranks(trial: Trial, *, ranks: int) -> None:
    """torchrun starts all ranks again after one was killed; steps come again with the same values.

    The weights are those of ranks without the probe, of which none is killed.
    """
    trial.start_server()
    torchrun(trial, "elastic", ranks, {"NOTED_DIES": f"{ranks - 1} 20 0"})
    trial.count(f"rank killed of {ranks}")
    torchrun(trial, "alone", ranks, {"NANSCOPE_OFF": "1"})
    watched, alone = trial.notes("elastic").weights, trial.notes("alone").weights
    assert len(watched) == len(alone) == ranks and set(watched) == set(alone), (watched, alone)


def torchrun(trial: Trial, run: str, ranks: int, asked: dict[str, str]) -> None:
    """Train with torchrun up to its end, which must be good."""
    environment = {**trial.environment, "NANSCOPE_RUN": run, "NOTED_LOG": str(trial.log_path(run))}
    environment |= {"NOTED_RANKS": "1", "NOTED_STEPS": "40", **asked}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NANSCOPE_")}
    command = ["python", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with (trial.root / "torchrun.log").open("wb") as log:
        done = subprocess.run(
            [*command, "--max-restarts=2", str(TRAINING)],
            env={**inherited, "PYTHONPATH": str(TRAINING.parents[3]), "OMP_NUM_THREADS": "1", **environment},
            stdout=log, stderr=log, timeout=300, check=False, cwd=trial.root,
        )  # fmt: skip
    assert done.returncode == 0, (trial.root / "torchrun.log").read_text()[-3000:]


SCALE = float(os.environ.get("TRIAL_SCALE", "1"))


def scaled(count: int) -> int:
    return max(1, round(SCALE * count))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One kind of trial."""

    run: Callable[[Trial], None]
    may_lose: bool = False
    weights: bool = False
    """Whether the trainings run to their end: then their weights are those of one without the probe."""
    refusal: Callable[[], str] = str
    """Why it cannot run here; empty where it can."""


LONG: dict[str, Scenario] = {
    "kills of trainer, helper, serve": Scenario(run=lambda trial: kills(trial, count=scaled(200))),
    "serve stopped for 30 s": Scenario(run=lambda trial: stopped_server(trial, steps=scaled(6000))),
    "serve late, moved, emptied": Scenario(run=late_moved_and_emptied_server),
    "serve dies around its commits": Scenario(
        run=lambda trial: server_that_dies(
            trial,
            places=[f"{where} {n}" for where in ("after-commit", "in-commit") for n in (1, 2, 3)]
            + [f"in-checkpoint {n}" for n in (2, 3, 4, 5, 7)],
        )
    ),
    "bytes delayed, cut, corrupted": Scenario(
        run=lambda trial: bad_network(trial, BadBytes, faults=scaled(60))
    ),
    "messages lost, repeated, reordered, corrupted": Scenario(
        run=lambda trial: bad_network(trial, BadMessages, faults=scaled(150))
    ),
    "the network goes": Scenario(
        run=lambda trial: network_that_goes(trial, times=scaled(3)), refusal=namespace_is_possible
    ),
    "the Nth write fails, N to 200": Scenario(
        run=lambda trial: failing_writes(trial, numbers=list(range(1, scaled(200) + 1))),
        may_lose=True,
        weights=True,
    ),
    "the disk is full for a while": Scenario(
        run=lambda trial: full_disk(trial, is_lasting=False),
        may_lose=True,
        weights=True,
        refusal=mount_is_possible,
    ),
    "the disk stays full": Scenario(
        run=lambda trial: full_disk(trial, is_lasting=True),
        may_lose=True,
        weights=True,
        refusal=mount_is_possible,
    ),
    "GIL held, SIGSTOP, fork, forkserver, spawn": Scenario(
        run=lambda trial: disturbed_training(trial, how=["gil", "stop", "fork", "forkserver", "spawn"]),
        weights=True,
    ),
    "a storm of 1,000 layers": Scenario(run=lambda trial: storm_of_layers(trial, layers=1000), weights=True),
    "8 ranks, restarted by torchrun": Scenario(run=lambda trial: elastic_ranks(trial, ranks=8)),
}
