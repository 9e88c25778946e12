"""What every collective must give, as functions that a rank runs: simulated, or as a process of its own.

The expected values are NumPy's, from the inputs of all ranks, which every rank can make. Tensors are made on
the default device. `collective_table.py cuda` runs what NCCL can do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np
import warptape as wt
import warptape.distributed as dist
from warptape.distributed import ReduceOp

SIZES = (0, 1, 3, 5000, 70_001, 400_003)  # around the borders of one-shot, of one slot and of several
FLOATS = (wt.float32, wt.float64, wt.bfloat16, wt.float16)
INTEGERS = (wt.int64, wt.int32, wt.int16, wt.int8, wt.uint8)
NUMPY = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}


def values(rank: int, n: int, salt: int = 0) -> np.ndarray:
    """Small whole numbers: exact in every dtype."""
    return ((np.arange(n) * 7 + rank * 3 + salt) % 5).astype(np.float64)


def mine(n: int, dtype: wt.dtype, salt: int = 0) -> wt.Tensor:
    return wt.tensor(values(dist.get_rank(), n, salt)).to(dtype)


def everyones(n: int, salt: int = 0) -> list[np.ndarray]:
    return [values(r, n, salt) for r in range(dist.get_world_size())]


def expect(got: wt.Tensor, want: np.ndarray, what: str) -> None:
    found = got.to(wt.float64).cpu().numpy()
    assert found.shape == want.shape, f"{what}: shape {found.shape}, expected {want.shape}"
    assert np.array_equal(found, want), f"{what} on rank {dist.get_rank()}: {found[:8]}, expected {want[:8]}"


def check_all_reduce() -> None:
    for n in SIZES:
        for dtype in FLOATS + INTEGERS:
            if dtype == wt.int16 and wt.get_default_device().type == "cuda":
                continue  # NCCL does not combine it
            for name, op in (("sum", ReduceOp.SUM), ("max", ReduceOp.MAX), ("min", ReduceOp.MIN)):
                t = mine(n, dtype)
                assert dist.all_reduce(t, op) is None
                expect(t, NUMPY[name].reduce(everyones(n)), f"all_reduce {name} {dtype} {n}")
    for dtype in (wt.float32, wt.int32):
        t = mine(1000, dtype, 1)
        dist.all_reduce(t, ReduceOp.PRODUCT)
        expect(t, np.multiply.reduce(everyones(1000, 1)), f"all_reduce product {dtype}")
    t = mine(40_000, wt.float32)
    dist.all_reduce(t, ReduceOp.AVG)
    want = np.add.reduce(everyones(40_000)).astype(np.float32) / np.float32(dist.get_world_size())
    expect(t, want.astype(np.float64), "all_reduce avg")


def check_bits() -> None:
    for op, f in (
        (ReduceOp.BAND, np.bitwise_and),
        (ReduceOp.BOR, np.bitwise_or),
        (ReduceOp.BXOR, np.bitwise_xor),
    ):
        for n in (3, 70_001):
            t = mine(n, wt.int32)
            dist.all_reduce(t, op)
            expect(t, f.reduce([v.astype(np.int32) for v in everyones(n)]), f"all_reduce {op}")
    t = mine(100, wt.bool)
    dist.all_reduce(t)
    expect(t, np.logical_or.reduce(everyones(100)), "all_reduce bool")


def check_rounds_once() -> None:
    """16-bit sums are those of float32, rounded once, and every rank has the same bits."""
    n, ranks = 50_000, dist.get_world_size()
    rng = np.random.default_rng(5)
    all_values = rng.standard_normal((ranks, n)).astype(np.float32)
    for dtype in (wt.bfloat16, wt.float16):
        t = wt.tensor(all_values[dist.get_rank()]).to(dtype)
        rounded = [wt.tensor(v).to(dtype).to(wt.float32).cpu().numpy() for v in all_values]
        want = rounded[0].copy()
        for v in rounded[1:]:
            want += v
        dist.all_reduce(t)
        expect(t, wt.tensor(want).to(dtype).to(wt.float64).cpu().numpy(), f"all_reduce {dtype}")


def check_rooted() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for n in SIZES:
        for root in range(ranks):
            t = mine(n, wt.float32)
            dist.broadcast(t, root)
            expect(t, values(root, n), f"broadcast {n}")
            t = mine(n, wt.bfloat16)
            dist.reduce(t, root)
            expect(t, np.add.reduce(everyones(n)) if rank == root else values(rank, n), f"reduce {n}")
            rows = [wt.empty(n) for _ in range(ranks)] if rank == root else None
            dist.gather(mine(n, wt.float32), rows, dst=root)
            for r, row in enumerate(rows or []):
                expect(row, values(r, n), f"gather {n}")
            parts = [wt.tensor(values(r, n, 2)) for r in range(ranks)] if rank == root else None
            t = wt.zeros(n, dtype=wt.float64)
            dist.scatter(t, parts, src=root)
            expect(t, values(rank, n, 2), f"scatter {n}")


def check_all_gather() -> None:
    ranks = dist.get_world_size()
    for n in SIZES:
        rows = [wt.empty(n, dtype=wt.int32) for _ in range(ranks)]
        dist.all_gather(rows, mine(n, wt.int32))
        for r, row in enumerate(rows):
            expect(row, values(r, n), f"all_gather {n}")
        flat = wt.empty(ranks * n)
        dist.all_gather_into_tensor(flat, mine(n, wt.float32))
        expect(flat, np.concatenate(everyones(n)), f"all_gather_into_tensor {n}")


def check_all_gather_uneven() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for n in SIZES:
        rows = [wt.empty(n + 3 * r) for r in range(ranks)]
        dist.all_gather(rows, mine(n + 3 * rank, wt.float32))
        for r, row in enumerate(rows):
            expect(row, values(r, n + 3 * r), f"all_gather uneven {n}")


def check_reduce_scatter() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for n in SIZES:
        for dtype in (wt.float32, wt.bfloat16, wt.int64):
            want = sum(values(r, n, rank) for r in range(ranks))
            parts = [mine(n, dtype, to) for to in range(ranks)]
            out = wt.empty(n, dtype=dtype)
            dist.reduce_scatter(out, parts)
            expect(out, want, f"reduce_scatter {dtype} {n}")
            out = wt.empty(n, dtype=dtype)
            dist.reduce_scatter_tensor(out, wt.cat(parts))
            expect(out, want, f"reduce_scatter_tensor {dtype} {n}")


def check_all_to_all() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for n in SIZES:
        out = wt.empty(n * ranks)
        dist.all_to_all_single(out, wt.cat([mine(n, wt.float32, to) for to in range(ranks)]))
        expect(out, np.concatenate([values(r, n, rank) for r in range(ranks)]), f"all_to_all_single {n}")
        inputs = [mine(n + 2 * to + rank, wt.float32, to) for to in range(ranks)]
        outputs = [wt.empty(n + 2 * rank + source) for source in range(ranks)]
        dist.all_to_all(outputs, inputs)
        for source, got in enumerate(outputs):
            expect(got, values(source, n + 2 * rank + source, rank), f"all_to_all uneven {n}")
    rows = wt.arange(ranks * (ranks + 1) // 2).to(wt.float32) + 100 * rank
    out = wt.empty(ranks * (rank + 1))
    dist.all_to_all_single(out, rows, [rank + 1] * ranks, list(range(1, ranks + 1)))
    begin = rank * (rank + 1) // 2
    want = np.concatenate([np.arange(begin, begin + rank + 1) + 100 * r for r in range(ranks)])
    expect(out, want.astype(np.float64), "all_to_all_single with sizes")


def check_point_to_point() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for n in SIZES:
        got = wt.empty(n)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine(n, wt.float32), right),
                dist.P2POp(dist.irecv, got, left),
            ]
        )
        for work in works:
            work.wait()
        expect(got, values(left, n), f"batch_isend_irecv {n}")


def check_tags() -> None:
    """Tags in another order than sent; large ones do not fit what is on its way at a time."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(wt.full((60_000,), float(tag)), 1, tag=tag)
        sources = sorted(dist.recv(wt.empty(2), tag=9) for _ in range(1, ranks))
        assert sources == list(range(1, ranks))
    else:
        if rank == 1:
            for tag in (2, 3, 1):
                t = wt.empty(60_000)
                assert dist.recv(t, 0, tag=tag) == 0
                expect(t, np.full(60_000, tag, np.float64), f"tag {tag}")
        dist.send(wt.ones(2), 0, tag=9)


