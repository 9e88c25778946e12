"""What a difference looks like, and what makes such a one."""

from __future__ import annotations

from collections.abc import Iterator

import warptape

from ..._tensor import Tensor
from .compare import Compared, Pair, error_of
from .layout import Layout
from .record import Seen

NEAR = 1e-4  # differences that agree with an explanation up to this share are explained by it


def _near(got: Tensor, want: Tensor) -> bool:
    return got.shape == want.shape and error_of(got, want) < NEAR


def _ratio(pairs: dict[int, Pair]) -> float | None:
    """The number by which all differing ranks' values are too large, if there is one."""
    out = None
    for got, want in pairs.values():
        square = want.square().sum().item()
        c = (got * want).sum().item() / square if square else 0.0
        if not _near(got, want * c) or (out is not None and abs(c - out) > NEAR * abs(out)):
            return None
        out = c
    return out


def of_ratio(pairs: dict[int, Pair], layout: Layout, micro: int) -> list[str]:
    """A factor that is a number of ranks or of micro-batches, or one of these divided by."""
    c = _ratio(pairs)
    if c is None:
        return []
    if abs(c) < NEAR:
        return ["it is zero: nothing reached it"]
    out = []
    if micro > 1 and abs(c - micro) < NEAR * micro:
        out.append(f"it is {micro} times the right one: micro-batches are added up, not divided by {micro}")
    if micro > 1 and abs(c * micro - 1) < NEAR:
        out.append(f"it is 1/{micro} of the right one: divided by the number of micro-batches once too often")
    sizes = {n: f"the axis {name!r}" for name, n in zip(layout.axes, layout.sizes, strict=True)}
    for n, where in {**sizes, layout.ranks: "all ranks"}.items():
        if n > 1 and abs(c - n) < NEAR * n:
            out.append(f"it is {n} times the right one: summed over {where} where one rank's is the whole")
        if n > 1 and abs(c * n - 1) < NEAR:
            out.append(f"it is 1/{n} of the right one: divided by {where} once too often")
    return out or [f"it is {c:.6g} times the right one"]


def of_lines(pairs: dict[int, Pair], layout: Layout, backward: bool) -> list[str]:
    """Whether ranks of an axis hold summands, or copies that were not averaged."""
    for axis, n in zip(layout.axes, layout.sizes, strict=True):
        lines = [line for line in layout.lines(axis, list(pairs)) if len(line) == n]
        if n < 2 or not lines or sum(len(line) for line in lines) < len(pairs):
            continue
        sums = [sum((pairs[r][0] for r in line[1:]), pairs[line[0]][0]) for line in lines]
        wants = [pairs[line[0]][1] for line in lines]
        if all(_near(s, w) for s, w in zip(sums, wants, strict=True)):
            return [f"the ranks of the axis {axis!r} hold summands of it: a sum (all-reduce) is missing"]
        if all(_near(s / n, w) for s, w in zip(sums, wants, strict=True)):
            what = "each rank's own part of the batch" if backward else "each rank's own"
            return [f"the mean over the axis {axis!r} is right: these are {what}, not averaged"]
    return []


def of_order(pairs: dict[int, Pair], layout: Layout, split: tuple[tuple[str, int], ...]) -> list[str]:
    """Whether the right blocks, such as heads, lie in a wrong order, on a rank or among ranks."""
    together = list(pairs.values())
    dims = range(next(iter(pairs.values()))[0].ndim)
    for axis, dim in split:
        dims = range(dim, dim + 1)
        lines = layout.lines(axis, list(pairs))
        together = [
            tuple(warptape.cat([pairs[r][i] for r in line], dim) for i in (0, 1))  # type: ignore[misc]
            for line in lines
        ]
    for dim in dims:
        size = int(together[0][0].shape[dim])
        for blocks in (k for k in range(2, min(size, 64) + 1) if size % k == 0):
            if all(_same_blocks(got, want, dim, blocks) for got, want in together):
                return [
                    f"its {blocks} blocks along dim {dim} are the right ones in another order: what is split "
                    "(heads, or parts that are joined in one matrix) is cut or put together wrongly"
                ]
    return []


def _same_blocks(got: Tensor, want: Tensor, dim: int, n: int) -> bool:
    left = list(want.chunk(n, dim))
    for block in got.chunk(n, dim):
        at = next((i for i, other in enumerate(left) if _near(block, other)), None)
        if at is None:
            return False
        del left[at]
    return True


def of_values(compared: Compared, layout: Layout, micro: int, backward: bool) -> list[str]:
    """What the values alone tell."""
    wrong = {rank: pair for rank, pair in compared.pairs.items() if not compared.errors[rank] < NEAR}
    wrong = wrong or compared.pairs
    if any(e == float("inf") for e in compared.errors.values()):
        return ["it is not a finite number"]
    return (
        of_lines(compared.pairs, layout, backward)
        or of_ratio(wrong, layout, micro)
        or of_order(compared.pairs, layout, compared.split)
    )


def of_bias(compared: Compared, bias: Tensor | None, layout: Layout) -> list[str]:
    """Whether a bias was added another time, or never; or to what was not summed."""
    if bias is None or bias.ndim != 1:
        return []
    if all(got.shape[-1] == len(bias) for got, _ in compared.pairs.values()):
        bare = {rank: (got - bias, want - bias) for rank, (got, want) in compared.pairs.items()}
        summands = [cause for cause in of_lines(bare, layout, False) if "summands" in cause]
        if summands:
            return summands
    times = set()
    for got, want in compared.pairs.values():
        extra = got - want
        if extra.shape[-1] != bias.shape[0]:
            return []
        c = (extra * bias).sum().item() / (bias.square().sum().item() * (extra.numel() / bias.numel()))
        if not _near(extra, (bias * c).expand(extra.shape)):
            return []
        times.add(round(c + 1, 3))
    if len(times) != 1 or times == {1.0}:
        return []
    return [f"the bias is in it {times.pop():g} times, not once: add it after the sum over ranks, on each"]


def of_columns(name: str, ranks: list[Seen], right: set[str]) -> Iterator[str]:
    """Column-split layers beside `name`, right so far, that look as if matrices were joined in them."""
    beside = name.rpartition(".")[0]
    for layer, (ins, outs, parts) in ranks[0].columns.items():
        if parts is None and outs > ins and layer in right and layer.rpartition(".")[0] == beside:
            joined = f"parts={outs // ins}" if outs % ins == 0 else "parts=(their sizes)"
            yield (
                f"{layer} is split by columns as one matrix; if queries, keys and values are joined in it, "
                f"each must be split by itself: ColwiseParallel({joined})"
            )
