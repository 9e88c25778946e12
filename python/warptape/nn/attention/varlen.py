"""torch.nn.attention.varlen: attention of sequences of several lengths that lie one behind the other."""

from __future__ import annotations

from typing import NamedTuple

from warptape import core as wt
from warptape.core import Tensor

from ..._C import _private

__all__ = ["AuxRequest", "varlen_attn", "varlen_attn_out"]


class AuxRequest(NamedTuple):
    """What varlen_attn returns besides its output.

    Args:
        lse: whether the logarithm of the sum of exp(scores) is wanted.
    """

    lse: bool = False


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Scaled dot-product attention of each sequence to itself, without padding; after FlashAttention-2 (Dao
    2023), with its alignment: a sequence's last query sees its last key.

    Shapes: N sequences, T queries and S keys of all of them, H query heads, K key heads, D and E head sizes.
    Each sequence gets the same bits whatever lies beside it, so `num_splits` changes nothing.

    Args:
        query: [T, H, D].
        key: [S, K, D].
        value: [S, K, E].
        cu_seq_q: int32 [N + 1], from 0: sequence r has the queries cu_seq_q[r] to cu_seq_q[r + 1] - 1.
        cu_seq_k: the same of keys.
        max_q: the most queries of a sequence. On a CUDA device, where the numbers are not looked at, queries
            beyond it get zeros.
        max_k: the most keys of a sequence.
        return_aux: with `lse=True` the log-sum-exp of the scores is returned, too.
        scale: what scores are multiplied with; 1 / sqrt(D) by default.
        window_size: (left, right): how many keys before and after its own place a query sees, -1 for all;
            (-1, 0) is causal.
        enable_gqa: allows K to be a divisor of H: query head h reads key head h // (H / K).
        seqused_k: int32 [N]: only that many of each sequence's keys take part. For inference.

    Returns:
        The output [T, H, E], zeros for a query that sees no key or is in no sequence; with
        `AuxRequest(lse=True)` also the log-sum-exp [H, T], minus infinity there, which has no gradient.

    Raises:
        ValueError: heads that do not fit each other; on the CPU, numbers that do not rise from 0 to at most
            the number of rows, or a sequence longer than max_q or max_k.
        RuntimeError: other shapes, dtypes or devices than above; gradients with seqused_k.
        NotImplementedError: a block_table; gradients of gradients.
    """
    _check_heads(query, key, enable_gqa, block_table)
    if cu_seq_k is None:
        raise ValueError("varlen_attn: expected cu_seq_k, as there is no block_table")
    if len(window_size) != 2:
        raise ValueError(f"window_size must have length 2, got {len(window_size)}")
    out, lse = _private._varlen_attention(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, *window_size, seqused_k
    )
    return (out, lse) if return_aux is not None and return_aux.lse else out


def varlen_attn_out(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """varlen_attn with its output written to `out` [T, H, E]; nothing is recorded.

    Returns:
        `out`, and the log-sum-exp where it is asked for.

    Raises:
        RuntimeError: an `out` of another shape or dtype, and what varlen_attn raises.
    """
    with wt.no_grad():
        result, lse = varlen_attn(  # type: ignore[misc]
            query,
            key,
            value,
            cu_seq_q,
            cu_seq_k,
            max_q,
            max_k,
            return_aux=AuxRequest(lse=True),
            scale=scale,
            window_size=window_size,
            enable_gqa=enable_gqa,
            seqused_k=seqused_k,
            block_table=block_table,
            num_splits=num_splits,
        )
        if out.shape != result.shape or out.dtype != result.dtype:
            raise RuntimeError(
                f"varlen_attn_out: expected out of {tuple(result.shape)} and {result.dtype}, "
                f"got {tuple(out.shape)} and {out.dtype}"
            )
        out.copy_(result)
    return (out, lse) if return_aux is not None and return_aux.lse else out


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool, block_table: Tensor | None) -> None:
    if block_table is not None:
        raise NotImplementedError(
            "varlen_attn: keys and values in pages (block_table) are not taken; "
            "warptape.models' Decoder with a PagedCache attends to pages"
        )
    if query.ndim != 3 or key.ndim != 3:
        return  # the op says what it expects
    heads, of_keys = query.shape[1], key.shape[1]
    if not enable_gqa and heads != of_keys:
        raise ValueError(
            "Expect query and key/value to have the same number of heads "
            f"but got Hq={heads} and Hkv={of_keys}. Try setting enable_gqa=True for GQA."
        )
    if enable_gqa and (of_keys == 0 or heads % of_keys):
        raise ValueError(
            "Expect number of query heads to be a multiple of kv heads for GQA "
            f"but got Hq={heads} and Hkv={of_keys}."
        )