def check_async() -> None:
    """Calls in flight together, and calls that wait behind them."""
    ranks = dist.get_world_size()
    tensors = [mine(n, wt.float32, n % 7) for n in (10, 100_000, 3, 300_000, 1)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    late = wt.ones(5)
    dist.all_reduce(late)
    expect(late, np.full(5, ranks, np.float64), "sync after async")
    for t, work in zip(tensors, works, strict=True):
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
        assert work.result()[0].data_ptr() == t.data_ptr()
        expect(t, np.add.reduce(everyones(len(t), len(t) % 7)), "async all_reduce")
    pair = [mine(7, wt.float32), mine(20_000, wt.float32)]
    dist.all_reduce_coalesced(pair)
    for t in pair:
        expect(t, np.add.reduce(everyones(len(t))), "all_reduce_coalesced")


def check_strided() -> None:
    """Tensors need not be contiguous, and what lies between their elements stays."""
    ranks = dist.get_world_size()
    base = wt.full((50, 40), -1.0)
    t = base[::2, 3::4].t()
    t.fill_(1.0)
    version = t._version
    dist.all_reduce(t)
    assert t._version > version, "an in-place change that the tape does not see"
    want = np.full((50, 40), -1.0)
    want[::2, 3::4] = ranks
    expect(base, want, "strided all_reduce")
    rows = [wt.zeros(6, 4).t() for _ in range(ranks)]
    dist.all_gather(rows, mine(24, wt.float32).reshape(4, 6))
    for r, row in enumerate(rows):
        expect(row, values(r, 24).reshape(4, 6), "strided all_gather")


def check_groups() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    odd = dist.new_group(list(range(1, ranks, 2)))
    even = dist.new_group(list(range(0, ranks, 2)))
    own, other = (odd, even) if rank % 2 else (even, odd)
    assert other == dist.GroupMember.NON_GROUP_MEMBER and dist.get_rank(other) == -1
    members = dist.get_process_group_ranks(own)
    assert members == list(range(rank % 2, ranks, 2)) and dist.get_rank(own) == rank // 2
    t = mine(1000, wt.float32)
    dist.all_reduce(t, group=own)
    expect(t, sum(values(r, 1000) for r in members), "all_reduce in a group")
    dist.all_reduce(t, group=other)
    t = mine(10, wt.float32)
    dist.broadcast(t, members[-1], group=own)
    expect(t, values(members[-1], 10), "broadcast by rank of the job")
    dist.broadcast(t, group=own, group_src=0)
    expect(t, values(members[-1], 10), "broadcast by rank of the group")
    dist.destroy_process_group(own)
    dist.barrier()
    again = dist.new_group(list(range(ranks)), use_local_synchronization=True)
    dist.barrier(again)


def check_objects() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    thing = {
        "rank": rank,
        "t": (wt.arange(rank + 1), None, b"\x00x"),
        3: [1.5, float("inf"), "ü"],
        "e": wt.empty(0),
    }
    found: list = [None] * ranks
    dist.all_gather_object(found, thing)
    for r, got in enumerate(found):
        assert got["rank"] == r and got["t"][0].tolist() == list(range(r + 1)) and got["t"][2] == b"\x00x"
        assert got[3] == [1.5, float("inf"), "ü"] and got["e"].shape == (0,)
    collected: list | None = [None] * ranks if rank == 1 else None
    dist.gather_object((rank, "x"), collected, dst=1)
    assert collected is None or collected == [(r, "x") for r in range(ranks)]
    objects = [{"a": 1}, [2]] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == [{"a": 1}, [2]]
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(ranks)] if rank == 0 else None)
    assert out == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["hello", {"n": 1}], 1)
    elif rank == 1:
        got = [None, None]
        assert dist.recv_object_list(got, 0) == 0 and got == ["hello", {"n": 1}]


def check_barriers() -> None:
    for _ in range(50):
        dist.barrier()
    dist.monitored_barrier()


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")
}

# Without bits, tags, receiving from anybody, and int16.
WITH_NCCL = [name for name in CHECKS if name not in ("bits", "tags")]


def use_cuda(rank: int) -> None:
    """Tensors are made on a device from now on."""
    wt.cuda.set_device(rank % wt.cuda.device_count())
    wt.set_default_device("cuda")


def main() -> None:
    """A rank of its own, under any launcher."""
    names = list(CHECKS)
    if sys.argv[1:] == ["cuda"]:
        names = WITH_NCCL
        # Ranks on one GPU must look like ranks of several hosts to NCCL.
        os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
        use_cuda(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    for name in names:
        CHECKS[name]()
        dist.barrier()
    if dist.get_rank() == 0:
        print(f"{len(names)} checks on {dist.get_world_size()} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
