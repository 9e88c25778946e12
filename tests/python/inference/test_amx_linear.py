"""Quantised layers on AMX tiles: equal to the bit to the same layers without, in a process of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warptape as wt
from packed_weights import bits_of, drawn
from warptape import nn
from warptape.inference import QuantLinear

FORMATS = [(b, g, s) for b in (8, 4) for g in (0, 32, 64, 128) for s in (True, False)]
#: [N, K]: less than a panel and a group, tails of both, several tasks of panels and blocks of inputs
SHAPES = [(1, 5), (19, 300), (70, 256), (200, 1100)]


def results() -> Iterator[str]:
    """A line for each format, shape, number of threads and of rows: what it is, and the result's digest."""
    for bits, group, symmetric in FORMATS:
        for n, k in SHAPES:
            linear = nn.Linear(k, n)
            linear.weight.copy_(drawn(n, k, seed=1))
            linear.bias.copy_(drawn(n, seed=2))
            layer, x = QuantLinear(linear, bits, group, symmetric), drawn(70, k)
            for threads in (1, 2, 4):
                wt.set_num_threads(threads)
                for m in range(1, 71):
                    digest = hashlib.sha1(bits_of(layer(x[:m])).tobytes()).hexdigest()
                    yield f"{bits} {group} {symmetric} {n}x{k} {threads} threads {m} rows: {digest}"


def in_a_process(amx: str) -> list[str]:
    environment = os.environ | {"WARPTAPE_AMX": amx, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    return done.stdout.splitlines()


@pytest.mark.skipif("amx_int8" not in Path("/proc/cpuinfo").read_text(), reason="no AMX")
def test_the_same_bits() -> None:
    with_amx, without = in_a_process("1"), in_a_process("0")
    assert len(with_amx) == len(FORMATS) * len(SHAPES) * 3 * 70
    assert with_amx == without


if __name__ == "__main__":
    with wt.inference_mode():
        for line in results():
            print(line)
