"""BlockMask: which blocks of keys a block of queries sees (Dong et al., "Flex Attention", 2024, sec. 4)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor, offered
from warptape.core.pytree import GetAttrKey
from warptape.nn import functional

if TYPE_CHECKING:
    from warptape.core.types import Device

_DEFAULT_SPARSE_BLOCK_SIZE = 128

Modification = Callable[..., Any]


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """The mask_mod that lets every query see every key."""
    return wt.ones((), dtype=wt.bool, device=batch.device)


def evaluate(mod: Modification, score: Tensor | None, sizes: tuple[int, ...], *at: Tensor) -> Tensor:
    """mod([score,] b, h, q, kv) for all indices `at`, of one dim each, as a tensor of `sizes`.

    A modification of one number is given tensors that broadcast to `sizes`; one that does not give such a
    tensor back is mapped over the dims instead.
    """
    grid = [index.reshape([-1 if d == i else 1 for d in range(4)]) for i, index in enumerate(at)]
    first = () if score is None else (score,)
    try:
        mask = mod(*first, *grid)
        if isinstance(mask, Tensor) and mask.ndim <= 4:
            return mask.broadcast_to(sizes)
    except (RuntimeError, IndexError, TypeError, ValueError):
        pass  # the mapped call fails alike, with its own message, where the modification is wrong
    mapped = mod
    for d in (3, 2, 1, 0):
        dims = tuple(0 if i == d else None for i in range(4))
        mapped = offered("func").vmap(mapped, in_dims=(0, *dims) if first else dims)
    return mapped(*first, *at).broadcast_to(sizes)


def create_mask(
    mod_fn: Modification, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Device = None
) -> Tensor:
    """mod_fn for every place: [B, H, Q_LEN, KV_LEN], 1 for a size that is None.

    `mod_fn(b, h, q_idx, kv_idx)` gives bools, `mod_fn(score, b, h, q_idx, kv_idx)`, of scores 0, numbers.

    Raises:
        AssertionError: mod_fn takes neither four nor five arguments.
    """
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    at = [wt.arange(n, device=device) for n in sizes]
    if _arguments(mod_fn) == 5:
        return evaluate(mod_fn, wt.zeros(sizes, device=device), sizes, *at)
    return evaluate(mod_fn, None, sizes, *at).contiguous()


def _arguments(mod: Modification) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(p.kind in kinds and p.default is p.empty for p in inspect.signature(mod).parameters.values())
    if count not in (4, 5):
        raise AssertionError(f"Expected 4 or 5 positional args, got {count}")
    return count


def _check_mods(mods: tuple[Modification, ...]) -> None:
    if not all(callable(mod) for mod in mods):
        raise RuntimeError(f"All inputs should be callable mask_mods: {mods}")


def and_masks(*mask_mods: Modification) -> Modification:
    """The mask_mod that holds where all of these hold.

    Raises:
        RuntimeError: something that cannot be called.
    """
    _check_mods(mask_mods)

    def and_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        result = b.new_ones((), dtype=wt.bool)
        for mod in mask_mods:
            result = result & mod(b, h, q_idx, kv_idx)
        return result

    return and_mask


def or_masks(*mask_mods: Modification) -> Modification:
    """The mask_mod that holds where any of these holds.

    Raises:
        RuntimeError: something that cannot be called.
    """
    _check_mods(mask_mods)

    def or_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        result = b.new_zeros((), dtype=wt.bool)
        for mod in mask_mods:
            result = result | mod(b, h, q_idx, kv_idx)
        return result

    return or_mask


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of bools [.., rows, columns] the number of each row, and the columns that hold, before the others."""
    order = wt.argsort(blocks.to(wt.int32), dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(wt.int32), order.to(wt.int32)


def _dense(counts: Tensor, indices: Tensor) -> Tensor:
    """The inverse of _ordered; a column that `indices` does not name is one of none."""
    columns = int(indices.shape[-1])
    held = wt.arange(columns, device=indices.device) < counts.unsqueeze(-1)
    blocks = indices.new_zeros((*indices.shape[:-1], columns + 1))
    at = wt.where(held, indices, columns).to(wt.int64)
    return blocks.scatter(-1, at, 1)[..., :columns].to(wt.bool)


class BlockMask:
    """Which blocks of keys each block of queries sees: wholly, or as `mask_mod` says.

    kv_num_blocks [B, H, rows] and kv_indices [B, H, rows, columns], int32, list the blocks in which mask_mod
    is asked, full_kv_num_blocks and full_kv_indices those in which all keys are seen. The q_ tensors are the
    same by columns. B and H are 1 where all batches or heads see alike. `create_block_mask` makes one.
    """

    def __init__(
        self,
        seq_lengths: tuple[int, int],
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
        mask_mod: Modification | None = None,
    ) -> None:
        if kv_indices.ndim < 2:
            raise RuntimeError("BlockMask must have at least 2 dimensions")
        if kv_num_blocks.is_floating_point() or kv_indices.is_floating_point():
            raise TypeError(f"BlockMask: counts and indices must be integers, got {kv_indices.dtype}")
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise AssertionError("full_kv_num_blocks and full_kv_indices must be both provided or omitted")
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        rows, columns = size
        self.BLOCK_SIZE, self.seq_lengths = (rows, columns), seq_lengths
        self.mask_mod = noop_mask if mask_mod is None else mask_mod
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = _ordered(_dense(kv_num_blocks, kv_indices).mT)
        self.full_q_num_blocks: Tensor | None = None
        self.full_q_indices: Tensor | None = None
        if full_kv_num_blocks is not None and full_kv_indices is not None:
            full = _dense(full_kv_num_blocks, full_kv_indices)
            self.full_q_num_blocks, self.full_q_indices = _ordered(full.mT)

    _parts = (
        "kv_num_blocks",
        "kv_indices",
        "full_kv_num_blocks",
        "full_kv_indices",
        "q_num_blocks",
        "q_indices",
        "full_q_num_blocks",
        "full_q_indices",
    )

    def _flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Its tensors, and what it has besides: a node of a tree."""
        return tuple(getattr(self, n) for n in self._parts), (
            self.seq_lengths,
            self.BLOCK_SIZE,
            self.mask_mod,
        )

    def _flatten_with_keys(self) -> tuple[Any, ...]:
        """The same with the tensors' names."""
        leaves, context = self._flatten()
        return tuple((GetAttrKey(n), t) for n, t in zip(self._parts, leaves, strict=True)), context

    @classmethod
    def _unflatten(cls, leaves: tuple[Any, ...], context: tuple[Any, ...]) -> BlockMask:
        """A mask of the tensors that `_flatten` gave, or others of their kinds."""
        mask = cls.__new__(cls)
        mask.seq_lengths, mask.BLOCK_SIZE, mask.mask_mod = context
        vars(mask).update(zip(cls._parts, leaves, strict=True))
        return mask

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
        mask_mod: Modification | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
    ) -> BlockMask:
        """A mask of the blocks that are listed; without seq_lengths its lengths are whole blocks.

        Raises:
            RuntimeError: kv_indices has fewer than 2 dims.
            AssertionError: one of the two tensors of full blocks is missing.
        """
        if seq_lengths is None and kv_indices.ndim >= 2:
            size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
            seq_lengths = (kv_indices.shape[-2] * size[0], kv_indices.shape[-1] * size[1])
        return cls(
            seq_lengths or (0, 0),
            kv_num_blocks,
            kv_indices,
            full_kv_num_blocks,
            full_kv_indices,
            BLOCK_SIZE,
            mask_mod,
        )

    def as_tuple(self, flatten: bool = True) -> tuple[Any, ...]:
        """The lengths, the tensors, the size of a block and mask_mod, in PyTorch's order."""
        tensors = (
            self.kv_num_blocks, self.kv_indices, self.full_kv_num_blocks, self.full_kv_indices,
            self.q_num_blocks, self.q_indices, self.full_q_num_blocks, self.full_q_indices,
        )  # fmt: skip
        if flatten:
            return (*self.seq_lengths, *tensors, *self.BLOCK_SIZE, self.mask_mod)
        return (self.seq_lengths, *tensors, self.BLOCK_SIZE, self.mask_mod)

    @property
    def shape(self) -> tuple[int, ...]:
        """[B, H, queries, keys]."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def numel(self) -> int:
        """The number of places."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    def partial_blocks(self) -> Tensor:
        """Bools [B, H, rows, columns]: the blocks in which mask_mod is asked."""
        return _dense(self.kv_num_blocks, self.kv_indices)

    def full_blocks(self) -> Tensor:
        """Bools [B, H, rows, columns]: the blocks in which all keys are seen."""
        if self.full_kv_num_blocks is None or self.full_kv_indices is None:
            return self.partial_blocks() & False
        return _dense(self.full_kv_num_blocks, self.full_kv_indices)

    def to_dense(self) -> Tensor:
        """int32 [B, H, rows, columns]: 1 for each block that is computed."""
        return (self.partial_blocks() | self.full_blocks()).to(wt.int32)

    def sparsity(self) -> float:
        """The share of places in blocks that are not computed, in percent."""
        computed = int(self.to_dense().sum()) * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1]
        return 100 * (1 - computed / self.numel())

    def _remade(self, change: Callable[[Tensor], Tensor]) -> BlockMask:
        full_counts, full_indices = self.full_kv_num_blocks, self.full_kv_indices
        return type(self)(
            self.seq_lengths,
            change(self.kv_num_blocks),
            change(self.kv_indices),
            None if full_counts is None else change(full_counts),
            None if full_indices is None else change(full_indices),
            self.BLOCK_SIZE,
            self.mask_mod,
        )

    def to(self, device: Device) -> BlockMask:
        """The mask with its tensors on a device."""
        return self._remade(lambda t: t.to(device))

    def __getitem__(self, index: Any) -> BlockMask:
        """The mask of some batches, heads and blocks of queries; mask_mod counts what is left from 0."""
        index = index if isinstance(index, tuple) else (index,)
        # An int keeps its dim, so that what remains is [B, H, rows, columns].
        index = tuple(slice(i, i + 1 or None) if isinstance(i, int) else i for i in index)
        return self._remade(lambda t: t[index])

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """The upper left corner of the mask, of these lengths."""
        rows, columns = (-(-n // size) for n, size in zip((new_q_len, new_kv_len), self.BLOCK_SIZE))

        def cropped(blocks: Tensor) -> tuple[Tensor, Tensor]:
            return _ordered(blocks[..., :rows, :columns])

        counts, indices = cropped(self.partial_blocks())
        full_counts, full_indices = (
            cropped(self.full_blocks()) if self.full_kv_num_blocks is not None else (None, None)
        )
        lengths = (new_q_len, new_kv_len)
        return type(self)(lengths, counts, indices, full_counts, full_indices, self.BLOCK_SIZE, self.mask_mod)

    def to_string(self, grid_size: int | tuple[int, int] = 20, limit: int = 4) -> str:
        """A drawing of each batch and head, at most `limit` of them, of at most grid_size rows and columns.

        Each sign stands for a block, or for several where there are more than grid_size: a full one for
        all their places, a shaded one for some, none for a blank.
        """
        rows, columns = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        full, dense = self.full_blocks(), self.to_dense()
        lines: list[str] = []
        heads = [(b, h) for b in range(dense.shape[0]) for h in range(dense.shape[1])]
        for b, h in heads[:limit]:
            lines += [f"({b}, {h})", *_drawn(dense[b, h], full[b, h], rows, columns), ""]
        if len(heads) > limit:
            lines += ["...", "To print out more, set BlockMask.to_string(limit=N)"]
            lines += ["You can also index (BlockMask[batch, head]) to choose a specific batch or head"]
        return "\n".join(lines).rstrip("\n")

    def __str__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%, \n{self.to_string()}\n)"

    def __repr__(self) -> str:
        name = getattr(self.mask_mod, "__name__", repr(self.mask_mod))
        return (
            f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%, BLOCK_SIZE={self.BLOCK_SIZE}, "
            f"mask_mod={name})"
        )


def _drawn(dense: Tensor, full: Tensor, rows: int, columns: int) -> list[str]:
    """The lines of one head's blocks [rows, columns]."""
    shares = (dense.to(wt.float32) + full.to(wt.float32)) / 2
    high, wide = (-(-n // most) for n, most in zip(shares.shape, (rows, columns)))
    lines = []
    for i in range(0, int(shares.shape[0]), high):
        part = shares[i : i + high]
        share = [float(part[:, j : j + wide].mean()) for j in range(0, int(shares.shape[1]), wide)]
        lines.append("".join("  " if s == 0 else "██" if s == 1 else "░░" for s in share))
    return lines


def create_block_mask(
    mask_mod: Modification,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Device = None,
    BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
    _compile: bool = False,
    separate_full_blocks: bool = True,
) -> BlockMask:
    """The blocks in which mask_mod(b, h, q_idx, kv_idx) holds somewhere, and those where it holds throughout.

    It is asked for a row of blocks at a time: memory is B H BLOCK_SIZE KV_LEN bools, not Q_LEN KV_LEN.

    Raises:
        AssertionError: mask_mod does not take four arguments.
        ValueError: BLOCK_SIZE is no size or pair of sizes.
    """
    if _arguments(mask_mod) != 4:
        raise AssertionError("create_block_mask requires a mask_mod of 4 positional args")
    rows, columns = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    b, h, kv = (wt.arange(n, device=device) for n in (B or 1, H or 1, KV_LEN))
    per_row = []
    for start in range(0, Q_LEN, rows):
        q = wt.arange(start, min(start + rows, Q_LEN), device=device)
        seen = evaluate(mask_mod, None, (B or 1, H or 1, len(q), KV_LEN), b, h, q, kv)
        by_key = seen.sum(2)
        padded = functional.pad(by_key, (0, -KV_LEN % columns))
        per_row.append(padded.unflatten(-1, (-1, columns)).sum(-1))
    mask = wt.stack(per_row, 2)
    full = (mask == rows * columns) & separate_full_blocks
    counts, indices = _ordered((mask > 0) & ~full)
    full_counts, full_indices = _ordered(full) if separate_full_blocks else (None, None)
    return BlockMask((Q_LEN, KV_LEN), counts, indices, full_counts, full_indices, (rows, columns), mask_mod)
