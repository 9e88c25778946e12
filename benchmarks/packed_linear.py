"""Linear layers on packed and quantised weights against the machine's limits and against F.linear.

    python benchmarks/packed_linear.py               the whole table (about ten minutes)
    python benchmarks/packed_linear.py --quick       two rounds of one of the layers, keeps nothing

The weights are the four of one block of an 8B model, in as many copies as exceed the caches; a time is that
of the four together. The limits are measured in the same rounds, by a small C program that g++ compiles: the
bandwidth of reading memory, and the rate of multiply-adds whose operands are in registers, all threads at
once; where the processor has AMX, that is AMX's (WARPTAPE_AMX=0: without). What is compared takes turns, one
layer at a time, and the best of all rounds counts for each, for other work on the machine only ever adds
time. With --threads 1 it is the thread's processor time, which counts no waiting for a processor. Printed as
Markdown; benchmarks/results/inference_kernels.md keeps what was measured.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import warptape as wt
from warptape import nn
from warptape.inference import PackedLinear, QuantLinear
from warptape.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from _harness import machine  # noqa: E402

LIMITS = r"""
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

// Seconds from when all threads are there to when all have done their work.
template <class F>
static double together(int threads, F work) {
  std::atomic<int> ready{0};
  std::vector<std::thread> others;
  auto run = [&](int i) {
    for (++ready; ready.load() < threads;) {
    }
    work(i);
  };
  for (int i = 1; i < threads; ++i) others.emplace_back(run, i);
  while (ready.load() < threads - 1) {
  }
  auto now = [&] {
    timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
  };
  const double start = now();
  run(0);
  for (std::thread& t : others) t.join();
  return now() - start;
}

