"""Draws docs/figures/pipeline_*.svg: the timeline of each schedule, ideal and measured.

    python docs/figures/pipeline.py

The stages are threads of a simulated world and sleep instead of working: so one core can play four ranks.
"""

from __future__ import annotations

import time
from pathlib import Path

from warptape import Tensor, nn, zeros
from warptape import distributed as dist
from warptape.parallel import pipeline as pp

RANKS, MICRO_BATCHES, SECONDS = 4, 8, 0.04
TITLES = {
    "gpipe": "GPipe (fill-drain)",
    "1f1b": "1F1B",
    "interleaved_1f1b": "interleaved 1F1B",
    "looped_bfs": "looped BFS",
    "zb_h1": "ZB-H1",
    "interleaved_zero_bubble": "interleaved zero bubble",
    "zb_v": "ZB-V",
    "dualpipe_v": "DualPipeV",
}
SINGLE = {"gpipe": pp.ScheduleGPipe, "1f1b": pp.Schedule1F1B, "zb_h1": pp.ScheduleZBH1}
SEVERAL = {
    "interleaved_1f1b": pp.ScheduleInterleaved1F1B,
    "looped_bfs": pp.ScheduleLoopedBFS,
    "interleaved_zero_bubble": pp.ScheduleInterleavedZeroBubble,
    "zb_v": pp.ScheduleZBVZeroBubble,
    "dualpipe_v": pp.ScheduleDualPipeV,
}


class Sleeper(nn.Module):
    """As long in forward as in either half of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.weight = 0.0, nn.Parameter(zeros(1))
        self.weight.register_hook(self.sleep)

    def sleep(self, gradient: Tensor | None = None) -> None:
        """What a layer of a model does not."""
        time.sleep(self.seconds)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 1) -> the same"""
        self.sleep()
        out = x + self.weight
        out.register_hook(self.sleep)
        return out


def chunks_of(name: str) -> int:
    """Stages on each rank."""
    return 2 if name in SEVERAL else 1


def ideal(name: str) -> pp.Timeline:
    """As computed."""
    stages, unit = RANKS * chunks_of(name), SECONDS / chunks_of(name)
    return pp.simulate_schedule(
        pp.SCHEDULES[name](stages, MICRO_BATCHES), stages, pp.Durations(unit, unit, unit)
    )


def measured(name: str) -> pp.Timeline:
    """As it went."""

    def rank() -> pp.Timeline:
        chunks = chunks_of(name)
        layers = [Sleeper() for _ in range(RANKS * chunks)]
        runner: pp.PipelineSchedule
        if name in SEVERAL:
            stages = pp.split_into_stages(layers, chunks, placement=SEVERAL[name].placement)
            runner = SEVERAL[name](stages, MICRO_BATCHES, lambda out, target: out.mean())
        else:
            (stage,) = pp.split_into_stages(layers)
            runner = SINGLE[name](stage, MICRO_BATCHES, lambda out, target: out.mean())
        x = zeros(MICRO_BATCHES, 1)
        runner.step(x, target=x)  # ranks get to know each other
        for layer in layers:
            layer.seconds = SECONDS / chunks
        runner.trace = []
        runner.step(x, target=x)
        return runner.timeline()

    return dist.simulate(RANKS, rank)[0]


if __name__ == "__main__":
    for name, title in TITLES.items():
        both = {f"{title}, ideal": ideal(name), f"{title}, measured": measured(name)}
        path = Path(__file__).with_name(f"pipeline_{name}.svg")
        path.write_text(pp.draw_timelines(both, same_scale=True))
        bubbles = [f"{t.bubble / SECONDS:.2f} of {t.length / SECONDS:.2f}" for t in both.values()]
        print(f"{path.name}: waits {bubbles[0]} units, measured {bubbles[1]}")
