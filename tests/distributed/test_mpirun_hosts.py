"""mpirun of Open MPI and of MPICH over four network namespaces, as hosts: it starts the ranks and numbers
them; what they say to each other goes by gloo, or by MPI itself."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import warptape.distributed as dist
from launched import SECRET, Hosts, lines, started, until

SCRIPT = """
import json, os, socket, sys
import warptape as wt
import warptape.distributed as dist
from warptape.distributed import _environment

found = _environment.find()
backend = sys.argv[1]
dist.init_process_group(None if backend == "gloo" else backend)
assert dist.get_default_group()._backend_name(False) == backend
t = wt.tensor(1.0 + dist.get_rank())
dist.all_reduce(t)
said = [dist.get_rank(), dist.get_world_size(), found.local_rank, socket.gethostname(), found.launcher]
sys.stdout.write(json.dumps([*said, t.item()]) + chr(10))
dist.destroy_process_group()
"""

# What mpirun takes for a remote shell, called as `[-x] HOST COMMAND...`; every host has a name of its own.
SHELL = """#!/bin/sh
[ "$1" = -x ] && shift
number=${1##*.}
shift
exec ip netns exec STEM-$number unshare --uts sh -c "hostname host$number; $*"
"""
MPIRUN = {
    "mpirun.openmpi": "--allow-run-as-root --mca plm_rsh_agent {shell} --mca oob_tcp_if_include eth0 "
    "--mca btl_tcp_if_include eth0 -H {hosts} -x MASTER_ADDR -x MASTER_PORT -x WARPTAPE_SECRET -x PYTHONPATH "
    "-x OMP_NUM_THREADS -x WARPTAPE_TEST_MARK",
    "mpirun.mpich": "-launcher ssh -launcher-exec {shell} -iface eth0 -hosts {hosts}",
}


@pytest.mark.parametrize(
    ("name", "backend"), [("mpirun.openmpi", "gloo"), ("mpirun.mpich", "gloo"), ("mpirun.openmpi", "mpi")]
)
def test_mpirun_on_four_hosts(hosts: Hosts, tmp_path: Path, name: str, backend: str) -> None:
    if not {"gloo": dist.is_gloo_available, "mpi": dist.is_mpi_available}[backend]():
        pytest.skip(f"built without {backend}")
    mpirun = shutil.which(name)
    if mpirun is None or shutil.which("unshare") is None:
        pytest.skip(f"{name} is not installed")
    shell = tmp_path / "shell"
    shell.write_text(SHELL.replace("STEM", hosts.names[0].rpartition("-")[0]))
    shell.chmod(0o755)
    flags = MPIRUN[name].format(shell=shell, hosts=",".join(f"10.77.0.{n}" for n in range(1, 5)))
    (tmp_path / "script.py").write_text(SCRIPT)
    program = ["-n", "4", sys.executable, str(tmp_path / "script.py"), backend]
    command = [str(shell), "10.77.0.1", mpirun, *flags.split(), *program]
    variables = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500", "WARPTAPE_SECRET": SECRET}
    with started(command, OMP_NUM_THREADS="1", **variables) as job:
        code, out, err = job.finish(120)
        until(lambda: job.left() == [])
    assert code == 0, err
    launcher = {"mpirun.openmpi": "Open MPI", "mpirun.mpich": "Hydra"}[name]
    assert sorted(lines(out)) == [[rank, 4, 0, f"host{rank + 1}", launcher, 10.0] for rank in range(4)]
