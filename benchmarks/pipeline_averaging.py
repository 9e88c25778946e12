"""What averaging gradients while other stages compute saves, by stages and links that sleep.

    python benchmarks/pipeline_averaging.py [--stage 20] [--link 60]

Two copies of a pipeline of two ranks, which are threads of one process: 1F1B with a stage on each rank, and
interleaved 1F1B with two and with four. A stage sleeps `stage` milliseconds forward and as long backward; the
gradients of all stages of a rank take `link` milliseconds to be averaged, one message after the other. So the
time says what the order of calls hides, whatever the machine. Prints a step with averaging as each stage's
gradients are complete, with averaging at the end, and the saving as a share of `link`. With v stages on a
rank all but one of them can travel early: at most 1 - 1 / v.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import warptape as wt
import warptape.distributed as dist
from warptape import nn
from warptape.autograd import Function
from warptape.parallel import ParallelModel, parallelize

MICRO_BATCHES = 4


class Sleep(Function):
    """x, after so many seconds forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: wt.Tensor, seconds: float) -> wt.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: wt.Tensor) -> tuple[wt.Tensor, None]:
        time.sleep(ctx.seconds)
        return g, None


class Stage(nn.Module):
    """[B, 4] -> [B, 4]"""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.linear = seconds, nn.Linear(4, 4)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return Sleep.apply(self.linear(x), self.seconds)


class Late:
    """Work on a link that carries one message after the other."""

    def __init__(self, work: Any, until: float) -> None:
        self.work, self.until = work, until

    def wait(self) -> None:
        time.sleep(max(0.0, self.until - time.monotonic()))
        self.work.wait()


def measure(chunks: int, early: bool, stage: float, link: float) -> float:
    """Seconds of a step of the slowest rank."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    wt.manual_seed(0)
    layers = nn.ModuleList(Stage(stage) for _ in range(2 * chunks))
    schedule = "Interleaved1F1B" if chunks > 1 else "1F1B"
    loss_fn = lambda out, target: (out - target).square().mean()
    model = parallelize(
        layers,
        mesh,
        loss_fn=loss_fn,
        layers=layers,
        schedule=schedule,
        chunks=chunks,
        n_microbatches=MICRO_BATCHES,
    )
    free, average = [0.0], ParallelModel._average

    def late(gradients: list[wt.Tensor], group: Any) -> Late:
        share = len(gradients) / (2 * chunks)  # of a weight and a bias in each stage
        free[0] = max(free[0], time.monotonic()) + link * share
        return Late(average(gradients, group), free[0])

    model.__dict__["_average"] = late
    runner: Any = model._runner
    if not early:
        step = runner.step
        runner.step = lambda *args, when_complete, **kwargs: step(*args, **kwargs)
    x = wt.ones(2 * MICRO_BATCHES, 4)
    taken = []
    for _ in range(2):  # the first also makes buffers
        dist.barrier()
        start = time.monotonic()
        model.step(x, target=x)
        dist.barrier()
        taken.append(time.monotonic() - start)
    return taken[-1]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--stage", type=float, default=20, help="milliseconds of a stage, forward or backward"
    )
    parser.add_argument("--link", type=float, default=60, help="milliseconds to average a rank's gradients")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{given.stage:g} ms a stage, {given.link:g} ms to average: milliseconds of a step")
    print("stages of a rank  while others compute  at the end  saved, share of averaging")
    for chunks in (1, 2, 4):
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(given.rounds):
            for early, seen in times.items():
                args = (chunks, early, given.stage / 1e3, given.link / 1e3)
                seen.append(1e3 * dist.simulate(4, lambda a=args: measure(*a))[0])
        beside, after = (statistics.median(times[early]) for early in (True, False))
        print(f"{chunks:16} {beside:21.0f} {after:11.0f} {(after - beside) / given.link:26.2f}")


if __name__ == "__main__":
    main()
