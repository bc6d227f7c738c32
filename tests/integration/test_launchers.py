"""docs/launchers.md and its files: what can be started here is, the rest is checked against the product."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_scripts import ForkedScript, ForkedScripts
from recipes import LAUNCHERS, ROOT, Machine, compose, manifest, manifests, pod_of, strings_in, write_program
from trial import ends_of, free_port, wait_for

from dashboard.arguments import command_parser
from dashboard.client import Client
from dashboard.errors import DashboardError
from probe.delivery.helper.helper import host_folder, lock_owner, lock_path
from probe.settings.places import DEFAULT_INGEST, DEFAULT_PAGE_PORT

PAGE = (ROOT / "docs" / "launchers.md").read_text()
TRAINING = ROOT / "tests" / "integration" / "scripts" / "ranks.py"
INGEST_PORT = int(DEFAULT_INGEST.rpartition(":")[2])
UNTIL_SHIPPED = LAUNCHERS / "until_shipped.sh"
FILES = sorted(path for path in LAUNCHERS.iterdir() if path.is_file())


class Remote:
    """The dashboard of kubernetes.yaml, on this machine: its keys' copy, its server, and its probe.

    Args:
        root: a folder of its own.
        scripts: forks the server.
    """

    def __init__(self, root: Path, scripts: ForkedScripts) -> None:
        self.page_port, self.ingest_port = free_port(), free_port()
        (root / "pod").mkdir(parents=True)
        places = {
            "/state": str(root / "pod" / "state"),
            "/secrets": str(root / "secrets"),
            "/data": str(root / "pod" / "data"),
            f":{INGEST_PORT}": f":{self.ingest_port}",
        }
        self.machine = Machine(root / "pod", places)
        self.secrets = root / "secrets"
        self._make_secrets(root / "made")
        pod = pod_of(manifest("Deployment", "nanscope-dashboard"))
        for container in pod["initContainers"]:
            assert self.machine.run(container["command"]).returncode == 0
        (self.container,) = pod["containers"]
        program, *options = self.container["command"]
        assert program == "dashboard"
        self.server: ForkedScript = scripts.start(
            ["-m", "dashboard", *map(self.machine.placed, options), "--port", str(self.page_port)],
            self.machine.root,
            self.machine.variables(self.container),
        )

    def _make_secrets(self, folder: Path) -> None:
        """What the page of recipes puts into Secrets, as a volume shows it: others may read it."""
        done = self.machine.run(["dashboard", "keygen"], {"XDG_STATE_HOME": str(folder)})
        assert done.returncode == 0, done.stderr
        self.secrets.mkdir()
        for path in (folder / "nanscope").rglob("*.json"):
            shown = self.secrets / path.name
            shown.write_bytes(path.read_bytes())
            shown.chmod(0o644)

    def is_ready(self) -> bool:
        """What the readiness probe says."""
        probe = self.container["readinessProbe"]["exec"]["command"]
        return self.machine.run(probe, self.machine.variables(self.container)).returncode == 0

    def client(self) -> Client:
        token = json.loads((self.secrets / "credentials.json").read_text())["token"]
        return Client(f"http://127.0.0.1:{self.page_port}/", token, timeout_s=20)

    def answers(self) -> bool:
        try:
            return bool(self.client().health())
        except DashboardError:
            assert self.server.poll() is None, self.server.said()
            return False

    def has_all(self, *spools: Path) -> bool:
        """Whether the store has all records of the one run in these spools, and no helper is left."""
        for spool in spools:
            (run,) = spool.iterdir()
            assert lock_owner(lock_path(host_folder(run))) is None
            delivery = self.client()._json("GET", f"api/v1/runs/{run.name}/delivery")
            reached = {(one["writer"], one["stream"]): one["next_seq"] for one in delivery["positions"]}
            ends = ends_of(run)
            assert ends and all(reached.get(key, 0) >= end for key, end in ends.items()), (reached, ends)
        return True


@pytest.fixture
def remote(tmp_path: Path, forked_dashboard: ForkedScripts) -> Iterator[Remote]:
    remote = Remote(tmp_path / "remote", forked_dashboard)
    try:
        wait_for(remote.answers, "the dashboard does not answer")
        yield remote
    finally:
        remote.server.send_signal(signal.SIGTERM)
        remote.server.wait()


def ranks_of(client: Client) -> dict[str, list[int]]:
    """The ranks of each run that the store has."""
    found = {row.run: client.run(row.run) for row in client.runs()}
    return {run: [one["rank"] for one in facts["ranks"]] for run, facts in found.items()}


SRUN = """
# A node of two tasks and one of one, each with its own place for files.
while [ "${1#--}" != "$1" ]; do shift; done
pids=
for rank in 0 1 2; do
  node=$((rank / 2))
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 2)) SLURM_NTASKS=3 SLURM_TMPDIR="$NODES/$node" "$@" &
  pids="$pids $!"
