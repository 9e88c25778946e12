"""Tensors of ranks beside the one of one process: which part of it each should be, and how far off it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ... import core as wt
from ...core import Tensor
from ..dtensor.placement import Shard
from .layout import Layout
from .record import ModuleCall, Seen

Pair = tuple[Tensor, Tensor]  # what a rank has, and what it should have


def error_of(got: Tensor, want: Tensor, floor: float = 0.0) -> float:
    """The norm of the difference, as share of what should be there. Infinite for what is no number.

    Args:
        got, want: of one shape.
        floor: the least norm that is divided by.

    >>> from warptape.parallel.verification.compare import error_of
    >>> error_of(torch.tensor([1.0]), torch.tensor([2.0]))
    0.5
    """
    if got.numel() == 0:
        return 0.0
    wide = wt.float64
    got, want = got.to(wide), want.to(wide)
    size = (got - want).norm().item() / max(want.norm().item(), floor, 1e-300)
    return size if size == size else float("inf")


@dataclass
class Compared:
    """A tensor on all ranks that have it. `split` are (axis, dim) of the parts that ranks hold of it.

    Args:
        error: the largest.
        pairs: (what was computed, what should be) by rank.
        errors: by rank.
    """

    error: float
    pairs: dict[int, Pair]
    errors: dict[int, float]
    split: tuple[tuple[str, int], ...]


def _pieces(
    want: Tensor, shape: tuple[int, ...], axes: list[tuple[str, int, int, bool]], parts: set[Any]
) -> Iterable[tuple[Tensor, tuple[tuple[str, int], ...]]]:
    """The parts of `want` that a rank could hold which are of that shape; axes are (name, ranks, place,
    whether a part is two slices of a sequence)."""
    if tuple(want.shape) == shape:
        yield want, ()
    if len(want.shape) != len(shape):
        return
    for i, (name, ranks, at, two) in enumerate(axes):
        for dim, size in enumerate(want.shape):
            if ranks == 1 or size % ranks or size == shape[dim]:
                continue
            for part in _shards_along(want, dim, ranks, at, two, parts):
                for piece, split in _pieces(part, shape, axes[i + 1 :], parts):
                    yield piece, ((name, dim), *split)


def _shards_along(
    want: Tensor, dim: int, ranks: int, at: int, two: bool, parts: set[Any]
) -> Iterable[Tensor]:
    size = want.shape[dim]
    if two:
        if size % (2 * ranks) == 0:
            slices = want.chunk(2 * ranks, dim)
            yield wt.cat([slices[at], slices[-1 - at]], dim)
        return
    for joined in (None, *parts):
        shard = Shard(dim, joined)
        if sum(shard.sizes(size)) == size and all(n % ranks == 0 for n in shard.sizes(size)):
            yield shard.take(want, at, ranks)


def compare(
    got: dict[int, Tensor], want: Tensor, layout: Layout, parts: set[Any], floor: float = 0.0
) -> Compared | None:
    """None when some rank's shape is that of no part.

    Args:
        got: by rank.
        want: the whole.
        layout: of the ranks.
        parts: how dims may be split.
        floor: the least norm that is divided by.
    """
    pairs, errors, split = {}, {}, ()
    for rank, value in got.items():
        at = layout.place(rank)
        sizes = zip(layout.axes, layout.sizes, strict=True)
        axes = [(name, n, at[name], name in layout.sequence) for name, n in sizes]
        # Ranks share the batch in the order of all its axes: dim 0 is cut along the first of them first.
        best: Any = None
        for piece, how in _pieces(want, tuple(value.shape), axes, parts):
            error = error_of(value, piece, floor)
            if best is None or error < best[0]:
                best = error, piece, how
        if best is None:
            return None
        errors[rank], pairs[rank], split = best[0], (value, best[1]), best[2]
    return Compared(max(errors.values()), pairs, errors, split) if errors else None


def _merged(calls: list[ModuleCall], wanted: int, index: int, which: str) -> list[Tensor] | None:
    """Of the index-th call of each micro-batch, the tensors put together along the batch."""
    if not calls or len(calls) % wanted:
        return None
    lists = [getattr(call, which) for call in calls[index::wanted]]
    if len({len(each) for each in lists}) > 1:
        return None
    return [
        each[0] if len(each) == 1 or each[0].ndim == 0 else wt.cat(each)
        for each in (list(group) for group in zip(*lists, strict=True))
    ]


def compare_calls(
    name: str, index: int, plain: Seen, ranks: list[Seen], layout: Layout, which: str = "outputs"
) -> list[Compared] | None:
    """The inputs or outputs of one call of a module, on the ranks that called it; None when that cannot be
    compared."""
    calls = plain.calls[name]
    wants, got = getattr(calls[index], which), {}
    for rank, seen in enumerate(ranks):
        if name in seen.calls:
            merged = _merged(seen.calls[name], len(calls), index, which)
            if merged is None or len(merged) != len(wants):
                return None
            got[rank] = merged
    parts = {p for seen in ranks for *_, p in seen.columns.values() if p is not None}
    out = []
    for i, want in enumerate(wants):
        if not want.is_floating_point():
            continue
        one = compare({rank: values[i] for rank, values in got.items()}, want, layout, parts)
        if one is None:
            return None
        out.append(one)
    return out or None
