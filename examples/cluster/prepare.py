"""Prepares data on a cluster: scikit-learn's digits through Ray Data into Parquet shards.

    pip install 'warptape[examples]' ray pyarrow
    python examples/cluster/prepare.py --out /shared/digits

Ray Data reads, maps and writes in parallel on every node of the cluster that `ray.init()` finds; Spark
would do as well, as what train.py reads is plain Parquet: columns pixels (list of 64 floats from 0 to 1)
and label.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np

try:
    import ray
except ImportError:
    sys.exit("prepare.py runs on Ray: pip install ray pyarrow")


def scaled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Grey values from 0..16 to 0..1."""
    return {"pixels": (batch["pixels"] / 16).astype(np.float32), "label": batch["label"]}


def prepare(out: Path, shards: int, seed: int) -> None:
    """Writes out/train and out/test, a fifth held out; replaces what is there when all is written."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    held = len(order) // 5
    making = out.with_name(out.name + ".tmp")
    shutil.rmtree(making, ignore_errors=True)
    for name, rows in (("train", order[held:]), ("test", order[:held])):
        items = [{"pixels": digits.data[i], "label": int(digits.target[i])} for i in rows]
        data = ray.data.from_items(items, override_num_blocks=shards).map_batches(scaled)
        data.write_parquet(str(making / name))
    shutil.rmtree(out, ignore_errors=True)
    making.rename(out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ray.init(log_to_driver=False)
    prepare(options.out, options.shards, options.seed)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
