"""Threads that end leave no memory behind, whatever they computed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from time_limits import SANITIZED

JOB = """
import gc, sys, threading
import warptape as wt
from warptape.nn import functional as F

a, image, weight = wt.randn(64, 64), wt.randn(2, 3, 16, 16), wt.randn(8, 3, 3, 3)

def backward():
    p = a.clone().requires_grad_()
    (p @ p).exp().sum().backward()

work = {
    "matmul": lambda: a @ a,
    "bfloat16 matmul": lambda: a.bfloat16() @ a.bfloat16(),
    "conv2d": lambda: F.conv2d(image, weight),
    "backward": backward,
    "attention": lambda: F.scaled_dot_product_attention(a[None], a[None], a[None]),
}[sys.argv[1]]

def kilobytes():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4

def run(threads):
    for _ in range(threads):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

run(300)
grown = []
for _ in range(4):  # other work of the machine may come between
    before = kilobytes()
    run(1000)
    grown.append(kilobytes() - before)
print(min(grown))
"""


@pytest.mark.skipif(SANITIZED, reason="the sanitizer keeps freed memory for a while")
@pytest.mark.parametrize("work", ["matmul", "bfloat16 matmul", "conv2d", "backward", "attention"])
def test_memory_of_threads_that_ended(work: str) -> None:
    job = [sys.executable, "-c", JOB, work]
    done = subprocess.run(job, capture_output=True, text=True, check=True, timeout=600)
    assert int(done.stdout) < 150, "KB left by 1000 threads"
