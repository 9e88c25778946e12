"""What train_gpt.py shows: progress, the machine's peak, and a picture of the losses."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import warptape as wt
from tqdm import tqdm
from warptape.parallel.experts import MixtureOfExperts


def machine_peak(device: str, dtype: Any) -> float:
    """Operations per second of a large matrix product: on the CPU one thread's best times the cores."""
    on_cpu = device.startswith("cpu")
    size = 1024 if on_cpu else 8192
    a, b = (wt.randn(size, size, generator=wt.Generator()).to(device, dtype) for _ in range(2))
    threads, best = wt.get_num_threads(), math.inf
    if on_cpu:
        wt.set_num_threads(1)
    try:
        for _ in range(10):
            start = time.perf_counter()
            (a @ b)[0, 0].item()
            best = min(best, time.perf_counter() - start)
    finally:
        wt.set_num_threads(threads)
    return 2.0 * size**3 / best * (len(os.sched_getaffinity(0)) if on_cpu else 1)


def flops_per_byte(model: Any) -> float:
    """Operations that training takes per byte: 6 N + 12 L T C, with N the weights that a byte meets, without
    the position table and the experts that it does not take."""
    table = model.positions.weight.numel()  # T C
    weights = sum(p.numel() for p in model.parameters()) - table
    for m in model.modules():
        if isinstance(m, MixtureOfExperts):
            share = 1 - m.router.top_k / m.router.num_experts
            weights -= sum(p.numel() for p in m.experts.parameters()) * share
    return 6.0 * weights + 12.0 * len(model.layers) * table


class Progress:
    """A progress bar on a terminal, lines on stdout elsewhere; times the steps between two reports."""

    def __init__(self, step: int, steps: int, flops: float, peak: float) -> None:
        self.flops, self.peak = flops, peak
        self.bar = tqdm(total=steps, initial=step, unit="step") if sys.stdout.isatty() else None
        self.validation = math.nan
        self.resume_clock()

    def resume_clock(self) -> None:
        self.since, self.bytes, self.steps = time.perf_counter(), 0, 0

    def trained(self, tokens: int) -> None:
        self.bytes += tokens
        self.steps += 1

    def report(self, step: int, loss: float) -> None:
        speed = self.bytes / (time.perf_counter() - self.since)
        share = speed * self.flops / self.peak
        if self.bar is not None:
            self.bar.update(self.steps)
            known = {} if math.isnan(self.validation) else {"val": f"{self.validation:.4f}"}
            self.bar.set_postfix(loss=f"{loss:.4f}", **known, tokens_s=f"{speed:,.0f}", peak=f"{share:.0%}")
        else:
            print(f"step {step} loss {loss:.4f} tokens/s {speed:.0f} peak {100 * share:.1f}%", flush=True)
        self.resume_clock()

    def validated(self, step: int, loss: float, xz: float) -> None:
        self.validation = loss
        bits = f"val bits/byte {loss / math.log(2):.4f} (xz {xz:.4f})"
        if self.bar is not None:
            self.bar.write(f"step {step} val loss {loss:.4f}, {bits}")
        else:
            print(f"val loss {loss:.4f}\n{bits}", flush=True)
        self.resume_clock()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def plot(history: dict[str, list[list[float]]], xz: float, path: Path) -> str:
    """Draw both losses over the steps as a PNG; returns what to tell the user."""
    try:
        import matplotlib
    except ImportError:
        return f"{path} not drawn: it needs matplotlib (pip install matplotlib)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, style in (("train", "-"), ("validation", "o-")):
        if history[name]:
            axes.plot(*zip(*history[name], strict=True), style, label=name, linewidth=1)
    axes.axhline(xz * math.log(2), color="gray", linestyle=":", label="xz on the validation bytes")
    axes.set(xlabel="step", ylabel="nats per byte", title="Loss")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return f"loss curve: {path}"
