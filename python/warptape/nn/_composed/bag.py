"""Sums, means and maxima over bags of a table's rows. Legend: V rows, D columns, B bags, n indices."""

from __future__ import annotations

import warnings

import warptape
from warptape import _C, Tensor

__all__ = ["embedding_bag"]


def _bags(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor | None:
    """Where bags start in a 1-D input; None for a 2-D one, whose rows are the bags."""
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed "
                f"length sequences. However, found offsets of type {type(offsets)}"
            )
        return None
    if input.dim() != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
    if not isinstance(offsets, Tensor):
        raise ValueError(f"offsets has to be a 1D Tensor but got {type(offsets)}")
    if offsets.dim() != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    if include_last_offset and offsets.numel() == 0:
        raise RuntimeError("include_last_offset: number of offsets should be at least 1")
    starts = offsets[:-1] if include_last_offset else offsets
    if not offsets.is_meta and offsets.numel():
        given = offsets.tolist()
        if given[0] != 0:
            raise RuntimeError(
                "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
                f"position 0. However, got {given[0]}"
            )
        if given[-1] > input.shape[0] or given != sorted(given):
            raise RuntimeError(
                "offsets have to grow, and the last may not exceed the length of input, "
                f"{input.shape[0]}; got {given[-1]}"
            )
    return starts


def _in_rows(starts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Bags of several lengths as rows of one: positions [B, L] in the input, and which of them count."""
    ends = warptape.cat([starts[1:], starts.new_full((1,), count)])
    lengths = ends - starts
    longest = int(lengths.max()) if lengths.numel() else 0
    places = warptape.arange(longest, device=starts.device)
    return (starts.unsqueeze(1) + places).clamp(max=max(count - 1, 0)), places < lengths.unsqueeze(1)


def _table(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    if weight.dtype == _C.int64 and input.is_floating_point():
        warnings.warn(
            "Argument order of nn.functional.embedding_bag was changed. Usage `embedding_bag(weight, input, "
            "...)` is deprecated, and should now be `embedding_bag(input, weight, ...)`.",
            stacklevel=3,
        )
        input, weight = weight, input
    if weight.dim() != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}")
    return input, weight


def _check_mode(mode: str, per_sample: bool, scale_grad_by_freq: bool, sparse: bool) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    if per_sample and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for "
            f"mode='sum' (got mode='{mode}'). Please open a feature request on GitHub."
        )


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Rows of weight [V, D] at indices [B, L], or at indices [n] in bags that start at `offsets` [B] ->
    [B, D], the sum, mean or max of each bag; zeros for one that is empty.

    `per_sample_weights`, of the input's shape, multiply the rows of a sum. Indices `padding_idx` do not
    count. With `include_last_offset` the last offset is the end of the last bag. With `max_norm` rows that
    are longer are first shortened, in place.
    """
    input, weight = _table(input, weight)
    _check_mode(mode, per_sample_weights is not None, scale_grad_by_freq, sparse)
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({per_sample_weights.shape}) is not None, then it must "
            f"have the same shape as the input ({input.shape})"
        )
    starts = _bags(input, offsets, include_last_offset)
    if padding_idx is not None:
        padding_idx = padding_idx % weight.shape[0] if -weight.shape[0] <= padding_idx < 0 else padding_idx
    count = input.shape[0]
    counts = None if padding_idx is None else input != padding_idx  # which indices count; None for all
    ragged = starts is not None and mode == "max"
    if ragged:
        places, counts_here = _in_rows(starts, count)  # type: ignore[arg-type]
        input = input[places] if count else input.new_zeros(places.shape)
        counts = counts_here if counts is None else counts_here & counts[places]
    rows = _C._nn.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if mode == "max":
        if rows.shape[1] == 0:
            return rows.sum(1)
        if counts is None:
            return rows.max(1)[0]
        hidden = rows.masked_fill(~counts.unsqueeze(-1), float("-inf"))
        return hidden.max(1)[0].masked_fill(~counts.any(1, keepdim=True), 0.0)
    factors = per_sample_weights
    if counts is not None:
        factors = counts.to(rows.dtype) if factors is None else factors * counts
    if starts is None:
        out = rows.sum(1) if factors is None else (factors.unsqueeze(1) @ rows).squeeze(1)
        sizes = counts.sum(1) if counts is not None else rows.new_full((len(rows),), input.shape[1])
    else:
        bag = warptape.searchsorted(starts, warptape.arange(count, device=starts.device), right=True) - 1
        rows = rows if factors is None else rows * factors.unsqueeze(-1)
        out = rows.new_zeros((starts.shape[0], weight.shape[1])).index_add(0, bag, rows)
        each = warptape.ones(count, dtype=_C.int64, device=bag.device) if counts is None else counts.long()
        sizes = each.new_zeros(starts.shape[0]).index_add(0, bag, each)
    return out / sizes.clamp(min=1).to(out.dtype).unsqueeze(-1) if mode == "mean" else out
