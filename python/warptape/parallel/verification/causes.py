"""What a difference looks like, and what makes such a one."""

from __future__ import annotations

from collections.abc import Iterator

from warptape import core as wt

from ...core import Tensor
from .compare import Compared, Pair, error_of
from .layout import Layout
from .record import Seen

NEAR = 1e-4  # differences that agree with an explanation up to this share are explained by it


def near(got: Tensor, want: Tensor) -> bool:
    """Whether an explanation is good enough.

    Args:
        got, want: what there is, and what there would be.
    """
    return got.shape == want.shape and error_of(got, want) < NEAR


def _ratio(pairs: dict[int, Pair]) -> float | None:
    """The number by which all differing ranks' values are too large, if there is one."""
    out = None
    for got, want in pairs.values():
        square = want.square().sum().item()
        c = (got * want).sum().item() / square if square else 0.0
        if not near(got, want * c) or (out is not None and abs(c - out) > NEAR * abs(out)):
            return None
        out = c
    return out


def of_ratio(pairs: dict[int, Pair], layout: Layout, micro: int) -> list[str]:
    """A factor that is a number of ranks or of micro-batches, or one of these divided by.

    Args:
        pairs: (what was computed, what should be) by rank.
        layout: of the ranks.
        micro: number of micro-batches.
    """
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
    for n in dict.fromkeys((*layout.sizes, layout.ranks)):
        alike = [repr(name) for name, size in zip(layout.axes, layout.sizes, strict=True) if size == n]
        where = "all ranks" if n == layout.ranks else f"the axis {' or '.join(alike)}"
        if n > 1 and abs(c - n) < NEAR * n:
            out.append(f"it is {n} times the right one: summed over {where} where one rank's is the whole")
        if n > 1 and abs(c * n - 1) < NEAR:
            out.append(f"it is 1/{n} of the right one: divided by {where} once too often")
    return out or [f"it is {c:.6g} times the right one"]


def _alike(pairs: dict[int, Pair], lines: list[list[int]], which: int) -> bool:
    """Whether what was computed (0), or what should be (1), is one value along each line of ranks."""
    return all(near(pairs[rank][which], pairs[line[0]][which]) for line in lines for rank in line)


def of_lines(pairs: dict[int, Pair], layout: Layout, backward: bool) -> list[str]:
    """Whether ranks of an axis hold summands, or copies that were not averaged.

    Args:
        pairs: (what was computed, what should be) by rank.
        layout: of the ranks.
        backward: whether these are gradients.
    """
    for axis, n in zip(layout.axes, layout.sizes, strict=True):
        lines = [line for line in layout.lines(axis, list(pairs)) if len(line) == n]
        if n < 2 or not lines or sum(len(line) for line in lines) < len(pairs):
            continue
        if not _alike(pairs, lines, 1):  # each has a part of its own
            continue
        sums = [sum((pairs[r][0] for r in line[1:]), pairs[line[0]][0]) for line in lines]
        wants = [pairs[line[0]][1] for line in lines]
        if all(near(s, w) for s, w in zip(sums, wants, strict=True)):
            return [f"the ranks of the axis {axis!r} hold summands of it: a sum (all-reduce) is missing"]
        if all(near(s / n, w) for s, w in zip(sums, wants, strict=True)):
            what = "each rank's own part of the batch" if backward else "each rank's own"
            return [f"the mean over the axis {axis!r} is right: these are {what}, not averaged"]
    return []


def of_copies(pairs: dict[int, Pair], layout: Layout) -> list[str]:
    """Whether ranks of an axis have the same where each should have its own.

    Args:
        pairs: (what was computed, what should be) by rank.
        layout: of the ranks.
    """
    for axis, n in zip(layout.axes, layout.sizes, strict=True):
        lines = [line for line in layout.lines(axis, list(pairs)) if len(line) == n]
        if n < 2 or sum(len(line) for line in lines) < len(pairs):
            continue
        if not _alike(pairs, lines, 0) or _alike(pairs, lines, 1):
            continue
        if all(near(*pairs[line[0]]) for line in lines):
            return [
                f"each rank of the axis {axis!r} has what the first one should have: places are counted from "
                "the start of a rank's own part"
            ]
        return [
            f"the ranks of the axis {axis!r} have the same where each should have its own: a collective over "
            "this axis that should be over another"
        ]
    return []


