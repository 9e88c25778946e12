"""examples/serving against the code: flags, ports, routes, and times that must fit each other."""

import argparse
import configparser
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
from warptape.serve.__main__ import add_options
from warptape.serve.app import LIVE, READY

FOLDER = Path(__file__).parents[2] / "examples/serving"


def options_of(arguments):
    """What the server would make of a command line; SystemExit for flags that it has not."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser)
    return parser.parse_args(arguments)


def docker():
    text = (FOLDER / "Dockerfile").read_text()
    entry, command = (
        re.search(rf"^{name} (\[.*\])$", text, re.MULTILINE)[1] for name in ("ENTRYPOINT", "CMD")
    )
    import json

    return text, json.loads(entry), json.loads(command)


def manifests():
    yaml = pytest.importorskip("yaml")
    return {
        each["kind"]: each for each in yaml.safe_load_all((FOLDER / "kubernetes/serving.yaml").read_text())
    }


def check_pod(pod):
    """Problems of a pod's spec."""
    problems, (container,) = [], pod["containers"]
    options = options_of(container["args"])
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    if (ports.get("http"), ports.get("grpc")) != (options.port, options.grpc_port):
        problems.append("ports")
    for probe in ("startupProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        if get["path"] not in LIVE or get["port"] not in ports:
            problems.append(probe)
    words = shlex.split(container["readinessProbe"]["exec"]["command"][-1])
    if not any(w == f"http://127.0.0.1:{options.port}{path}" for w in words for path in READY):
        problems.append("readinessProbe")
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    if not all(any(p.startswith(m) for m in mounts) for p in (options.model, *options.token_file)):
        problems.append("mounts")
    if set(mounts.values()) != {v["name"] for v in pod["volumes"]}:
        problems.append("volumes")
    if pod["terminationGracePeriodSeconds"] <= options.drain_delay + options.drain_seconds:
        problems.append("grace")
    return problems


def test_kubernetes():
    found = manifests()
    spec = found["Deployment"]["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    assert check_pod(pod) == []
    assert spec["selector"]["matchLabels"] == labels == found["Service"]["spec"]["selector"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    names = {p["name"] for p in pod["containers"][0]["ports"]}
    assert {p["targetPort"] for p in found["Service"]["spec"]["ports"]} <= names
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize(
    "problem, old, new",
    [
        ("ports", "containerPort: 8001", "containerPort: 8002"),
        ("livenessProbe", "/livez", "/live"),
        ("readinessProbe", "/readyz", "/ready"),
        ("mounts", "--token-file=/etc/warptape", "--token-file=/etc/tokens"),
        ("volumes", "- name: tokens", "- name: secrets"),
        ("grace", "--drain-seconds=60", "--drain-seconds=600"),
    ],
)
def test_a_planted_fault_is_found(problem, old, new):
    yaml = pytest.importorskip("yaml")
    text = (FOLDER / "kubernetes/serving.yaml").read_text()
    assert old in text
    planted = next(yaml.safe_load_all(text.replace(old, new)))
    assert problem in check_pod(planted["spec"]["template"]["spec"])
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        options_of(["/models", "--nowhere=1"])


def test_docker():
    text, entry, command = docker()
    options = options_of(command)
    assert entry[1:] == ["serve"] and options.host == "0.0.0.0" and options.token_file
    assert re.search(r"^EXPOSE (.*)$", text, re.MULTILINE)[1].split() == [
        str(options.port),
        str(options.grpc_port),
    ]
    assert "STOPSIGNAL SIGTERM" in text and re.search(r"^USER \d+$", text, re.MULTILINE)


def test_systemd():
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(FOLDER / "warptape-serve.service")
    service = parser["Service"]
    program, command, *arguments = shlex.split(service["ExecStart"])
    options = options_of(arguments)
    assert program.endswith("/warptape") and command == "serve"
    assert options.model in service["ReadWritePaths"].split()
    assert float(service["TimeoutStopSec"]) > options.drain_seconds + options.drain_delay
    assert service["KillMode"] == "mixed"  # workers ignore SIGTERM, the front drains
    name = options.token_file[0].removeprefix("%d/")
    assert service["LoadCredential"].startswith(f"{name}:")
