"""Attention as a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor

from .. import init
from ..parameter import Parameter
from .linear import NonDynamicallyQuantizableLinear
from .module import Module

if TYPE_CHECKING:
    from warptape.core.types import Device


class MultiheadAttention(Module):
    """Queries [T, N, embed_dim], keys [S, N, kdim], values [S, N, vdim] -> ([T, N, embed_dim], weights).

    Each of `num_heads` heads has embed_dim / num_heads of the width; `dropout` is the probability with which
    a weight is zeroed; without `bias` the projections have none.

    With `batch_first` N comes first; a batch may be left out. The weights are [N, T, S], [N, heads, T, S]
    unless averaged, None unless wanted: without them the scores are never stored. `key_padding_mask` [N, S]
    and `attn_mask` [T, S] or [N * heads, T, S] are bool, True to hide, or numbers to add to the scores.
    `add_bias_kv` adds a trained key and value, `add_zero_attn` one of zeros. See "Attention Is All You Need",
    section 3.2.2.

    >>> x = torch.ones(2, 5, 8)
    >>> output, weights = nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 5]))
    """

    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """A layer of random weights.

        Args:
            embed_dim: width of the queries and of the output.
            num_heads: number of heads; they divide embed_dim.
            dropout: the probability with which a weight of attention is zeroed in training.
            bias: whether the projections have one.
            add_bias_kv: whether a trained key and value are appended to the sequences.
            add_zero_attn: whether a key and value of zeros are appended to the sequences.
            kdim, vdim: widths of keys and of values; embed_dim if None.
            batch_first: whether inputs and output are [N, T, width].
            device, dtype: of the parameters.

        Raises: ValueError for sizes below 1, AssertionError for heads that do not divide embed_dim.
        """
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                "embed_dim and num_heads must be greater than 0, "
                f"got embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        if self.head_dim * num_heads != embed_dim:
            raise AssertionError("embed_dim must be divisible by num_heads")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}

        def add(name: str, wanted: bool, *shape: int) -> None:
            self.register_parameter(name, Parameter(wt.empty(shape, **factory)) if wanted else None)

        packed = self._qkv_same_embed_dim
        widths = zip("qkv", (embed_dim, self.kdim, self.vdim), strict=True)
        if packed:
            add("in_proj_weight", True, 3 * embed_dim, embed_dim)
        for name, width in widths:
            add(f"{name}_proj_weight", not packed, embed_dim, width)
        if not packed:
            add("in_proj_weight", False)
        add("in_proj_bias", bias, 3 * embed_dim)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, **factory)
        for name in ("bias_k", "bias_v"):
            add(name, add_bias_kv, 1, 1, embed_dim)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"_qkv_same_embed_dim": True, **state})

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        out, weights = _C._private.multi_head_attention(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            batch_first=self.batch_first,
        )
        return out, weights
