"""Train one small model by all-reduce and by a parameter server in each mode and placement, and compare.

    warptape-run --nproc-per-node 4 examples/parameter_server.py --out ps.json
    python examples/parameter_server.py --ranks 4     # the same with ranks that are threads

Each way trains for the same number of seconds. A sleep stands for the work of a larger model, a longer one
for that of a slow machine: by --slow the last rank always, any rank now and then, or none. Prints for each
way the steps in a second of all workers together, the median of the last losses on data not trained on, how
old parameters were, and the bytes that come to the busiest rank for a step of each worker. Where matplotlib
is installed and --out is given, the curves are drawn beside it.

Shapes: B examples of a batch; an example is a point [2], its target a number [1].
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import warptape as wt
import warptape.distributed as dist
from warptape import nn, optim
from warptape.distributed.algorithms.textbook import ring_all_reduce
from warptape.parallel import ParameterServer

BOUND = 4  # of the bounded mode, in steps
WAYS = [("all-reduce", "", 0)] + [
    (mode, placement, BOUND if mode == "bounded" else 0)
    for mode in ("synchronous", "bounded", "asynchronous")
    for placement in ("host", "rank0", "sharded")
]


def target(points: wt.Tensor) -> wt.Tensor:
    """What is learnt: [B, 2] -> [B, 1]."""
    return wt.sin(2 * points[:, :1]) + points[:, 1:] ** 2


class Run:
    """One way of training on one rank."""

    def __init__(self, options: argparse.Namespace, way: tuple[str, str, int]) -> None:
        self.options = options
        self.mode, self.placement, self.bound = way
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        wt.manual_seed(options.seed)
        widths = [2, *[options.width] * 5, 1]
        layers = [layer for io in pairwise(widths) for layer in (nn.Linear(*io), nn.Tanh())]
        self.model = nn.Sequential(*layers[:-1])
        self.luck = random.Random(self.rank)
        self.data = wt.Generator().manual_seed(1000 + self.rank)
        self.held_out = 2 * wt.rand(512, 2, generator=wt.Generator().manual_seed(7)) - 1  # [512, 2]
        self.steps = 0
        self.curve: list[tuple[float, float]] = []  # seconds, loss on held-out points

    @wt.no_grad()
    def loss(self) -> float:
        return nn.functional.mse_loss(self.model(self.held_out), target(self.held_out)).item()

    def backward(self) -> None:
        """Gradients of a batch of this rank's own, after the sleep that stands for work."""
        unlucky = self.luck.random() < 1 / self.size
        slow = {"last": self.rank == self.size - 1, "random": unlucky, "none": False}[self.options.slow]
        time.sleep((self.options.slow_ms if slow else self.options.work_ms) / 1000)
        points = 2 * wt.rand(self.options.batch, 2, generator=self.data) - 1  # [B, 2]
        self.model.zero_grad()
        nn.functional.mse_loss(self.model(points), target(points)).backward()

    def note(self, start: float) -> bool:
        """After a step: keeps the loss now and then; whether the time is over."""
        self.steps += 1
        passed = time.perf_counter() - start
        if self.rank == 1 and passed >= len(self.curve) * self.options.seconds / 40:
            self.curve.append((passed, self.loss()))
        return passed >= self.options.seconds

    def all_reduce(self) -> dict[str, Any]:
        """Every rank has the optimizer; gradients are averaged. With them goes who wants to stop."""
        parameters = list(self.model.parameters())
        optimizer = optim.SGD(parameters, lr=self.options.lr)
        start, over = time.perf_counter(), False
        while not over:
            self.backward()
            flat = wt.cat([*(p.grad.reshape(-1) for p in parameters), wt.zeros(1)])
            flat[-1] = float(time.perf_counter() - start >= self.options.seconds)
            dist.all_reduce(flat)
            parts = (flat / self.size)[:-1].split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad.copy_(part.view(parameter.shape))
            optimizer.step()
            self.note(start)
            over = bool(flat[-1] > 0)
        trace = ring_all_reduce(flat[:-1].clone())  # what a ring sends, counted
        return {"came": trace.bytes_received * self.steps, "staleness": {0: self.steps}}

    def serve(self) -> dict[str, Any]:
        """The optimizer is on the servers. An asynchronous step is an n-th as long, for it has one worker's
        gradient and not the mean of n."""
        workers = self.size - (self.placement == "host")
        lr = self.options.lr / (workers if self.mode == "asynchronous" else 1)
        server = ParameterServer(
            self.model,
            lambda parameters: optim.SGD(parameters, lr=lr),
            placement=self.placement,
            mode=self.mode,
            staleness=self.bound,
        )
        start, over = time.perf_counter(), self.rank not in server.workers
        while not over:
            self.backward()
            server.step()
            over = self.note(start)
        report = server.finish()
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, report)
        pulled = 0.0  # bytes of parameters that came to this rank as a worker: a share of what servers sent
        for other, each in enumerate(found):
            if other != self.rank and self.rank in server.workers and each["sent"]:
                pulled += each["sent"] / len([w for w in server.workers if w != other])
        return {"came": report["received"] + pulled, "staleness": report["staleness"]}

    def __call__(self) -> dict[str, Any] | None:
        """Trains; rank 0 returns what was measured."""
        start = time.perf_counter()
        here = self.all_reduce() if self.mode == "all-reduce" else self.serve()
        seconds = time.perf_counter() - start
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, {**here, "steps": self.steps, "curve": self.curve})
        if self.rank:
            return None
        steps = sum(each["steps"] for each in found)
        workers = len([each for each in found if each["steps"]])
        ages: Counter[int] = Counter()
        for each in found:
            ages.update(each["staleness"])
        model = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return {
            "name": " ".join(filter(None, [self.mode, self.placement])),
            "steps_per_second": steps / seconds,
            "loss": median(loss for _, loss in found[1]["curve"][-8:]),
            "oldest": max(ages),
            "mean_age": sum(age * n for age, n in ages.items()) / max(1, sum(ages.values())),
            "busiest": max(each["came"] for each in found) / (steps / workers) / model,
            "curve": found[1]["curve"],
        }


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs every way on this rank's job; rank 0 prints and returns the results."""
    results = []
    for way in WAYS:
        result = Run(options, way)()
        if result is not None:
            results.append(result)
            print(
                f"{result['name']:<22} {result['steps_per_second']:7.1f} steps/s  loss {result['loss']:.5f}  "
                f"parameters {result['mean_age']:.2f} steps old, at most {result['oldest']}  "
                f"busiest rank gets {result['busiest']:.2f} x the model a step",
                flush=True,
            )
    return results


