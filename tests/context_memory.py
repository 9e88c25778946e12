"""A script for ranks that a launcher starts: checks attention between processes, then prints the most bytes
that tensors of each rank held during forward and backward of four layers on one sequence of 2048 tokens, of
which a rank has its slices."""

from __future__ import annotations

import json

import warptape as wt
import warptape.distributed as dist
from tensor_models import train_gpt
from warptape import nn
from warptape.distributed.tensor.experimental import context_parallel
from warptape.nn import functional as F
from warptape.parallel.context import ring_attention, shard_sequence

T, C = 2048, 64


def difference() -> float:
    """Of causal attention and its gradients from one process's."""
    drawn = [wt.randn(2, 4, 64, 8, dtype=wt.float64, requires_grad=True) for _ in range(3)]
    out = F.scaled_dot_product_attention(*drawn, is_causal=True)
    out.sin().sum().backward()
    parts = [shard_sequence(t.detach(), 2).requires_grad_() for t in drawn]
    got = ring_attention(*parts, is_causal=True)
    got.sin().sum().backward()
    pairs = [(got, out), *((a.grad, b.grad) for a, b in zip(parts, drawn, strict=True))]
    return max((a - shard_sequence(b, 2)).abs().max().item() for a, b in pairs)


if __name__ == "__main__":
    dist.init_process_group()
    wt.manual_seed(0)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    layers = nn.Sequential(*[train_gpt.Block(C, 4) for _ in range(4)])
    assert difference() < 1e-10
    x = wt.randn(1, T // dist.get_world_size(), C)
    wt._C._reset_peak_memory()
    before = wt._C._memory_stats()["allocated_bytes"]
    with context_parallel(mesh):
        layers(x).sum().backward()
    peak = wt._C._memory_stats()["peak_allocated_bytes"] - before
    peaks = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, peak)
    if dist.get_rank() == 0:
        print(json.dumps(peaks))
    dist.destroy_process_group()
