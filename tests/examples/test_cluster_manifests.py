"""examples/cluster's manifests against the launcher, and the environment that Kubeflow's operators set.

No cluster has run them: what an operator does is written here as its documentation and source state it.
"""

from __future__ import annotations

import copy
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from launched import LAUNCHER, SECRET, free_port, lines, started
from warptape.distributed.launcher.arguments import Config, UsageError, configure

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "examples/cluster"
SHOW = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
sys.stdout.write(json.dumps([os.environ[name] for name in names]) + chr(10))
"""


def manifest(name: str) -> dict[str, Any]:
    """The objects of a file by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())}


def only(container: dict[str, Any]) -> dict[str, str]:
    """The variables that a container sets itself, but for the secret."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def pod_problems(pod: dict[str, Any], config: Config) -> dict[str, bool]:
    """Of what every pod needs, whether it is there."""
    (container,) = pod["containers"]
    secret = [each for each in container["env"] if "valueFrom" in each]
    return {
        "port": [port["containerPort"] for port in container["ports"]] == [config.port],
        "secret": [each["name"] for each in secret] == ["WARPTAPE_SECRET"],
        "volumes": {v["name"] for v in pod["volumes"]} == {m["name"] for m in container["volumeMounts"]},
        "memory": {"/shared", "/dev/shm"} == {m["mountPath"] for m in container["volumeMounts"]},
        "script": any(
            (FOLDER.parents[1] / part).is_file() for part in config.command if part.endswith(".py")
        ),
        "again": pod.get("restartPolicy", "OnFailure") == "OnFailure",
    }


def indexed(found: dict[str, Any]) -> dict[str, bool]:
    """kubernetes.yaml: a service and an indexed job, fixed ranks."""
    service, job = found["Service"], found["Job"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    command = [part.replace("$(JOB_COMPLETION_INDEX)", "0") for part in pod["containers"][0]["command"]]
    config = configure(command[1:], {})
    name = job["metadata"]["name"]
    return pod_problems(pod, config) | {
        "pods": spec["completions"] == spec["parallelism"] == config.nnodes,
        "indexed": spec["completionMode"] == "Indexed",
        "host": config.host == f"{name}-0.{service['metadata']['name']}"
        and pod["subdomain"] == service["metadata"]["name"],
        "headless": service["spec"]["clusterIP"] == "None",
        "selector": service["spec"]["selector"] == {"job-name": name},
        "service": [port["port"] for port in service["spec"]["ports"]] == [config.port],
        "node": not config.dynamic and config.node_rank == 0,
    }


def jobset(found: dict[str, Any]) -> dict[str, bool]:
    """jobset.yaml: pods are <set>-<job>-<index of the job>-<index of the pod>.<subdomain: the set's name>."""
    spec = found["JobSet"]["spec"]
    (job,) = spec["replicatedJobs"]
    template = job["template"]["spec"]
    pod = template["template"]["spec"]
    (container,) = pod["containers"]
    config = configure(container["command"][1:], only(container))
    name = found["JobSet"]["metadata"]["name"]
    return pod_problems(pod, config) | {
        "pods": template["completions"] == template["parallelism"] == config.nnodes and job["replicas"] == 1,
        "indexed": template["completionMode"] == "Indexed",
        "host": config.host == f"{name}-{job['name']}-0-0.{spec['network'].get('subdomain', name)}",
        "names": spec["network"]["enableDNSHostnames"] and spec["network"]["publishNotReadyAddresses"],
        "elastic": config.dynamic and 1 <= config.min_nodes < config.nnodes and config.max_restarts > 0,
        "grace": pod["terminationGracePeriodSeconds"] > config.grace,
    }


def operator(job: dict[str, Any]) -> dict[str, str]:
    """What Kubeflow's training operator (v1.9) sets in each pod of an elastic PyTorchJob."""
    policy, worker = job["spec"]["elasticPolicy"], job["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = [c for c in worker["template"]["spec"]["containers"] if c["name"] == "pytorch"]
    (port,) = [p["containerPort"] for p in container["ports"] if p["name"] == "pytorchjob-port"]
    return {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"],
        "PET_RDZV_ENDPOINT": f"{job['metadata']['name']}-worker-0:{port}",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
        "PET_RDZV_CONF": ",".join(f"{each['key']}={each['value']}" for each in policy["rdzvConf"]),
    }


def pytorchjob(found: dict[str, Any]) -> dict[str, bool]:
    """pytorchjob.yaml: the operator numbers nobody; the launchers do."""
    job = found["PyTorchJob"]
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    pod = worker["template"]["spec"]
    try:
        variables = operator(job)
    except ValueError:  # no container or port of the names that the operator looks for
        return {"names": False}
    config = configure(pod["containers"][0]["command"][1:], variables)
    return pod_problems(pod, config) | {
        "pods": config.min_nodes <= worker["replicas"] == config.nnodes,
        "elastic": config.dynamic and config.min_nodes < config.nnodes and config.max_restarts > 0,
        "restart": worker["restartPolicy"] == "OnFailure",
        "grace": pod["terminationGracePeriodSeconds"] > config.grace,
        "wait": (config.join_timeout, config.last_call) == (1800, 10),
    }


CHECKS = {"kubernetes": indexed, "jobset": jobset, "pytorchjob": pytorchjob}


def problems(name: str, found: dict[str, Any]) -> list[str]:
    return [what for what, holds in CHECKS[name](found).items() if not holds]


@pytest.mark.parametrize("name", CHECKS)
def test_the_manifest_fits_the_launcher(name: str) -> None:
    assert problems(name, manifest(name)) == []


def _job(found):
    return found["Job"]["spec"]


def _set(found):
    return found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]


