"""Packed layers on AMX tiles beside the same layers without, each in a process of its own: quantised ones are
equal to the bit, bfloat16 ones within the rounding of their results."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import warptape as wt
from packed_weights import bits_of, drawn
from warptape import _C, nn
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


def bfloat16_results() -> Iterator[str]:
    """Numbers of packed layers, a line for each number of rows."""
    for n, k in SHAPES:
        packed = _C._private._pack_linear_weight(drawn(n, k, dtype=wt.bfloat16, seed=1))
        x = drawn(70, k, dtype=wt.bfloat16)
        for m in (1, 5, 40, 70):
            yield json.dumps(_C._private._packed_linear(x[:m], packed, n).float().flatten().tolist())


def in_a_process(amx: str, what: str) -> list[str]:
    environment = os.environ | {"WARPTAPE_AMX": amx, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__, what],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return done.stdout.splitlines()


@pytest.mark.skipif("amx_int8" not in Path("/proc/cpuinfo").read_text(), reason="no AMX")
def test_the_same_bits() -> None:
    with_amx, without = in_a_process("1", "quantised"), in_a_process("0", "quantised")
    assert len(with_amx) == len(FORMATS) * len(SHAPES) * 3 * 70
    assert with_amx == without


@pytest.mark.skipif("amx_bf16" not in Path("/proc/cpuinfo").read_text(), reason="no AMX")
def test_bfloat16() -> None:
    with_amx, without = in_a_process("1", "bfloat16"), in_a_process("0", "bfloat16")
    assert len(with_amx) == len(SHAPES) * 4
    for mine, other in zip(with_amx, without, strict=True):
        assert np.allclose(json.loads(mine), json.loads(other), rtol=2.0**-7, atol=2e-3)


if __name__ == "__main__":
    with wt.inference_mode():
        for line in bfloat16_results() if sys.argv[1] == "bfloat16" else results():
            print(line)