done
code=0
for pid in $pids; do wait "$pid" || code=$?; done
exit $code
"""


@pytest.mark.slow
def test_slurm_job_is_one_run_of_all_nodes_and_ships_all_of_it(remote: Remote, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "cluster", {})
    write_program(machine.programs / "srun", SRUN)
    write_program(machine.programs / "scontrol", "echo 127.0.0.1; sleep 0.2; echo node1")
    keys = tmp_path / "cluster" / "nanscope-client-keys.json"
    keys.write_bytes((remote.secrets / keys.name).read_bytes())
    keys.chmod(0o600)
    told = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "NODES": str(tmp_path / "nodes"),
        "HOME": str(keys.parent),
        "MASTER_PORT": str(free_port()),
        "NANSCOPE_CONNECT": f"tcp://127.0.0.1:{remote.ingest_port}",
    }
    done = machine.run(["bash", str(LAUNCHERS / "train.sbatch"), str(TRAINING)], told)
    assert done.returncode == 0, done.stdout + done.stderr
    # At once: what is left of a job's processes does not outlive it.
    assert remote.has_all(*(tmp_path / "nodes" / node / "nanscope-4711" for node in "01"))
    assert ranks_of(remote.client()) == {"slurm-4711": [0, 1, 2]}


@pytest.mark.slow
def test_pods_of_the_manifest_serve_and_train_and_ship_all_of_it(remote: Remote, tmp_path: Path) -> None:
    assert remote.is_ready()
    places = {
        "/secrets": str(remote.secrets),
        "/keys": str(tmp_path),
        "/spool": str(tmp_path / "spool"),
        "/launchers": str(LAUNCHERS),
        "nanscope-dashboard:8051": f"127.0.0.1:{remote.ingest_port}",
        "--nnodes=2": "--nnodes=1",
        "$(NODE_RANK)": "0",
        "--nproc-per-node=8": "--nproc-per-node=2",
        "train-0.train": "127.0.0.1",
        "29500": str(free_port()),
        "train.py": str(TRAINING),
    }
    machine = Machine(tmp_path / "job", places)
    pod = pod_of(manifest("Job", "train"))
    for container in pod["initContainers"]:
        assert machine.run(container["command"]).returncode == 0
    (container,) = pod["containers"]
    variables = machine.variables(container) | {"NANSCOPE_RUN": "uid-of-the-job"}
    done = machine.run(container["command"], variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert remote.has_all(tmp_path / "spool")
    assert ranks_of(remote.client()) == {"uid-of-the-job": [0, 1]}
    remote.server.kill()
    remote.server.wait()
    assert not remote.is_ready()


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_until_shipped_has_the_exit_code_of_the_training(tmp_path: Path, script: str, code: int) -> None:
    environment = {**os.environ, "NANSCOPE_RUN": "none", "NANSCOPE_SPOOL": str(tmp_path)}
    done = subprocess.run(["sh", UNTIL_SHIPPED, "sh", "-c", script], env=environment, timeout=60, check=False)
    assert done.returncode == code


def test_until_shipped_passes_the_end_of_a_pod_on_to_the_training(tmp_path: Path) -> None:
    """And lets it go on until it has ended by itself."""
    script = "trap 'echo saved; sleep 0.2; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    environment = {**os.environ, "NANSCOPE_RUN": "none", "NANSCOPE_SPOOL": str(tmp_path)}
    with subprocess.Popen(
        ["sh", UNTIL_SHIPPED, "sh", "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "saved\n"
        assert process.wait(60) == 7


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.5, 0.8])
def test_until_shipped_passes_on_the_end_of_a_pod_that_has_only_begun(tmp_path: Path, after_s: float) -> None:
    """The signal may come before the script knows which process its training is: here it takes its time."""
    script = f"trap 'exit 7' TERM; sleep {after_s}; kill -TERM $PPID; sleep 5 & wait; exit 1"
    environment = {
        **os.environ,
        "NANSCOPE_RUN": "none",
        "NANSCOPE_SPOOL": str(tmp_path),
        "PS4": "$(sleep 0.3)+ ",
    }
    command = ["sh", "-x", UNTIL_SHIPPED, "sh", "-c", script]
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == 7


ONE_STEP = """
import torch, probe

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with probe.watch(model, optimizer):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_until_shipped_waits_until_the_helper_has_left(tmp_path: Path) -> None:
    """One that finds no dashboard, and waits for it some seconds longer than the training lives."""
    spool = tmp_path / "spool"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NANSCOPE_RUN": "run", "NANSCOPE_SPOOL": str(spool)}
    environment |= {"NANSCOPE_CONNECT": f"tcp://127.0.0.1:{free_port()}", "NANSCOPE_LINGER_S": "3"}
    command = ["sh", UNTIL_SHIPPED, sys.executable, "-c", ONE_STEP]
    subprocess.run(command, env=environment, timeout=120, check=True)
    folder = host_folder(spool / "run")
    assert lock_path(folder).exists() and lock_owner(lock_path(folder)) is None