def plot(results: list[dict[str, Any]], path: Path) -> str:
    """Draws the curves; returns what to print."""
    try:
        import matplotlib
    except ImportError:
        return f"{path} not drawn: it needs matplotlib (pip install matplotlib)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5))
    for each in results:
        left.semilogy(*zip(*each["curve"], strict=True), label=each["name"])
    left.set(xlabel="seconds", ylabel="loss")
    left.legend(fontsize="small")
    right.barh([each["name"] for each in results], [each["steps_per_second"] for each in results])
    right.set(xlabel="steps of all workers in a second")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return f"drew {path}"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare parameter servers with all-reduce.")
    parser.add_argument("--seconds", type=float, default=3.0, help="training time of each way (default 3)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks, where no launcher says (default 4)")
    parser.add_argument("--work-ms", type=float, default=5.0, help="sleep of a step (default 5)")
    parser.add_argument("--slow-ms", type=float, default=20.0, help="that of a slow rank (default 20)")
    parser.add_argument("--slow", choices=("last", "random", "none"), default="last", help="which ranks are")
    parser.add_argument("--batch", type=int, default=32, help="examples in a worker's step (default 32)")
    parser.add_argument("--width", type=int, default=64, help="width of the model (default 64)")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate (default 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the model (default 0)")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    options = parser.parse_args(arguments)
    if options.ranks < 3 or options.seconds <= 0 or min(options.work_ms, options.slow_ms) < 0:
        parser.error("--ranks must be at least 3, --seconds above 0, and the sleeps not below 0")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if dist.is_torchelastic_launched():
        dist.init_process_group()
        results = compare(options)
        dist.destroy_process_group()
    else:
        results = dist.simulate(options.ranks, compare, options)[0]
    if results and options.out is not None:
        options.out.write_text(json.dumps(results))
        print(plot(results, options.out.with_suffix(".png")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