def of_order(pairs: dict[int, Pair], layout: Layout, split: tuple[tuple[str, int], ...]) -> list[str]:
    """Whether the right blocks, such as heads, lie in a wrong order, on a rank or among ranks.

    Args:
        pairs: (what was computed, what should be) by rank.
        layout: of the ranks.
        split: (axis, dim) pairs.
    """
    together = list(pairs.values())
    dims = range(next(iter(pairs.values()))[0].ndim)
    for axis, dim in split:
        dims = range(dim, dim + 1)
        lines = layout.lines(axis, list(pairs))
        together = [
            tuple(wt.cat([pairs[r][i] for r in line], dim) for i in (0, 1))  # type: ignore[misc]
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
        at = next((i for i, other in enumerate(left) if near(block, other)), None)
        if at is None:
            return False
        del left[at]
    return True


def of_repeats(pairs: dict[int, Pair], layout: Layout) -> list[str]:
    """Whether ranks hold some of the right blocks twice and others not at all.

    Args:
        pairs: (what was computed, what should be) by rank.
        layout: of the ranks.
    """
    shape = next(iter(pairs.values()))[1].shape
    sizes = [n for n in dict.fromkeys(layout.sizes) if n > 1]
    for dim, n in ((d, n) for d in range(len(shape)) for n in sizes if shape[d] % n == 0):
        places = {rank: _places(got, want, dim, n) for rank, (got, want) in pairs.items()}
        if any(None in each for each in places.values()) or all(
            len(set(each)) == n for each in places.values()
        ):
            continue
        cause = f"of its {n} blocks along dim {dim} some are there twice, and others are missing"
        for axis in layout.axes:
            if all(set(each) == {layout.place(rank)[axis]} for rank, each in places.items()):
                cause += f": each rank has that of its place along the axis {axis!r}, so it is cut over the "
                return [f"{cause}ranks of this axis (a scatter), and put together over another's"]
        return [f"{cause}: what is cut over ranks of one axis is put together over those of another"]
    return []


def _places(got: Tensor, want: Tensor, dim: int, n: int) -> list[int | None]:
    """Of each block, which one of the right ones it is, if any."""
    right = want.chunk(n, dim)
    return [next((i for i in range(n) if near(block, right[i])), None) for block in got.chunk(n, dim)]


def of_added(compared: Compared, added: Tensor | None, layout: Layout, micro: int) -> list[str]:
    """Whether a gradient is wrong by what backward adds to that of the loss, as a balancing loss is added.

    Args:
        compared: the gradient on all ranks, which each has as a whole.
        added: in one process, the gradient of a loss that is zero.
        layout: of the ranks.
        micro: number of micro-batches.
    """
    if added is None or compared.split or not added.count_nonzero():
        return []
    pairs = {rank: (got - want + added, added) for rank, (got, want) in compared.pairs.items()}
    what = "the part of it that backward adds besides the loss's (a balancing loss, say) is "
    return [what + cause.removeprefix("it is ") for cause in of_ratio(pairs, layout, micro)]


def of_orthogonal(compared: Compared, layout: Layout) -> list[str]:
    """Whether each rank's part of a matrix is orthogonal, where the whole should be.

    Args:
        compared: what a step adds to a parameter, as a whole on all ranks.
        layout: of the ranks.
    """
    got, want = next(iter(compared.pairs.values()))
    if want.ndim != 2 or compared.split or not _orthogonal(want) or _orthogonal(got):
        return []
    for axis, n in zip(layout.axes, layout.sizes, strict=True):
        for dim in (0, 1) if n > 1 else ():
            if all(_orthogonal(part) for part in got.chunk(n, dim)):
                return [
                    f"it should be orthogonal, and only parts along dim {dim} of the axis {axis!r} are: "
                    "the optimizer needs the whole matrix"
                ]
    return []


def _orthogonal(matrix: Tensor) -> bool:
    """Up to a factor."""
    m = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    square = m @ m.T
    return near(square, wt.eye(len(m), dtype=m.dtype) * square.trace() / len(m))


def of_values(compared: Compared, layout: Layout, micro: int, backward: bool) -> list[str]:
    """What the values alone tell.

    Args:
        compared: a tensor on all ranks.
        layout: of the ranks.
        micro: number of micro-batches.
        backward: whether these are gradients.
    """
    wrong = {rank: pair for rank, pair in compared.pairs.items() if not compared.errors[rank] < NEAR}
    wrong = wrong or compared.pairs
    if any(e == float("inf") for e in compared.errors.values()):
        return ["it is not a finite number"]
    return (
        of_lines(compared.pairs, layout, backward)
        or of_ratio(wrong, layout, micro)
        or of_copies(compared.pairs, layout)
        or of_order(compared.pairs, layout, compared.split)
        or of_repeats(wrong, layout)
    )


def of_names(compared: Compared, name: str, state: dict[str, Tensor]) -> list[str]:
    """Whether ranks have what belongs to another name.

    Args:
        compared: a tensor on all ranks.
        name: its own.
        state: of one process.
    """
    wrong = [got for rank, (got, _) in compared.pairs.items() if not compared.errors[rank] < NEAR]
    for other, value in state.items():
        if other != name and all(near(got, value) for got in wrong):
            return [f"it has the value of {other}: names of parameters differ between ranks"]
    return []


def of_norm(
    compared: Compared, gradients: dict[str, Tensor | None], copied: set[str], layout: Layout
) -> list[str]:
    """What a norm of all gradients, of order 2, has too often or not at all.

    Args:
        compared: the norm on all ranks.
        gradients: of one process, by parameter.
        copied: parameters that each rank has as a whole.
        layout: of the ranks.
    """
    squares = {rank: (got.square(), want.square()) for rank, (got, want) in compared.pairs.items()}
    for cause in of_lines(squares, layout, False):
        if "summands" in cause:
            return [cause.replace("of it", "of its square")]
    extra = {rank: (got - want).item() for rank, (got, want) in squares.items()}
    known = {name: g for name, g in gradients.items() if g is not None}
    for what, added in _miscounts(known, copied, layout):
        if all(abs(extra[rank] - added[rank]) <= NEAR * abs(added[rank]) for rank in extra):
            return [what]
    return [cause.replace("it is", "its square is", 1) for cause in of_ratio(squares, layout, 1)]


def _miscounts(
    gradients: dict[str, Tensor], copied: set[str], layout: Layout
) -> Iterator[tuple[str, list[float]]]:
    """Ways in which a norm counts parameters wrongly, and what each adds to its square, by rank."""
    square = {name: g.square().sum().item() for name, g in gradients.items()}
    owners = {".".join(name.split(".")[:at]) for name in square for at in range(1, name.count(".") + 2)}
    groups = {f"the gradient of {o}": {n for n in square if f"{n}.".startswith(f"{o}.")} for o in owners}
    groups["what each rank has as a whole"] = copied & square.keys()
    axes = [(axis, n) for axis, n in zip(layout.axes, layout.sizes, strict=True) if n > 1]
    for what, names in sorted(groups.items(), key=lambda each: len(each[1])):
        size = sum(square[name] for name in names)
        if not size:
            continue
        yield f"{what} is not in it, on any rank", [-size] * layout.ranks
        for axis, n in axes:
            yield (
                f"{what} is in it {n} times: the ranks of the axis {axis!r} have copies, and each is added",
                [size * (n - 1)] * layout.ranks,
            )
    for name, g in gradients.items():
        for axis, n in axes:
            what = f"one rank's part of the gradient of {name} is in it, not all of the axis {axis!r}"
            for dim in (d for d, length in enumerate(g.shape) if length % n == 0):
                own = [part.square().sum().item() - square[name] for part in g.chunk(n, dim)]
                yield what, own[:1] * layout.ranks
                yield what, [own[layout.place(rank)[axis]] for rank in range(layout.ranks)]


def of_bias(compared: Compared, bias: Tensor | None, layout: Layout) -> list[str]:
    """Whether a bias was added another time, or never; or to what was not summed.

    Args:
        compared: a tensor on all ranks.
        bias: of the layer.
        layout: of the ranks.
    """
    if bias is None or bias.ndim != 1 or any(got.ndim == 0 for got, _ in compared.pairs.values()):
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
        if not near(extra, (bias * c).expand(extra.shape)):
            return []
        times.add(round(c + 1, 3))
    if len(times) != 1 or times == {1.0}:
        return []
    return [f"the bias is in it {times.pop():g} times, not once: add it after the sum over ranks, on each"]


def of_columns(name: str, ranks: list[Seen], right: set[str]) -> Iterator[str]:
    """Column-split layers beside `name`, right so far, that look as if matrices were joined in them.

    Args:
        name: of the layer that is wrong.
        ranks: what each saw.
        right: names of layers.
    """
    beside = name.rpartition(".")[0]
    for layer, (ins, outs, parts) in ranks[0].columns.items():
        if parts is None and outs > ins and layer in right and layer.rpartition(".")[0] == beside:
            joined = f"parts={outs // ins}" if outs % ins == 0 else "parts=(their sizes)"
            yield (
                f"{layer} is split by columns as one matrix; if queries, keys and values are joined in it, "
                f"each must be split by itself: ColwiseParallel({joined})"
            )
