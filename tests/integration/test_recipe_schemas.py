"""Kubernetes' own schemas, and that of Compose, have nothing to say against the recipes of docs/launchers."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from recipes import LAUNCHERS, compose, manifest, manifests, pod_of

OLDEST, NEWEST = "1.25", "1.37"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("one", manifests(), ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_manifest_follows_the_schema_of_kubernetes(one: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(one, version, strict=True)


def _has_no_pod(job: dict[str, Any]) -> None:
    job["spec"].pop("template")


def _has_a_port_in_words(job: dict[str, Any]) -> None:
    pod_of(job)["containers"][0]["ports"] = [{"containerPort": "8050"}]


def _has_a_field_of_a_wrong_name(job: dict[str, Any]) -> None:
    pod_of(job)["containers"][0]["volumeMount"] = []


@pytest.mark.parametrize("spoil", [_has_no_pod, _has_a_port_in_words, _has_a_field_of_a_wrong_name])
def test_schema_of_kubernetes_refuses_a_job_that(spoil: Callable[[dict[str, Any]], None]) -> None:
    job = copy.deepcopy(manifest("Job", "train"))
    spoil(job)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, NEWEST, strict=True)


def check_compose(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_compose_file_follows_the_schema_of_compose(tmp_path: Path) -> None:
    checked = check_compose(LAUNCHERS / "compose.yaml")
    assert checked.returncode == 0, checked.stdout
    document = compose()
    document["services"]["dashboard"]["depend_on"] = ["clickhouse"]  # a name that is none
    spoiled = tmp_path / "compose.yaml"
    spoiled.write_text(yaml.safe_dump(document))
    refused = check_compose(spoiled)
    assert refused.returncode == 1 and "depend_on" in refused.stdout
