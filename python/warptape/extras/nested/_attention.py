"""Scaled dot-product attention of nested tensors, by the kernel for sequences of several lengths.

Shapes: B sequences, H query heads and K key heads, * ragged, D and E head sizes; T and S are the rows of all
queries and all keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warptape import _C
from warptape import core as wt

from ...core import Tensor
from ...nn import functional as F
from ._ops import Args, Named, named, ndim, shape_of, unbound
from ._ragged import Ragged
from ._tensor import NestedTensor, handles, packed, plain, wrap

_NAMES = "query key value attn_mask dropout_p is_causal scale enable_gqa"


def _check(query: NestedTensor, key: NestedTensor, value: NestedTensor, given: Named) -> None:
    name = "scaled_dot_product_attention"
    for what, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, NestedTensor) or ndim(t) != 4 or t._ragged_idx != 2:
            shape = shape_of(t) if isinstance(t, NestedTensor) else tuple(t.shape)
            raise RuntimeError(
                f"{name}: expected nested query, key and value of [B, H, *, D] with the dim 2 ragged (make "
                f"one with transpose(1, 2)), got a {what} of {shape}"
            )
    if given.get("attn_mask") is not None:
        raise ValueError("Masks are not yet supported!")
    if key._ragged.symbol != value._ragged.symbol:
        raise RuntimeError(
            f"{name}: expected key and value of one structure, got {shape_of(key)} and {shape_of(value)}"
        )
    if query._ragged.count != key._ragged.count:
        raise RuntimeError(
            f"{name}: expected queries and keys of as many sequences, got {query._ragged.count} and "
            f"{key._ragged.count}"
        )
    if given.get("is_causal") and query._ragged.symbol != key._ragged.symbol:
        raise NotImplementedError(f"{name}: is_causal needs queries and keys of one structure")
    heads, of_keys = plain(query).size(0), plain(key).size(0)
    if heads != of_keys and not (given.get("enable_gqa") and of_keys and heads % of_keys == 0):
        raise RuntimeError(
            f"{name}: expected as many heads of keys as of queries, or with enable_gqa=True a divisor, got "
            f"{heads} and {of_keys}"
        )


def _rows(t: NestedTensor) -> tuple[Tensor, Ragged]:
    """[H, rows, D] as [rows, H, D], and how the sequences lie there."""
    t = packed(t)
    ragged = t._ragged
    return ragged.packed_rows(plain(t), 1).transpose(0, 1), ragged


def _one_by_one(query: NestedTensor, key: NestedTensor, value: NestedTensor, options: Named) -> Tensor:
    """With dropout, which the kernel has not: a sequence at a time."""
    parts = zip(unbound(query), unbound(key), unbound(value))
    done = [F.scaled_dot_product_attention(q[None], k[None], v[None], **options)[0] for q, k, v in parts]
    return wt.cat(done, 1)


@handles("scaled_dot_product_attention")
def _attention(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named(_NAMES, args, kwargs)
    query, key, value = bound["query"], bound["key"], bound["value"]
    _check(query, key, value, bound)
    if bound.get("dropout_p", 0.0) > 0:
        options = {k: v for k, v in bound.items() if k not in ("query", "key", "value", "attn_mask")}
        return wrap(_one_by_one(packed(query), packed(key), packed(value), options), packed(query))
    (q, of_q), (k, of_k), (v, _) = _rows(query), _rows(key), _rows(value)
    out, _ = _C._private._varlen_attention(
        q,
        k,
        v,
        of_q.offsets.to(wt.int32),
        of_k.offsets.to(wt.int32),
        of_q.most,
        of_k.most,
        bound.get("scale"),
        -1,
        0 if bound.get("is_causal") else -1,
        None,
    )
    return wrap(out.transpose(0, 1), packed(query))
