"""The time of a step as formulas: a roofline of each product, alpha-beta of each message, the bubble.

Names: b sequences of a micro-batch, s tokens of one, T tokens of a micro-batch on a rank, C width, n
micro-batches; link and wire: bytes/s of a rank within a node and between nodes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .hardware import Cluster
from .layout import PRECISIONS, Program
from .shape import COLUMN, ROW, ModelShape
from .sheet import Sheet, rows

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
    """Half of the seconds of a tree's all-reduce (reduce up, broadcast down, in pieces)."""
    nodes = ranks / near
    width = np.where(nodes > 1, np.minimum(link, near * wire), link)
    return np.where(ranks > 1, size / width + (near - 1) * hop + np.log2(nodes) * far, 0.0)


def half_all_reduce(algorithm: int, *args: Any) -> Any:
    """Half of an all-reduce's seconds: by a ring (0), a tree (1), or the faster of the two (2)."""
    ring, tree = ring_time(*args), tree_time(*args)
    return (ring, tree, np.minimum(ring, tree))[algorithm]


FUNCTIONS = {"product": product_time, "ring": ring_time, "half_all_reduce": half_all_reduce}

_PLACES = """
T = b * s / cp  # tokens of a micro-batch on a rank
stage = ceil(L / pp)  # layers of the largest stage; ends may have one less
near_tp = min(tp, node)  # ranks along tp in a node
near_cp = min(cp, max(node / tp, 1))  # ranks along cp in a node
near_dp = min(dp * cp, max(node / tp, 1))  # ranks along dp and cp in a node
near_ep = min(ep, max(node / tp, 1))  # ranks along ep in a node
wire [B/s] = bandwidth * share  # between nodes, of one rank
wire_data [B/s] = where(dp * cp * tp * pp > pod, min(wire, wire * pod / oversubscription / (tp * pp)),
... wire) # the same for rings of copies, all of which pass between pods
link [B/s] = link_bandwidth * share  # within a node, of one rank
rate [FLOP/s] = peak * efficiency * (cores - communication_cores) / cores  # of a product that fills the
... device
cores_left = cores - communication_cores  # multiprocessors that compute
elementwise [B/s] = memory_bandwidth * memory_share  # memory's bandwidth as elementwise kernels reach it
"""

_LAYER = """
attention_flops [FLOP] = 2 * T * s * seen * heads / tp * (qk_dim + v_dim) # scores and values of a layer,
... forward
scores [B] = where(fused, 0, b * heads / tp * s * s / cp * size)  # attention's scores
attention_forward [s] = max(attention_flops / (rate * where(fused, attention_share, 1)), scores * (6 + 2.5
... * dropout) / elementwise) # scores are written, read and written by softmax and dropout, and read
attention_backward [s] = max(attention_flops * where(fused, 2.5, 2) / (rate * where(fused,
... attention_share, 1)), scores * (7 + 2.5 * dropout) / elementwise) # fused, scores are made again
spread = where(sp, tp, 1)  # sequence parallelism spreads norms and residuals
light_forward [s] = size * T * (10 * C / spread + 2 * dropout * C / spread + ((2 + 2 * gated) * inner + (2
... + 2 * rotary) * qkv_width + 2 * out_width) / tp) / elementwise # two norms (read, write), two residual
... sums (read two, write), activation, heads moved and turned
light_backward [s] = size * T * (12 * C / spread + 2 * dropout * C / spread + ((3 + 2 * gated) * inner +
... (2 + 2 * rotary) * qkv_width + 2 * out_width) / tp) / elementwise # norms read two and write one,
... gradients of residuals meet
tensor_message [B] = size * T * C  # activations that an all-reduce of tensor parallelism sums
tensor_forward [s] = where(tp > 1, 4 * half_all_reduce(algorithm, tensor_message, tp, near_tp, link, wire,
... link_latency, latency), 0) * (1 - overlap_tensor) # two all-reduces a layer; with sequence parallelism
... an all-gather and a reduce-scatter for each
context_message [B] = size * T * kv_width / tp  # keys and values of a rank's part of the sequence
context_forward [s] = where(cp > 1, max(ring(context_message * cp, cp, near_cp, link, wire, link_latency,
... latency) - attention_forward, 0), 0) # what attention does not hide of keys and values going around
expert_bytes [B] = expert_share * T * min(top_k, where(router_nodes, router_nodes, top_k)) * C * (1 -
... near_ep / ep) # elements of a layer's tokens that leave the node for their experts, once a node
expert_forward [s] = (1 - overlap_experts) * where(ep > 1, expert_bytes * (size_dispatch + size) / wire +
... expert_share * 2 * (latency + link_latency) + expert_share * T * top_k * C * (size_dispatch + size) *
... (near_ep - 1) / near_ep / link, 0) # dispatch and combine
"""

