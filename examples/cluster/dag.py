"""A job as a graph of stages on Ray: prepare, train, evaluate, compress, publish for serving.

    pip install 'warptape[examples]' ray pyarrow
    python examples/cluster/dag.py --work /shared/job --ranks 2
    warptape serve /shared/job/publish --port 8000

In the manner of Dryad (Isard et al., EuroSys 2007): a vertex is a deterministic program that reads
finished files and writes a folder; edges are those folders. Ray places the stages, runs what does not
depend on each other at once, and starts a stage that fails again (its process, or its node). A stage's
folder gets its name when all of it is written, so a second run of this program finds what is finished and
computes the rest alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)

try:
    import ray
except ImportError:
    sys.exit("dag.py runs on Ray: pip install ray pyarrow")


def prepare(out: Path) -> None:
    """out/train, out/test: Parquet shards."""
    import prepare as program

    program.prepare(out / "digits", shards=8, seed=0)


def train(out: Path, prepared: Path, ranks: int) -> None:
    """out/model.pt"""
    import launch_ray

    running = out.parent / "checkpoints"  # kept between tries: a second one goes on there
    arguments = ["--data", str(prepared / "digits"), "--checkpoints", str(running)]
    launch_ray.launch(ranks, arguments, retries=1)
    shutil.copy(running / "model.pt", out / "model.pt")


def accuracy(model: Callable, data: Path) -> float:
    """Share of the test rows that `model` gets right."""
    import warptape as torch
    from shards import ParquetStream

    rows = ParquetStream(data / "digits" / "test", batch_size=1, rank=0, world_size=1, seed=0)
    with torch.no_grad():
        right = [(model(x).argmax(-1) == y).item() for x, y in rows]
    return sum(right) / len(right)


def trained_network(folder: Path):
    """The network of train.py with its weights."""
    import train as program
    import warptape as torch

    model = program.network().eval()
    model.load_state_dict(torch.load(folder / "model.pt"))
    return model


def evaluate(out: Path, prepared: Path, trained: Path) -> None:
    """out/metrics.json"""
    value = accuracy(trained_network(trained), prepared)
    (out / "metrics.json").write_text(json.dumps({"accuracy": value}))


def compress(out: Path, prepared: Path, trained: Path) -> None:
    """out/model.pt: the weights in int8 by rows; out/metrics.json"""
    import warptape as torch
    from warptape.ao.quantization import Int8WeightOnlyConfig, quantize_

    model = trained_network(trained)
    quantize_(model, Int8WeightOnlyConfig())
    torch.save(model.state_dict(), out / "model.pt")
    (out / "metrics.json").write_text(json.dumps({"accuracy": accuracy(model, prepared)}))


def publish(out: Path, trained: Path, metrics: Path, compressed: Path) -> None:
    """out/digits/1: a version for `warptape serve`. Raises ValueError for a model that is not good enough."""
    import warptape as torch
    from warptape.export import Dim, export, save

    for stage in (metrics, compressed):
        value = json.loads((stage / "metrics.json").read_text())["accuracy"]
        if value < 0.9:
            raise ValueError(f"{stage.name}: an accuracy of {value:.3f} is under 0.9; nothing is published")
    version = out / "digits" / "1"
    version.mkdir(parents=True)
    program = export(
        trained_network(trained), (torch.rand(4, 64),), dynamic_shapes=({0: Dim("n", min=1, max=64)},)
    )
    save(program, version / "model.safetensors")


@ray.remote(num_cpus=0, max_retries=2, retry_exceptions=[OSError, RuntimeError])
def stage(vertex: Callable, work: str, inputs: list[str], more: dict) -> str:
    """Runs one stage unless its folder is there; the folder."""
    name = vertex.__name__
    out, making = Path(work) / name, Path(work) / f"{name}.tmp"
    if not out.exists():
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        vertex(making, *map(Path, inputs), **more)
        making.rename(out)
        with open(Path(work) / "log", "a") as log:
            log.write(f"{name}\n")
    return str(out)


@ray.remote(num_cpus=0)
def gather(*folders: str) -> list[str]:
    """A stage's inputs, once all of them are finished."""
    return list(folders)


def run(work: Path, ranks: int) -> dict[str, str]:
    """All stages; their folders by name. Raises what a stage raised; finished ones stay."""
    work.mkdir(parents=True, exist_ok=True)

    def after(vertex: Callable, *inputs: ray.ObjectRef, **more: int) -> ray.ObjectRef:
        return stage.remote(vertex, str(work), gather.remote(*inputs), more)

    prepared = after(prepare)
    trained = after(train, prepared, ranks=ranks)
    metrics = after(evaluate, prepared, trained)
    compressed = after(compress, prepared, trained)
    published = after(publish, trained, metrics, compressed)
    folders = ray.get([prepared, trained, metrics, compressed, published])
    return {Path(folder).name: folder for folder in folders}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="a folder that all nodes share")
    parser.add_argument("--ranks", type=int, default=2, help="of the training")
    options = parser.parse_args()
    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))  # where workers import from
    ray.init(log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    for name, folder in run(options.work.resolve(), options.ranks).items():
        metrics = Path(folder) / "metrics.json"
        print(f"{name:10} {folder} {metrics.read_text() if metrics.exists() else ''}".rstrip())


if __name__ == "__main__":
    main()