def _worker(found):
    return found["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]


def _container(spec):
    return spec["template"]["spec"]["containers"][0]


FAULTS = [
    ("kubernetes", "pods", lambda f: _job(f).update(completions=3)),
    ("kubernetes", "host", lambda f: _job(f)["template"]["spec"].update(subdomain="other")),
    ("kubernetes", "service", lambda f: f["Service"]["spec"]["ports"][0].update(port=29501)),
    ("kubernetes", "volumes", lambda f: _job(f)["template"]["spec"]["volumes"].pop()),
    ("kubernetes", "selector", lambda f: f["Service"]["spec"].update(selector={"app": "digits"})),
    ("jobset", "pods", lambda f: _set(f).update(parallelism=2)),
    ("jobset", "host", lambda f: f["JobSet"]["metadata"].update(name="other")),
    ("jobset", "host", lambda f: f["JobSet"]["spec"]["network"].update(subdomain="other")),
    ("jobset", "names", lambda f: f["JobSet"]["spec"]["network"].update(enableDNSHostnames=False)),
    ("jobset", "elastic", lambda f: _container(_set(f))["env"][0].update(value="4")),
    ("jobset", "port", lambda f: _container(_set(f))["ports"][0].update(containerPort=29500)),
    ("jobset", "secret", lambda f: _container(_set(f))["env"].pop()),
    ("jobset", "grace", lambda f: _set(f)["template"]["spec"].update(terminationGracePeriodSeconds=30)),
    ("jobset", "script", lambda f: _container(_set(f))["command"].__setitem__(1, "examples/elastic.py")),
    ("pytorchjob", "pods", lambda f: _worker(f).update(replicas=5)),
    ("pytorchjob", "names", lambda f: _container(_worker(f)).update(name="train")),
    ("pytorchjob", "names", lambda f: _container(_worker(f))["ports"][0].update(name="port")),
    ("pytorchjob", "restart", lambda f: _worker(f).update(restartPolicy="Never")),
    ("pytorchjob", "elastic", lambda f: f["PyTorchJob"]["spec"]["elasticPolicy"].update(maxRestarts=0)),
    ("pytorchjob", "wait", lambda f: f["PyTorchJob"]["spec"]["elasticPolicy"]["rdzvConf"].pop()),
    ("pytorchjob", "memory", lambda f: _container(_worker(f))["volumeMounts"][1].update(mountPath="/shm")),
]


@pytest.mark.parametrize(("name", "what", "plant"), FAULTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_planted_fault_is_found(name: str, what: str, plant: Any) -> None:
    found = copy.deepcopy(manifest(name))
    plant(found)
    if what == "script":  # the launcher itself refuses it
        with pytest.raises(UsageError, match="there is no such file"):
            problems(name, found)
        return
    assert what in problems(name, found)


def run_pods(tmp_path: Path, pods: list[dict[str, str]]) -> list[list[str]]:
    """What the ranks of pods with these variables say, by rank."""
    (tmp_path / "show.py").write_text(SHOW)
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(
                started([*LAUNCHER, str(tmp_path / "show.py")], WARPTAPE_SECRET=SECRET, **pod)
            )
            for pod in pods
        ]
        results = [job.finish() for job in jobs]
    assert [code for code, _, _ in results] == [0] * len(pods), results
    return sorted(said for _, out, _ in results for said in lines(out))


def test_pods_of_an_elastic_pytorchjob_become_one_job(tmp_path: Path) -> None:
    """The operator's variables, with pod 0's name and the last call as this machine needs them."""
    variables = operator(manifest("pytorchjob")["PyTorchJob"])
    variables |= {"PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}", "PET_NPROC_PER_NODE": "1"}
    variables["PET_NNODES"] = "2:2"
    found = run_pods(tmp_path, [variables, variables])
    assert found == [[str(rank), "2", str(rank), "127.0.0.1"] for rank in range(2)]


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_pods_with_a_master_become_one_job(tmp_path: Path, ranks: str) -> None:
    """A PyTorchJob without elasticPolicy, or a TrainJob of Kubeflow's Trainer (which sets the PET_ ones
    alone): RANK is the pod's, and means nothing to the launcher."""
    port = str(free_port())
    shared = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": ranks, "PET_MASTER_ADDR": "127.0.0.1"}
    shared |= {"PET_MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    pods = [shared | {"PET_NODE_RANK": node, "RANK": node} for node in "01"]
    found = run_pods(tmp_path, pods)
    world = 2 * int(ranks)
    assert [said[:3] for said in found] == [
        [str(rank), str(world), str(rank // int(ranks))] for rank in range(world)
    ]
    assert json.dumps(found).count("127.0.0.1") == world