// Each thread reads its part of n bytes at four places at a time: of 1, 2, 4 and 8, with and without
// prefetching, the fastest.
extern "C" double read_seconds(const char* p, int64_t n, int threads) {
  return together(threads, [=](int i) {
    const int64_t part = n / threads / 256 * 64;
    const char* own = p + i * 4 * part;
    __m512i a[4] = {};
    for (int64_t at = 0; at < part; at += 64)
      for (int j = 0; j < 4; ++j) a[j] = _mm512_or_si512(a[j], _mm512_loadu_si512(own + j * part + at));
    asm volatile("" : : "v"(a[0]), "v"(a[1]), "v"(a[2]), "v"(a[3]));
  });
}
#define RATE(NAME, INSTRUCTION)                                                                             \
  extern "C" double seconds_##NAME(int64_t n, int threads) {                                               \
    return together(threads, [=](int) {                                                                     \
      register __m512 a asm("zmm30") = {}, b asm("zmm31") = {};                                             \
      for (int64_t i = 0; i < n; ++i)                                                                       \
        asm volatile(TWELVE(INSTRUCTION) : : "v"(a), "v"(b)                                                 \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",      \
                       "xmm10", "xmm11");                                                                   \
    });                                                                                                     \
  }
#define ONE(I, N) I " %%zmm30, %%zmm31, %%zmm" #N "\n\t"
#define TWELVE(I)                                                                                       \
  ONE(I, 0) ONE(I, 1) ONE(I, 2) ONE(I, 3) ONE(I, 4) ONE(I, 5) ONE(I, 6) ONE(I, 7) ONE(I, 8) ONE(I, 9) \
  ONE(I, 10) ONE(I, 11)
RATE(float32, "vfmadd231ps")
RATE(bfloat16, "vdpbf16ps")
RATE(int8, "vpdpbusd")

// AMX: four tiles of sums, the operands in registers.
struct alignas(64) Shapes {
  uint8_t palette = 1, zeros[15] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};
#define TILES(NAME, INSTRUCTION)                                                                            \
  extern "C" double seconds_##NAME(int64_t n, int threads) {                                               \
    syscall(SYS_arch_prctl, 0x1023, 18);                                                                    \
    return together(threads, [=](int) {                                                                     \
      const Shapes shapes;                                                                                  \
      asm volatile("ldtilecfg %0\n\ttilezero %%tmm4\n\ttilezero %%tmm5" ::"m"(shapes));                     \
      for (int64_t i = 0; i < 3 * n / 16; ++i)                                                              \
        asm volatile(INSTRUCTION " %tmm5, %tmm4, %tmm0\n\t" INSTRUCTION " %tmm5, %tmm4, %tmm1\n\t"          \
                     INSTRUCTION " %tmm5, %tmm4, %tmm2\n\t" INSTRUCTION " %tmm5, %tmm4, %tmm3\n\t");        \
      asm volatile("tilerelease");                                                                          \
    });                                                                                                     \
  }
TILES(amx_bf16, "tdpbf16ps")
TILES(amx_int8, "tdpbssd")
"""
#: Operations of one instruction, a multiplication and an addition a lane; for AMX, of a 16th of one.
OPERATIONS = {"float32": 32, "bfloat16": 64, "int8": 128, "amx_bf16": 1024, "amx_int8": 2048}
FLAGS = {"float32": "avx512f", "bfloat16": "avx512_bf16", "int8": "avx512_vnni"}
FLAGS |= {"amx_bf16": "amx_bf16", "amx_int8": "amx_int8"}
AMX = {"bfloat16": "amx_bf16", "int8": "amx_int8"}

LAYER = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
CACHE_BYTES = 512 << 20  # of weights that are read before one is read again
#: name -> bits of a weight, how its layer is made, the rate that bounds it
KINDS: dict[str, tuple[int, Callable[[nn.Linear], Any], str]] = {
    "float32": (32, PackedLinear, "float32"),
    "bfloat16": (16, PackedLinear, "bfloat16"),
    "int8 an output": (8, lambda linear: QuantLinear(linear, 8, 0), "int8"),
    "int8 groups of 32": (8, lambda linear: QuantLinear(linear, 8, 32), "int8"),
    "int4 groups of 32": (4, lambda linear: QuantLinear(linear, 4, 32), "int8"),
    "int4 groups of 32, symmetric": (4, lambda linear: QuantLinear(linear, 4, 32, True), "int8"),
    "int4 groups of 128": (4, lambda linear: QuantLinear(linear, 4, 128), "int8"),
}


@dataclass
class Best:
    bandwidth: float  # bytes a second
    rate: float  # operations a second
    packed: float  # seconds
    plain: float | None  # F.linear's


class Machine:
    """Its limits, with `threads` threads."""

    def __init__(self, folder: Path, threads: int) -> None:
        source, library = folder / "limits.cpp", folder / "limits.so"
        source.write_text(LIMITS)
        subprocess.run(
            ["g++", "-O2", "-march=native", "-pthread", "-shared", "-fPIC", str(source), "-o", str(library)],
            check=True,
        )
        self.library = ctypes.CDLL(str(library))
        self.threads, self.next = threads, 0
        self.memory = wt.ones(CACHE_BYTES, dtype=wt.uint8)  # in pages as large as those of weights

    def _seconds(self, name: str, *arguments: Any) -> float:
        function = getattr(self.library, name)
        function.restype = ctypes.c_double
        return float(function(*arguments, self.threads))

    def bandwidth(self) -> float:
        """Bytes a second."""
        window = CACHE_BYTES // 8
        self.next = (self.next + window) % CACHE_BYTES
        place = ctypes.c_void_p(self.memory.data_ptr() + self.next)
        return window / self._seconds("read_seconds", place, ctypes.c_int64(window))

    def rate(self, kind: str) -> float:
        """Operations a second; nan where the processor lacks the instruction."""
        if FLAGS[kind] not in Path("/proc/cpuinfo").read_text():
            return float("nan")
        calls = 300_000
        operations = 12 * calls * OPERATIONS[kind] * self.threads
        return operations / self._seconds(f"seconds_{kind}", ctypes.c_int64(calls))


def bytes_of(layer: nn.Module) -> int:
    tensors = [t for name, t in layer.state_dict().items() if name != "bias"]
    return sum(t.numel() * t.element_size() for t in tensors)


class Weights:
    """One layer's weights of one kind: packed, and for floats the ones of F.linear as well."""

    def __init__(self, name: str, shapes: dict[str, tuple[int, int]]) -> None:
        bits, make, self.bound = KINDS[name]
        amx = AMX.get(self.bound, "none")
        if os.environ.get("WARPTAPE_AMX") != "0" and amx in Path("/proc/cpuinfo").read_text():
            self.bound = amx
        self.dtype = wt.bfloat16 if name == "bfloat16" else wt.float32
        self.shapes = list(shapes.values())
        self.free: list[wt.Tensor] | None = [] if bits > 8 else None
        parameters = sum(n * k for n, k in self.shapes)
        copies = max(1, -(-CACHE_BYTES * 8 // (parameters * bits)))
        self.layers: list[list[nn.Module]] = []
        for copy in range(copies):
            layers = []
            for n, k in self.shapes:
                linear = nn.Linear(k, n, bias=False, dtype=self.dtype)
                layers.append(make(linear))
                if self.free is not None and copy == 0:  # one copy exceeds the caches
                    self.free.append(linear.weight.detach())
            self.layers.append(layers)
        self.bytes = sum(bytes_of(layer) for layer in self.layers[0])

    def inputs(self, rows: int) -> list[wt.Tensor]:
        return [wt.randn(rows, k).to(self.dtype) for _, k in self.shapes]

    def best(self, rows: int, limits: Machine, rounds: int) -> Best:
        inputs = [wt.randn(rows, k).to(self.dtype) for _, k in self.shapes]
        bandwidth, rate = [], []
        packed: list[list[float]] = [[] for _ in inputs]
        plain: list[list[float]] = [[] for _ in inputs]
        for number in range(rounds + 1):  # the first is for warming up
            for i, x in enumerate(inputs):
                bandwidth.append(limits.bandwidth())
                rate.append(limits.rate(self.bound))
                layer = self.layers[number % len(self.layers)][i]
                packed[i].append(seconds_of(lambda: layer(x), limits.threads))  # noqa: B023
                if self.free is not None:
                    weight = self.free[i]
                    plain[i].append(seconds_of(lambda: F.linear(x, weight), limits.threads))  # noqa: B023

        def sum_of(times: list[list[float]]) -> float:
            return sum(min(each[1:]) for each in times)

        return Best(max(bandwidth), max(rate), sum_of(packed), sum_of(plain) if self.free else None)


def seconds_of(work: Callable[[], Any], threads: int) -> float:
    clock = time.thread_time if threads == 1 else time.perf_counter
    start = clock()
    work()
    return clock() - start


def measure(
    limits: Machine, name: str, shapes: dict[str, tuple[int, int]], rows: list[int], rounds: int
) -> None:
    weights = Weights(name, shapes)
    for m in rows:
        best = weights.best(m, limits, max(3, rounds // 10) if m > 64 else rounds)
        read = weights.bytes / best.packed
        operations = 2 * m * sum(n * k for n, k in weights.shapes) / best.packed
        price = "" if best.plain is None else f"{best.packed / best.plain:.3f}"
        print(
            f"| {name} | {m} | {best.packed * 1e3:.2f} | {read / 1e9:.1f} | {best.bandwidth / 1e9:.1f} "
            f"| {read / best.bandwidth:.0%} | {operations / 1e9:.0f} | {best.rate / 1e9:.0f} "
            f"| {operations / best.rate:.0%} | {price} |",
            flush=True,
        )


HEADER = (
    "| weight | rows | ms | GB/s | B | of B | GOP/s | peak | of peak | time / F.linear |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 512])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    wt.set_num_threads(arguments.threads)
    shapes = {"o": LAYER["o"]} if arguments.quick else LAYER
    print(HEADER)
    with tempfile.TemporaryDirectory() as folder, wt.inference_mode():
        limits = Machine(Path(folder), arguments.threads)
        for name in arguments.kinds:
            measure(limits, name, shapes, arguments.rows, 2 if arguments.quick else arguments.rounds)
    here = machine()
    print(
        f"\n{datetime.now(timezone.utc).isoformat(timespec='seconds')}: {here['processor']}, {here['cores']} "
        f"cores, {', '.join(here['instruction_sets'])}, load average {here['load_average']:.1f} at the end."
    )


if __name__ == "__main__":
    main()
