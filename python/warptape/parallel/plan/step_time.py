"""The time of a step as formulas: a roofline of each product, alpha-beta of each message, the bubble. They
are in step_time.txt.

Names: b sequences of a micro-batch, s tokens of one, T tokens of a micro-batch on a rank, C width, n
micro-batches; link and wire: bytes/s of a rank within a node and between nodes.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .cost_model import CostModel, terms
from .hardware import Cluster
from .layout import PRECISIONS, Program
from .shape import COLUMN, ROW, ModelShape

MEMORY_SHARE = 0.8  # of the bandwidth that elementwise kernels and norms reach; H200: copies 0.9, norms 0.75
ATTENTION_SHARE = 0.75  # fused attention's rate, of a large product's (FlashAttention-3 and cuDNN on H100)
TILE_M, TILE_N = 128, 256  # of a product's result, made by one multiprocessor at a time


def product_time(m: Any, n: Any, k: Any, rate: Any, bandwidth: Any, cores: Any, size: Any) -> Any:
    """Seconds of [m, k] x [k, n]: its tiles go over the multiprocessors in waves, of which the last is not
    full; at least the time in which operands and result pass through memory. `rate` is for full waves."""
    tiles = np.ceil(m / TILE_M) * np.ceil(n / TILE_N)
    tall = np.ceil(m / TILE_N) * np.ceil(n / TILE_M)
    flops = TILE_M * TILE_N * 2.0 * k
    waves = np.minimum(np.ceil(tiles / cores), np.ceil(tall / cores))
    return np.maximum(waves * cores * flops / rate, size * (m * k + k * n + m * n) / bandwidth)


def ring_time(size: Any, ranks: Any, near: Any, link: Any, wire: Any, hop: Any, far: Any) -> Any:
    """Seconds of a ring's reduce-scatter, or all-gather, of `size` bytes over `ranks`, `near` of them in a
    node: (ranks - 1) / ranks of the bytes through the narrowest place, and a latency for each step."""
    nodes = ranks / near
    width = np.where(nodes > 1, np.minimum(link, near * wire), link)
    return (ranks - 1) / ranks * size / width + (near - 1) * hop + (nodes - 1) * far


def tree_time(size: Any, ranks: Any, near: Any, link: Any, wire: Any, hop: Any, far: Any) -> Any:
    """Half of the seconds of a tree's all-reduce (reduce up, broadcast down, in pieces).

    Args:
        size: bytes.
        ranks, near: all, and those of one host.
        link, wire: bytes a second within and between hosts.
        hop, far: seconds of a message within and between hosts.
    """
    nodes = ranks / near
    width = np.where(nodes > 1, np.minimum(link, near * wire), link)
    return np.where(ranks > 1, size / width + (near - 1) * hop + np.log2(nodes) * far, 0.0)


def half_all_reduce(algorithm: int, *args: Any) -> Any:
    """Half of an all-reduce's seconds: by a ring (0), a tree (1), or the faster of the two (2).

    Args:
        algorithm: its number.
        *args: of ring_time and tree_time.
    """
    ring, tree = ring_time(*args), tree_time(*args)
    return (ring, tree, np.minimum(ring, tree))[algorithm]


FUNCTIONS = {"product": product_time, "ring": ring_time, "half_all_reduce": half_all_reduce}

FORMULAS = Path(__file__).with_suffix(".txt")
PARTS = ("compute", "tensor", "context", "experts", "sends", "bubble", "data", "optimizer")


@lru_cache(maxsize=64)
def time_model(model: ModelShape) -> CostModel:
    """The formulas of a step of this model.

    Args:
        model: its sizes.
    """
    forward, backward, lines = [], [], []
    for p in model.products:
        k = f"{p.fan_in} / tp" if p.split == ROW else f"{p.fan_in}"
        n = f"{p.fan_out} / tp" if p.split == COLUMN else f"{p.fan_out}"
        m, times = "T", f"{p.layers} / L"
        if p.expert:
            m, times = "T * top_k * ep / expert_count", f"{p.layers} / L * expert_count / ep"
        tail = "product_rate, memory_bandwidth, cores_left, product_size"
        lines += [
            f"{p.name}_forward [s] = {times} * product({m}, {n}, {k}, {tail})"
            f"  # a layer's product with {p.name}'s weight",
            f"{p.name}_backward [s] = {times}"
            f" * (product({m}, {k}, {n}, {tail}) + product({k}, {n}, {m}, {tail}))"
            "  # gradients of input and weight",
        ]
        forward.append(f"{p.name}_forward")
        backward.append(f"{p.name}_backward")
    again = [name for name in forward if name in ("q_up_forward", "kv_up_forward")]
    lines += [
        f"products_forward [s] = {' + '.join(forward)}  # of a layer",
        f"products_backward [s] = {' + '.join(backward)}  # of a layer",
        f"again_forward [s] = {' + '.join(again) or '0'}"
        "  # of latent attention's heads, with selective recomputation",
    ]
    text = FORMULAS.read_text(encoding="utf-8").replace("@products", "\n".join(lines))
    return CostModel(terms(text), FUNCTIONS)


def time_inputs(model: ModelShape, cluster: Cluster, program: Program, sequence: int) -> dict[str, Any]:
    """What the formulas read beside the layout.

    Args:
        model: its sizes.
        cluster: its devices.
        program: precision and optimizer.
        sequence: tokens of one.
    """
    gpu, net = cluster.gpu, cluster.network
    weight, gradient, state, activation, sent = PRECISIONS[program.precision]
    peaks = {"fp32": gpu.peak_fp32 or gpu.peak / 2, "fp8": gpu.peak_fp8 or gpu.peak}
    peak = peaks["fp32"] if program.precision == "fp32" else gpu.peak
    return {
        "s": sequence,
        "L": model.layers,
        "C": model.width,
        "V": model.vocabulary,
        "heads": model.heads,
        "qk_dim": model.qk_dim,
        "v_dim": model.v_dim,
        "qkv_width": model.heads * model.qk_dim + model.kv_heads * (model.qk_dim + model.v_dim),
        "kv_width": model.kv_heads * (model.qk_dim + model.v_dim),
        "out_width": model.heads * model.v_dim,
        "inner": model.inner,
        "gated": int(model.gated),
        "rotary": int(model.rotary),
        "seen": 0.5 if model.causal and program.fused_attention else 1.0,
        "expert_count": max(model.experts, 1),
        "top_k": max(model.top_k, 1),
        "expert_share": model.expert_layers / model.layers,
        "fused": int(program.fused_attention),
        "dropout": int(program.dropout),
        "size": activation,
        "product_size": 1 if program.precision == "fp8" else activation,
        "size_dispatch": 1 if program.precision == "fp8" else activation,
        "weight_size": weight,
        "gradient_size": gradient,
        "state_size": state,
        "sent_size": sent,
        "peak": peak,
        "peak_products": peaks.get(program.precision, gpu.peak),
        "cores": gpu.cores,
        "memory_bandwidth": gpu.memory_bandwidth,
        "link_bandwidth": gpu.link_bandwidth,
        "bandwidth": net.bandwidth,
        "node": net.node,
        "share": net.share,
        "pod": net.pod,
        "oversubscription": net.oversubscription,
        "latency": net.latency,
        "link_latency": net.link_latency,
        "algorithm": ("ring", "tree", "auto").index(net.algorithm),
        "efficiency": cluster.efficiency,
        "memory_share": MEMORY_SHARE,
        "attention_share": ATTENTION_SHARE,
        "communication_cores": program.communication_cores,
        "overlap_data": int(program.overlap_data),
        "overlap_tensor": program.overlap_tensor,
        "overlap_pipeline": int(program.overlap_pipeline),
        "overlap_experts": int(program.overlap_experts),
        "split_sends": int(program.split_sends),
        "router_nodes": program.router_nodes,
    }
