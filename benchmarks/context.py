"""How much of ring attention's transfers is hidden behind its computation, by links and kernels that sleep.

    python benchmarks/context.py [--ranks 4] [--block 40] [--link 20]

Ranks are threads of one process. Each block is computed for real, of a few tokens, and then sleeps `block`
milliseconds; what is sent arrives no earlier than `link` milliseconds later, however much is under way. So
the time says what the order of calls hides, whatever the machine. Prints forward and backward beside what
they would take if transfers and blocks came one after the other, and the least that is possible.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import warptape as wt
import warptape.distributed as dist
from warptape.parallel.context import ring


def slow(block: float, link: float) -> None:
    """Makes this process's blocks and transfers as slow as that, in seconds."""
    forward, backward, init, arrived = (
        ring._forward,
        ring._backward,
        ring._Moving.__init__,
        ring._Moving.arrived,
    )

    def late(call: Any) -> Any:
        def run(*args: Any) -> Any:
            time.sleep(block)
            return call(*args)

        return run

    def posted(self: Any, *args: Any) -> None:
        self.until = time.monotonic() + link
        init(self, *args)

    def waited(self: Any) -> Any:
        time.sleep(max(0.0, self.until - time.monotonic()))
        return arrived(self)

    ring._forward, ring._backward = late(forward), late(backward)
    ring._Moving.__init__, ring._Moving.arrived = posted, waited  # type: ignore[method-assign]


def measure() -> tuple[float, float]:
    """Seconds of forward and backward, of the slowest rank."""
    x = wt.ones(1, 1, 4, 2, requires_grad=True)
    dist.barrier()
    start = time.monotonic()
    out = ring.ring_attention(x, x, x, is_causal=True)
    dist.barrier()
    middle = time.monotonic()
    out.sum().backward()
    dist.barrier()
    return middle - start, time.monotonic() - middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--block", type=float, default=40, help="milliseconds of one block")
    parser.add_argument("--link", type=float, default=20, help="milliseconds of one transfer")
    given = parser.parse_args()
    n, block, link = given.ranks, given.block, given.link
    slow(block / 1e3, link / 1e3)
    forward, backward = dist.simulate(n, measure)[0]
    print(f"{n} ranks, {block:g} ms a block, {link:g} ms a transfer: milliseconds")
    print("          measured  one by one  least")
    # Backward n transfers of gradients besides, the last of which nothing can hide.
    least = n * block + (n - 1) * max(0.0, link - block)
    rows = (("forward", forward, n * block + (n - 1) * link, least),)
    rows += (("backward", backward, n * block + (2 * n - 1) * link, least + link),)
    for name, seconds, serial, best in rows:
        print(f"{name:9} {seconds * 1e3:8.0f} {serial:11.0f} {best:6.0f}")


if __name__ == "__main__":
    main()
