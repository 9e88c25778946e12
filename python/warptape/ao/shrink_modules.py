"""Modules after their parameters became smaller: the numbers that they keep, and narrow attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..nn import Module, MultiheadAttention
from ..nn import functional as F

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["NarrowMultiheadAttention", "refresh", "set_heads"]

_HEADS = ("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads")
_KEY_HEADS = ("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads")


class NarrowMultiheadAttention(Module):
    """nn.MultiheadAttention with fewer heads than embed_dim / head_dim; arguments and results are its own.

    Q heads of head_dim: in_proj_weight is [3 Q head_dim, embed_dim], out_proj.weight [embed_dim, Q head_dim].
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, head_dim
        self.dropout, self.batch_first = dropout, batch_first
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        inner = num_heads * head_dim
        self.in_proj_weight = nn.Parameter(wt.empty(3 * inner, embed_dim, **factory))
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.register_parameter(
            "in_proj_bias", nn.Parameter(wt.zeros(3 * inner, **factory)) if bias else None
        )
        self.out_proj = nn.Linear(inner, embed_dim, bias=bias, **factory)

    @classmethod
    def of(cls, old: nn.Module, num_heads: int) -> NarrowMultiheadAttention:
        """The module with an nn.MultiheadAttention's parameters, which are cut already.

        Args:
            old: what it replaces.
            num_heads: how many are left.
        """
        layer = cls.__new__(cls)
        Module.__init__(layer)
        layer.embed_dim, layer.num_heads, layer.head_dim = old.embed_dim, num_heads, old.head_dim
        layer.dropout, layer.batch_first, layer.training = old.dropout, old.batch_first, old.training
        layer.in_proj_weight = old.in_proj_weight
        layer.register_parameter("in_proj_bias", old.in_proj_bias)
        layer.out_proj = old.out_proj
        return layer

    def _mask(self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, x: Tensor) -> Tensor | None:
        """Both masks as one to add, [.., T, S]."""

        def added(mask: Tensor) -> Tensor:
            if mask.dtype != wt.bool:
                return mask
            return wt.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(mask, float("-inf"))

        mask = None if attn_mask is None else added(attn_mask)
        if mask is not None and mask.ndim == 3:
            mask = mask.unflatten(0, (-1, self.num_heads))
        if key_padding_mask is not None:
            hidden = added(key_padding_mask)[..., None, None, :]
            mask = hidden if mask is None else mask + hidden
        return mask

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
        """As nn.MultiheadAttention's. A mask of heads has as many as there are.

        Args:
            query, key, value: as of nn.MultiheadAttention.
            key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal: as of
                nn.MultiheadAttention.
        """
        turned = query.ndim == 3 and not self.batch_first
        weights = self.in_proj_weight.chunk(3)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x.transpose(0, 1) if turned else x, w, b)
            .unflatten(-1, (self.num_heads, self.head_dim))
            .transpose(-2, -3)
            for x, w, b in zip((query, key, value), weights, biases)
        )
        mask = self._mask(attn_mask, key_padding_mask, q)
        p = self.dropout if self.training else 0.0
        shares = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) / self.head_dim**0.5
            shares = (scores if mask is None else scores + mask).softmax(-1)
            y = F.dropout(shares, p) @ v
            shares = shares.mean(-3) if average_attn_weights else shares
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        y = self.out_proj(y.transpose(-2, -3).flatten(-2))
        return y.transpose(0, 1) if turned else y, shares


def refresh(module: Module, old: tuple[int, ...] | None) -> None:
    """Sets the numbers of channels that a module keeps from its weight, which was of shape `old`.

    Args:
        module: with a weight that is smaller now.
        old: None where it had none.
    """
    weight = getattr(module, "weight", None)
    if weight is None and isinstance(getattr(module, "running_mean", None), Tensor):
        module.__dict__["num_features"] = len(module.running_mean)
    if not isinstance(weight, Tensor) or old is None or tuple(weight.shape) == old:
        return
    target = module.__dict__
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        target["groups"] = module.groups if module.groups == 1 else module.groups * weight.shape[0] // old[0]
        target["out_channels"] = weight.shape[0]
        target["in_channels"] = weight.shape[1] * target["groups"]
    elif isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        target["in_channels"], target["out_channels"] = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, nn.Linear):
        target["out_features"], target["in_features"] = weight.shape
    elif isinstance(module, nn.GroupNorm):
        target["num_groups"] = module.num_groups * weight.shape[0] // old[0]
        target["num_channels"] = weight.shape[0]
    elif isinstance(module, nn.Embedding):
        target["embedding_dim"] = weight.shape[1]
    elif isinstance(module, nn.PReLU):
        target["num_parameters"] = weight.shape[0]
    elif hasattr(module, "num_features"):  # batch norms
        target["num_features"] = weight.shape[0]


def set_heads(module: Module, old: tuple[int, int], new: tuple[int, int]) -> None:
    """Sets an attention's numbers of heads, and of heads of keys, where it keeps them under a usual name.

    Args:
        module: the attention.
        old, new: heads of queries and of keys.
    """
    if isinstance(module, MultiheadAttention):
        raise NotImplementedError("nn.MultiheadAttention is replaced, not changed")
    for names, before, after in ((_HEADS, old[0], new[0]), (_KEY_HEADS, old[1], new[1])):
        for name in names:
            if module.__dict__.get(name) == before:
                module.__dict__[name] = after
