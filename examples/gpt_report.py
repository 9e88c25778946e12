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
        self.since, self.bytes = time.perf_counter(), 0

    def trained(self, tokens: int) -> None:
        self.bytes += tokens

    def report(self, step: int, loss: float) -> None:
        speed = self.bytes / (time.perf_counter() - self.since)
        share = speed * self.flops / self.peak
        if self.bar is not None:
            self.bar.update(step - self.bar.n)
            known = {} if math.isnan(self.validation) else {"val": f"{self.validation:.4f}"}
            self.bar.set_postfix(loss=f"{loss:.4f}", **known, tokens_s=f"{speed:,.0f}", peak=f"{share:.0%}")
        else:
            print(f"step {step} loss {loss:.4f} tokens/s {speed:.0f} peak {100 * share:.1f}%", flush=True)
        self.resume_clock()

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.write(text)
        else:
            print(text, flush=True)

    def validated(self, step: int, loss: float, name: str, beside: float) -> None:
        """The loss in nats per byte, and in bits beside those of the text's floor, or of xz."""
        self.validation = loss
        bits = f"val bits/byte {loss / math.log(2):.4f} ({name} {beside:.4f})"
        self.say(
            f"val loss {loss:.4f}\n{bits}" if self.bar is None else f"step {step} val loss {loss:.4f}, {bits}"
        )

    def sample(self, step: int, text: bytes) -> None:
        known = (c if c.isprintable() or c in "\n\t" else "?" for c in text.decode(errors="replace"))
        self.say(f"--- sample after {step} steps\n{''.join(known).strip()}\n---")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def plot(history: dict[str, list[list[float]]], name: str, beside: float, path: Path) -> str:
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
    label = "the text's entropy" if name == "floor" else f"{name} on the validation bytes"
    axes.axhline(beside * math.log(2), color="gray", linestyle=":", label=label)
    axes.set(xlabel="step", ylabel="nats per byte", title="Loss")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return f"loss curve: {path}"


def what_next(out: Path, data: str | None) -> str:
    """Commands to go on with; the first two need tokenizers, of `pip install 'warptape[inference]'`."""
    prompt = "The hungry dog" if data is None else "def main("
    lines = [
        "what next:",
        f"  python examples/export_gpt.py {out}/checkpoint.pt {out}/model    a folder that others read",
        f"  warptape generate {out}/model '{prompt}' --max-tokens 40",
        "  python examples/train_gpt.py --data FILE_OR_FOLDER --out out/mine    your own text",
        "  warptape-run --nproc-per-node 2 examples/train_gpt.py    two processes, the same curve",
        "  warptape course    the notebooks; 11_train_gpt explains this program",
    ]
    return "\n".join(lines)