API_VERSIONS = {
    "PersistentVolumeClaim": "v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
}


@pytest.mark.parametrize("one", manifests(), ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_manifest_says_what_no_schema_checks(one: dict[str, Any]) -> None:
    assert one["apiVersion"] == API_VERSIONS[one["kind"]]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])
    spec = one["spec"]
    if one["kind"] == "PersistentVolumeClaim":
        assert spec["accessModes"] and spec["resources"]["requests"]["storage"]
    elif one["kind"] == "Service":
        assert spec["selector"] and spec["ports"]
    else:
        check_pod(pod_of(one))
    if one["kind"] == "Job":
        assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
        assert pod_of(one)["restartPolicy"] in ("OnFailure", "Never")
    if one["kind"] == "Deployment":
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert pod_of(one).get("restartPolicy", "Always") == "Always"


def check_pod(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    containers = [*pod["initContainers"], *pod["containers"]]
    assert len({container["name"] for container in containers}) == len(containers)
    for container in containers:
        assert container["image"] and container["command"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for variable in container.get("env", []):
            assert ("value" in variable) != ("valueFrom" in variable)


def test_services_of_the_manifest_find_their_pods_and_ports() -> None:
    dashboard = manifest("Deployment", "nanscope-dashboard")["spec"]["template"]
    service = manifest("Service", "nanscope-dashboard")["spec"]
    assert service["selector"].items() <= dashboard["metadata"]["labels"].items()
    (container,) = dashboard["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"page": DEFAULT_PAGE_PORT, "ingest": INGEST_PORT}
    assert [(port["port"], ports[port["targetPort"]]) for port in service["ports"]] == [(INGEST_PORT,) * 2]
    assert container["startupProbe"]["tcpSocket"]["port"] in ports
    job = manifest("Job", "train")
    headless = manifest("Service", "train")["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert pod_of(job)["subdomain"] == "train"


def test_manifest_refers_to_secrets_and_has_none() -> None:
    assert {one["kind"] for one in manifests()} == set(API_VERSIONS)
    secrets = {
        volume["secret"]["secretName"]
        for name, kind in (("nanscope-dashboard", "Deployment"), ("train", "Job"))
        for volume in pod_of(manifest(kind, name))["volumes"]
        if "secret" in volume
    }
    assert secrets == set(re.findall(r"kubectl create secret generic (\S+)", PAGE))
    for text in strings_in(manifests()):
        assert not re.fullmatch(r"[0-9A-Za-z+/=_-]{32,}", text), f"{text} looks like a key"
    # Of a key the file's place alone is told.
    (container,) = pod_of(manifest("Job", "train"))["containers"]
    told = {one["name"]: one.get("value") for one in container["env"]}
    assert told["NANSCOPE_KEYS"] == "/keys/nanscope-client-keys.json"


def test_spool_of_the_manifest_is_in_memory_and_shared_by_the_ranks_of_a_pod() -> None:
    pod = pod_of(manifest("Job", "train"))
    (spool,) = [volume for volume in pod["volumes"] if volume["name"] == "spool"]
    assert spool["emptyDir"]["medium"] == "Memory" and spool["emptyDir"]["sizeLimit"]
    (container,) = pod["containers"]
    assert {"name": "spool", "mountPath": "/spool"} in container["volumeMounts"]


def test_compose_file_refers_to_what_it_declares() -> None:
    document = compose()
    services = document["services"]
    assert set(services) == {"clickhouse", "dashboard"}
    for service in services.values():
        assert set(service["secrets"]) <= set(document["secrets"])
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= set(document["volumes"])
    assert set(services["dashboard"]["depends_on"]) <= set(services)
    assert (LAUNCHERS / services["dashboard"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["dashboard"]["build"]["dockerfile"]).is_file()


def test_compose_file_takes_the_password_from_a_file_alone() -> None:
    services = compose()["services"]
    place = "/run/secrets/store-password"
    assert services["clickhouse"]["environment"]["CLICKHOUSE_PASSWORD_FILE"] == place
    assert services["dashboard"]["environment"]["NANSCOPE_STORE_PASSWORD_FILE"] == place
    assert services["dashboard"]["environment"]["NANSCOPE_STORE"] == (
        "clickhouse://nanscope@clickhouse:9000/nanscope"
    )
    names = {name for service in services.values() for name in service["environment"]}
    assert not {name for name in names if "PASSWORD" in name and not name.endswith("_FILE")}
    assert all(Path(secret["file"]).parent == Path("secrets") for secret in compose()["secrets"].values())


def test_compose_file_opens_the_ports_of_the_product_and_none_of_clickhouse() -> None:
    services = compose()["services"]
    assert services["dashboard"]["ports"] == [f"{port}:{port}" for port in (DEFAULT_PAGE_PORT, INGEST_PORT)]
    assert "ports" not in services["clickhouse"]


def commands_of_recipes() -> list[list[str]]:
    """Each `dashboard ...` in the containers' commands, the scripts and the page's blocks."""
    containers = [
        container
        for kind, name in (("Deployment", "nanscope-dashboard"), ("Job", "train"))
        for container in pod_of(manifest(kind, name))["containers"]
    ]
    found = [container["command"] for container in containers]
    found.append(compose()["services"]["dashboard"]["command"])
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    texts = [
        *lines,
        (LAUNCHERS / "train.sbatch").read_text().replace('"$@"', "train.py"),
        "dashboard url",  # of the probes
    ]
    found += [
        line.split()
        for text in texts
        for line in re.findall(r"(?:^|[ =-])(dashboard (?:[a-z]+)(?: [^\n'&|>]+)?)", text)
    ]
    commands = [words[words.index("dashboard") :] for words in found]
    return [words[1:] for words in commands if words[1] != "dashboard"]


def test_commands_and_options_of_the_recipes_exist() -> None:
    commands = commands_of_recipes()
    assert {words[0] for words in commands} >= {"serve", "run", "keygen", "url"}
    for words in commands:
        if words[0] == "run":
            words = words[: words.index("train.py")]
        command_parser().parse_args(words)  # ends with code 2 where one is unknown


OWN = {"NANSCOPE_HOST", "NANSCOPE_UID"}
"""Of compose.yaml alone, which docs/launchers.md sets."""


def test_variables_of_the_recipes_exist() -> None:
    documented = set(re.findall(r"NANSCOPE_\w+", (ROOT / "docs" / "interfaces.md").read_text()))
    for path in FILES:
        named = set(re.findall(r"NANSCOPE_\w*[A-Z]", path.read_text()))
        assert named - documented - OWN == set(), path.name
    assert all(f"{name}=" in PAGE for name in OWN)


def test_page_links_every_recipe_and_names_tests_that_exist() -> None:
    assert {path.name for path in FILES} == set(re.findall(r"\]\(launchers/(\S+?)\)", PAGE))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}(" in sources
    for path in re.findall(r"`(tests/\S+\.py)`", PAGE):
        assert (ROOT / path).is_file()
