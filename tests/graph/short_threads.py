"""Short programs of eight threads, each with new weights and new compiled functions: what hangs or crashes
does so while threads use one storage for the first time.

As a program: `python -m graph.short_threads SEED COUNT`. Where threads hang it ends by exit code 3, after all
stacks.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import warptape as torch
from in_threads import together

THREADS, CALLS = 8, 3


def compiled(f: Any) -> Any:
    c = torch.compile(f)
    c.region.adaptive, c.region.least_recomputed_bytes = False, 1
    return c


def bits(tensors: Any) -> list[bytes]:
    return [t.detach().numpy().tobytes() for t in tensors]


def forward(weights: list[Any]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        for w in weights:
            x = torch.nn.functional.gelu(x @ w) * 0.5 + w.sum()
        return torch.cumsum(x * torch.sigmoid(x), 1)

    return f


def run(rng: random.Random) -> None:
    """One program: a thread trains or infers, by a function of its own or one that others call, too, and
    reads the weights in one order or the other."""
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(rng.randint(1, 4))]
    inputs = [torch.randn(n, 4) for n in range(1, 1 + rng.randint(1, 3))]
    orders = [forward(weights), forward(weights[::-1])]

    def gradients(f: Any) -> Callable[[Any], Any]:
        return lambda x: torch.autograd.grad(f(x).square().sum(), weights)

    inference, training = orders, [gradients(f) for f in orders]
    with torch.no_grad():
        results = [[bits([f(x)]) for x in inputs] for f in inference]
    slopes = [[bits(g(x)) for x in inputs] for g in training]
    shared = [(compiled(f), compiled(g)) for f, g in zip(inference, training, strict=True)]
    roles = [(rng.randrange(2), rng.random() < 0.5, rng.random() < 0.5) for _ in range(THREADS)]

    def work(k: int) -> None:
        order, own, trains = roles[k]
        f, g = shared[order] if not own else (compiled(inference[order]), compiled(training[order]))
        for i in range(CALLS):
            at = (i + k) % len(inputs)
            if trains:
                assert bits(g(inputs[at])) == slopes[order][at]
            else:
                with torch.no_grad():
                    assert bits([f(inputs[at])]) == results[order][at]

    together(work, THREADS)


def main(seed: int, count: int) -> None:
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)  # seconds: threads take turns in the middle of what they record
    torch.manual_seed(seed)
    rng, begin = random.Random(seed), time.monotonic()
    for _ in range(count):
        run(rng)
    print(f"{count} programs of {THREADS} threads in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
