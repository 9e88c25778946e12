"""Elementwise kernels one at a time, each through memory, against the same ones as a chain in one pass.

    python benchmarks/chain.py              the whole table (half a minute)
    python benchmarks/chain.py --threads 2

Figures are nanoseconds an element: the fewest of all runs, in which the two take turns. Kernels are called as
the runtime calls them, without Python.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kernel_chains import Chain, Driver, Value, memory_dtype

SIZES = (16 << 10, 128 << 10, 1 << 20, 8 << 20)
ROUNDS = 8
# (slot, its second input), from the first array on: array 1, or a number by its place from 2 on.
SIMPLE = "add 1, mul 2, sub 1, abs, maximum 3, mul 1, add 4, relu, sub 5, mul 1"
ACTIVATIONS = "add 1, gelu, mul 2, tanh, add 1, sigmoid, mul 1"
NUMBERS = (1.5, 0.25, -3.0, 0.9)


def make_chain(text: str, n: int, dtype: str) -> Chain:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for _ in range(2)]
    if dtype == "bfloat16":
        arrays = [(a.view(np.uint32) >> 16).astype(np.uint16) for a in arrays]
    inputs = [Value(a, dtype) for a in arrays] + [Value(np.array(x), "float64") for x in NUMBERS]
    chain = Chain(inputs)
    last = 0
    for step in text.split(", "):
        slot, *second = step.split()
        chain.steps.append((slot, "float32", (last, *map(int, second)), dtype))
        last = len(inputs) + len(chain.steps) - 1
    chain.outputs = [last]
    return chain


def measure(driver: Driver, chain: Chain, n: int) -> tuple[float, float]:
    """Seconds of a pass of the ops, and of the chain."""
    dtype = chain.dtype(chain.outputs[0])
    out = Value(np.zeros(n, memory_dtype(dtype)), dtype)
    repeats = max(3, (1 << 21) // n)  # the first one is the first to touch the memory
    ops, one_pass = [], []
    for _ in range(ROUNDS):
        values, _, seconds = driver.by_op(chain, repeats)
        ops.append(seconds)
        one_pass.append(driver.run(chain, [out], repeats=repeats)[1])
        assert np.array_equal(values[-1], out.array)
    return min(ops), min(one_pass)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(Path(folder))
        driver.set_threads(arguments.threads)
        print(f"{'':34}" + "".join(f"{n:>20,}" for n in SIZES))
        for name, text, dtype in (
            ("10 simple ops, float32", SIMPLE, "float32"),
            ("10 simple ops, bfloat16", SIMPLE, "bfloat16"),
            ("7 ops with 3 activations, float32", ACTIVATIONS, "float32"),
        ):
            cells = []
            for n in SIZES:
                ops, chain = measure(driver, make_chain(text, n, dtype), n)
                cells.append(f"{ops / n * 1e9:.2f} to {chain / n * 1e9:.2f}")
            print(f"{name:34}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
