"""Ctrl-C ends whatever runs long within 0.2 seconds, and what memory cannot hold is refused at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
from time_limits import SANITIZED, seconds

# Tensors of 2^33 elements, all of them one number in memory.
PROGRAM = r"""
import resource, signal, sys, time
import warptape as T
F = T.nn.functional
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
N = 1 << 33
x, b, i, c = (T.zeros(1, dtype=t).expand(N) for t in (T.float32, T.bool, T.int64, T.complex64))
h, d, u = (T.zeros(1, dtype=t).expand(N) for t in (T.bfloat16, T.float64, T.uint8))
m, labels = T.zeros(1, 1).expand(1 << 17, 1 << 17), T.zeros(1, dtype=T.int64).expand(1 << 17)
three = T.zeros(3)
signal.signal(signal.SIGALRM, signal.default_int_handler)  # as Ctrl-C, from a clock that needs no thread
for line in sys.stdin:
    begin = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        eval(line)
        how, since = "done", begin
    except KeyboardInterrupt:
        how, since = "interrupted", begin + 0.3
    except (MemoryError, T.OutOfMemoryError):
        how, since = "refused", begin
    except Exception as e:
        how, since = type(e).__name__, begin - 3600
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(how, time.monotonic() - since, flush=True)
"""

LONG = """
x.any() | b.any() | b.all() | i.any() | c.any() | x.sum() | h.sum() | u.sum() | b.sum() | c.sum() | x.mean()
x.prod() | x.var() | x.std() | x.norm() | x.norm(3) | x.logsumexp(0) | x.max() | x.max(0) | x.argmax()
i.min(0) | x.view(2, -1).sum(1) | x.view(2, -1).amax(1) | x.view(2, -1).min(1) | x.view(-1, 2).max(0)
x.view(-1, 2).sum(0) | x.view(-1, 2).argmin(0) | x.view(2, -1).any(1) | x.count_nonzero()
b.count_nonzero() | x.argwhere() | x.nonzero() | m.argwhere() | x.masked_select(b) | x[b] | x.histc(5)
T.histogram(x, 5) | T.bincount(i) | x.to_sparse() | x.dot(x) | i.dot(i) | d.dot(d) | h.dot(h)
x.view(1, -1) @ x.view(-1, 1) | x.view(4, -1) @ x[: 1 << 31] | T.einsum("i,i->", x, x)
T.einsum("i,ji->j", x[: 1 << 31], x.view(4, -1)) | c.dot(c) | T.vdot(c, c) | F.mse_loss(x, x)
F.l1_loss(x, x) | F.smooth_l1_loss(m, m) | F.cross_entropy(m, labels) | F.nll_loss(m, labels)
F.cosine_similarity(x, x, 0) | F.pairwise_distance(x, x) | T.equal(x, d) | T.equal(x, x.view(-1))
T.allclose(x, x) | three.index_add(0, i, x) | three.scatter_add(0, i, x)
three.index_put((i,), x, accumulate=True) | three.index_put((i,), x) | three.scatter_reduce(0, i, x, "amax")
x.tolist() | m[:9000, :9000].tolist() | x.sort() | x.topk(3) | x.median() | x.quantile(0.5) | x.mode()
x.unique() | T.unique_consecutive(x) | x.cumsum(0) | x.clone() | x + 1 | x.to(d.dtype) | x.flip(0)
x.repeat(2) | T.cat([x, x]) | x.contiguous() | x.diff() | T.fft.fft(x) | T.fft.rfft(x[: 1 << 27])
T.stft(x, 400, window=T.ones(400), return_complex=True) | list(x) | x.unbind() | x.split(1)
x.chunk(1 << 30) | T.combinations(x[:100000]) | T.randperm(N) | T.bernoulli(x) | T.normal(x, x)
T.poisson(x) | m @ m | m.sum(0) | m.norm(dim=1) | F.softmax(x, 0) | F.layer_norm(m, (1 << 17,))
F.scaled_dot_product_attention(m[None, :, :8], m[None, :, :8], m[None, :, :8])
F.conv1d(x.view(1, 1, -1), m[:1, None, :9]) | F.max_pool1d(x.view(1, 1, -1), 1 << 20, 1 << 20)
F.avg_pool1d(x.view(1, 1, -1), 1 << 20, 1 << 20) | F.embedding_bag(i.view(1, -1), T.zeros(3, 3))
T.fft.fft(c[: 1 << 25].clone()) | T.fft.fft(c[:15485863].clone()) | T.fft.rfft(x[: 1 << 26].clone())
T.searchsorted(three, x) | T.isin(x, three) | T.gradient(x) | m.trace()
"""


@pytest.mark.skipif(SANITIZED, reason="sanitizers need the address space that bounds the memory here")
def test_long_work_answers() -> None:
    lines = [line.strip() for line in LONG.strip().replace("\n", "|").split("|")]
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    slow = []
    try:
        out, _ = child.communicate("\n".join(lines), timeout=seconds(len(lines)))
    except subprocess.TimeoutExpired:
        child.kill()
        out, _ = child.communicate()
    found = [line.split() for line in out.splitlines()]
    for line, (how, took) in zip(lines, found, strict=False):
        if float(took) > seconds(1 if how == "refused" else 0.3):  # 0.2, and what a busy machine adds
            slow.append(f"{line}: {how} after {took} s")
    assert len(found) == len(lines), f"no end of {lines[len(found)]}"
    assert not slow, "\n".join(slow)
