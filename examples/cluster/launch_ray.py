"""Starts the ranks of train.py as Ray actors, on whatever nodes the Ray cluster has.

    pip install ray pyarrow
    python examples/cluster/launch_ray.py --ranks 4 -- --data /shared/digits --checkpoints /shared/run

Ray places the actors and says where they are; the ranks find each other as under any launcher, by the
environment. When a rank fails all are ended and started again, up to --retries times, and go on at the
newest checkpoint.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

try:
    import ray
except ImportError:
    sys.exit("launch_ray.py runs on Ray: pip install ray pyarrow")

TRAIN = Path(__file__).with_name("train.py")


@ray.remote(num_cpus=1)
class Rank:
    """One process of the job, beside its actor."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None

    def address(self) -> tuple[str, int]:
        """This node's address, and a port that is free there now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def run(self, environment: dict[str, str], arguments: list[str]) -> str:
        """What the rank printed. Raises RuntimeError with the end of it where the rank fails."""
        command = [sys.executable, str(TRAIN), *arguments]
        self.process = subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        output, _ = self.process.communicate()
        if self.process.returncode:
            rank = environment["RANK"]
            raise RuntimeError(f"rank {rank} ended with {self.process.returncode}: {output[-2000:]}")
        return output


def environments(addresses: list[tuple[str, int]], secret: str) -> list[dict[str, str]]:
    """What each rank is told, as torchrun would: rank r is on the r-th of these addresses."""
    on_node, seen = Counter(host for host, _ in addresses), Counter()
    out = []
    for rank, (host, _) in enumerate(addresses):
        out.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(addresses)),
                "LOCAL_RANK": str(seen[host]),
                "LOCAL_WORLD_SIZE": str(on_node[host]),
                "MASTER_ADDR": addresses[0][0],
                "MASTER_PORT": str(addresses[0][1]),
                "WARPTAPE_SECRET": secret,
                "OMP_NUM_THREADS": "1",
            }
        )
        seen[host] += 1
    return out


def launch(ranks: int, arguments: list[str], retries: int = 0) -> str:
    """Runs train.py on so many actors; rank 0's output. Raises the failure after `retries` more tries."""
    for attempt in range(retries + 1):
        actors = [Rank.remote() for _ in range(ranks)]
        try:
            envs = environments(ray.get([a.address.remote() for a in actors]), secrets.token_hex(32))
            return ray.get([a.run.remote(env, arguments) for a, env in zip(actors, envs, strict=True)])[0]
        except ray.exceptions.RayError:
            if attempt == retries:
                raise
        finally:
            for actor in actors:
                ray.kill(actor)
    raise AssertionError("unreachable")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="-- and the arguments of train.py")
    options = parser.parse_args()
    ray.init(log_to_driver=False)
    print(launch(options.ranks, [a for a in options.arguments if a != "--"], options.retries), end="")


if __name__ == "__main__":
    main()
