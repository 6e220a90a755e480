"""What is in deploy/ fits what there is: commands, probes, files and extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from jetlet.cli import main
from jetlet.metrics.server import _PROBES

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def pod():
    return load(DEPLOY / "kubernetes" / "embedded.yaml")["spec"]["template"]["spec"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_have_a_kind_and_a_name(path):
    manifest = load(path)
    assert {"apiVersion", "kind", "metadata", "spec"} == set(manifest)
    assert manifest["metadata"]["name"] == "clicks"


def test_the_command_is_one(pod):
    name, *arguments = pod["containers"][0]["args"]
    context = main.make_context("jetlet", [name])
    command = main.get_command(context, name)
    given = command.make_context(name, list(arguments), parent=context).params
    assert given["target"] == "/app/clicks.py"
    assert given["grace"] < pod["terminationGracePeriodSeconds"]
    ports = {each["name"]: each["containerPort"] for each in pod["containers"][0]["ports"]}
    assert given["metrics_port"] == ports["metrics"]
    mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert given["snapshot_dir"] in mounts


def test_probes_ask_for_what_is_answered(pod):
    probes = {
        kind: probe["httpGet"] for kind, probe in pod["containers"][0].items() if "Probe" in kind
    }
    assert {kind: get["path"] for kind, get in probes.items()} == {
        "startupProbe": "/health",
        "readinessProbe": "/ready",
        "livenessProbe": "/health",
    }
    assert {get["path"] for get in probes.values()} == set(_PROBES)


def test_members_get_slots_that_nobody_takes_away():
    conf = load(DEPLOY / "kubernetes" / "spark.yaml")["spec"]["sparkConf"]
    assert conf["spark.dynamicAllocation.enabled"] == "false"
    assert all(isinstance(value, str) for value in conf.values()), "Spark's settings are texts"


def test_images_run_without_rights_and_have_what_they_name(pod):
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
    parts = re.split(r"^FROM .* AS (\w+)$", text, flags=re.MULTILINE)
    stages = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert {"embedded", "spark"} <= set(stages)
    for name in ("embedded", "spark"):
        assert set(re.search(r"EXTRAS=(\S+)", stages[name])[1].split(",")) <= extras
        user = re.search(r"^USER (\d+)$", stages[name], re.MULTILINE)[1]
        assert int(user) == pod["securityContext"]["runAsUser"]
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        assert all((ROOT / each).exists() for each in line.split()[:-1])