_STEP = """
forward [s] = products_forward + attention_forward + light_forward  # computation of a layer
backward [s] = products_backward + attention_backward + light_backward  # likewise
recomputed [s] = where(recompute == 2, forward + tensor_forward + expert_forward + context_forward,
... where(recompute == 1, light_forward * 0.7 + where(fused, 0, attention_forward) + again_forward, 0)) #
... done again in backward
talk [s] = 2 * (tensor_forward + expert_forward + context_forward)  # messages of a layer, both ways
head [s] = (product(T, V / tp, C, rate, memory_bandwidth, cores_left, size) + product(T, C, V / tp, rate,
... memory_bandwidth, cores_left, size) + product(C, V / tp, T, rate, memory_bandwidth, cores_left, size)
... + T * V / tp * (3 * size + 4) / elementwise) # logits and loss, forward and backward
stage_forward [s] = stage * (forward + tensor_forward + expert_forward + context_forward)  # of a
... micro-batch
stage_backward [s] = stage * (backward + recomputed + talk / 2)  # of a micro-batch
even = L / pp == stage  # whether all stages have as many layers
slowest [s] = where(even, stage_forward + stage_backward + head, max(stage_forward + stage_backward,
... (stage_forward + stage_backward) * (stage - 1) / stage + head)) # stage of a micro-batch: the last has
... the head, and where layers do not divide one layer less
send [s] = size * T * C / where(split_sends, tp, 1) / where(dp * cp * tp >= node, wire, link) + where(dp *
... cp * tp >= node, latency, link_latency) # a message to the next stage
sends [s] = where(pp > 1, n * chunks * 4 * send * (1 - overlap_pipeline), 0)  # both ways, sent and
... received
weight_gradients [s] = stage * products_backward / 2  # the half of backward that ZB-H1 moves
full_bubble [s] = (pp - 1) * (stage_forward + stage_backward + where(pp > 1, 2 * send, 0))  # 1F1B's and
... GPipe's
bubble [s] = where(schedule == 2, full_bubble / chunks, where(schedule == 3, (pp - 1) * (stage_forward +
... stage_backward - 2 * weight_gradients), where(schedule == 4, max(pp / 2 - 1, 0) * (stage_forward + 2 *
... stage_backward - 3 * weight_gradients), full_bubble))) # what a rank waits for others
copies = dp * cp  # ranks that share a stage's weights
gradient_sum [s] = where(copies > 1, ring(sent_size * stage_dense, copies, near_dp, link, wire_data,
... link_latency, latency) + where(ep < copies, ring(sent_size * stage_experts, copies / ep, max(near_dp /
... ep, 1), link, wire_data, link_latency, latency), 0), 0) # reduce-scatter of gradients
weight_gather [s] = where(copies > 1, ring(size * stage_dense, copies, near_dp, link, wire_data,
... link_latency, latency) + where(ep < copies, ring(size * stage_experts, copies / ep, max(near_dp / ep,
... 1), link, wire_data, link_latency, latency), 0), 0) # all-gather of weights
data_traffic [s] = where(zero == 0, 2 * gradient_sum, where(zero == 1, gradient_sum + weight_gather, n *
... (gradient_sum + where(zero == 3, 2, 1) * weight_gather))) # ZeRO 0 all-reduces once, 1 gathers new
... weights, 2 and 3 do so with each micro-batch
hiding [s] = overlap_data * where(zero >= 2, n * (stage_forward + stage_backward), stage_backward +
... where(zero == 1, stage_forward, 0)) # computation beside which gradients travel
data [s] = max(data_traffic - hiding, 0)  # what of data parallelism's traffic is waited for
optimizer [s] = (stage_dense + stage_experts) / where(zero > 0, copies, 1) * (weight_size + gradient_size
... + 2 * state_size + weight_size) / elementwise # reads and writes all of it
compute [s] = n * slowest - n * stage * (talk + where(recompute == 2, talk / 2, 0))  # products,
... attention, elementwise
tensor [s] = n * stage * (2 + (recompute == 2)) * tensor_forward  # tensor parallelism's messages
experts [s] = n * stage * (2 + (recompute == 2)) * expert_forward  # expert parallelism's messages
context [s] = n * stage * (2 + (recompute == 2)) * context_forward  # context parallelism's messages
step [s] = n * slowest + sends + bubble + data + optimizer  # all of it
"""

PARTS = ("compute", "tensor", "context", "experts", "sends", "bubble", "data", "optimizer")


@lru_cache(maxsize=64)
def time_sheet(model: ModelShape) -> Sheet:
    """The formulas of a step of this model."""
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
    rate = "product_rate [FLOP/s] = peak_products * efficiency * cores_left / cores  # of a layer's products"
    text = "\n".join([_PLACES, rate, *lines, _LAYER, _STEP])
    return Sheet(rows(text), FUNCTIONS)


def time_inputs(model: ModelShape, cluster: Cluster, program: Program, sequence: int) -> dict[str, Any]:
    """What the formulas read beside the layout."""
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
