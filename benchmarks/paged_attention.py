"""Attention to keys in pages: decoding against the read bandwidth, a prefill against contiguous attention.

    python benchmarks/paged_attention.py              threads: those of the process
    python benchmarks/paged_attention.py --threads 2

Both sides take turns in one run; what is printed are the shortest of all times, and the median of the ratios.
Head size 128, 8 key heads. Decoding reads pages that no cache holds, in any order.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import warptape as wt
import warptape.nn.functional as F
from warptape._C import _private

KEY_HEADS, D, PAGE = 8, 128, 32
LAYERS = 6  # whose pages are read in turn


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def take_turns(*sides: Callable[[], Any], rounds: int) -> list[list[float]]:
    """Seconds of each side in each round."""
    for side in sides:
        side()
    return [list(row) for row in zip(*([timed(side) for side in sides] for _ in range(rounds)))]


def int32(values: Any) -> wt.Tensor:
    return wt.tensor(np.asarray(values, np.int32))


def pages(count: int, dtype: Any, heads: int = KEY_HEADS) -> tuple[list[wt.Tensor], dict[str, wt.Tensor]]:
    """Keys and values of a layer, and the scales of int8."""
    shapes = ((count, heads, D, PAGE), (count, heads, PAGE, D))
    if dtype == wt.int8:
        scales = {f"{part}_scales": wt.ones(count, heads, PAGE) / 127 for part in ("key", "value")}
        return [wt.randint(-127, 128, shape, dtype=wt.int8) for shape in shapes], scales
    return [wt.randn(shape).to(dtype) for shape in shapes], {}


def decode(dtype: Any, heads: int, sequences: int, keys: int, memory: wt.Tensor) -> None:
    count = keys // PAGE
    layers = [pages(sequences * count, dtype) for _ in range(LAYERS)]
    order = np.random.default_rng(0).permutation(sequences * count).reshape(sequences, count)
    metadata = int32(order), int32(range(sequences + 1)), int32([keys] * sequences)
    q = wt.randn(sequences, heads, D).to(wt.bfloat16 if dtype == wt.int8 else dtype)

    def attend() -> None:
        for held, scales in layers:
            _private._paged_attention(q, *held, *metadata, **scales)

    own, read = take_turns(attend, memory.sum, rounds=15)
    size = LAYERS * sum(x.nbytes for x in layers[0][0])
    rates = [[size / t / 1e9 for t in own], [memory.nbytes / t / 1e9 for t in read]]
    ratio = statistics.median(a / b for a, b in zip(*rates))
    print(
        f"decode  {dtype!s:15} {heads:3} heads, {sequences} x {keys} keys: "
        f"{min(own) / LAYERS * 1e6:7.0f} us, "
        f"{max(rates[0]):5.1f} GB/s of {max(rates[1]):5.1f}; median ratio {ratio:.2f}"
    )


def prefill(dtype: Any, heads: int, key_heads: int, tokens: int) -> None:
    (held, _), count = pages(tokens // PAGE, dtype, key_heads), tokens // PAGE
    metadata = int32([range(count)]), int32([0, tokens]), int32([tokens])
    q, k, v = (wt.randn(1, h, tokens, D).to(dtype) for h in (heads, key_heads, key_heads))
    rows = q[0].transpose(0, 1).contiguous()
    own, other = take_turns(
        lambda: _private._paged_attention(rows, *held, *metadata),
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != key_heads),
        rounds=9,
    )
    print(
        f"prefill {dtype!s:15} {heads:3} heads to {key_heads:2}, {tokens} tokens: {min(own) * 1e3:7.1f} ms, "
        f"contiguous {min(other) * 1e3:7.1f} ms; median ratio "
        f"{statistics.median(a / b for a, b in zip(own, other)):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int)
    if threads := parser.parse_args().threads:
        wt.set_num_threads(threads)
    print(f"{wt.get_num_threads()} threads")
    memory = wt.ones(24 << 20)
    for dtype, heads in (
        (wt.float32, 8),
        (wt.float32, 32),
        (wt.bfloat16, 8),
        (wt.bfloat16, 32),
        (wt.int8, 32),
    ):
        decode(dtype, heads, 1, 4096, memory)
    decode(wt.bfloat16, 32, 8, 1024, memory)
    for dtype in (wt.float32, wt.bfloat16):
        for heads, key_heads, tokens in ((32, 8, 512), (32, 32, 512), (8, 2, 4096)):
            prefill(dtype, heads, key_heads, tokens)


if __name__ == "__main__":
    main()
