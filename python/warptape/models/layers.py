"""Parts that decoders and encoders share.

B batch, T tokens, S keys, C width, H heads, K key heads, D head_dim.
"""

from __future__ import annotations

from typing import Any

from .. import nn
from .._tensor import Tensor
from ..nn import functional as F
from .cache import ALL, KVCache, PagedCache, Sight, attend
from .rotary import Rotation, rotate


def activate(name: str, x: Tensor) -> Tensor:
    """The activation of that name, one of config.ACTIVATIONS."""
    if name == "silu":
        return F.silu(x)
    if name == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="none" if name == "gelu" else "tanh")


class Attention(nn.Module):
    """Self-attention with grouped heads: [B, T, C] -> [B, T, C].

    Queries, keys and values come from one product, in this order: `qkv_proj.weight` is [(H + 2 K) D, C].

    Args:
        norm_eps: of the RMSNorms of each head's queries and keys; None: there are none.
        dropout: of the probabilities, in training.
        factory: device and dtype of the parameters.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool = True,
        o_bias: bool = True,
        norm_eps: float | None = None,
        dropout: float = 0.0,
        **factory: Any,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.dropout = heads, kv_heads, head_dim, dropout
        self.qkv_proj = nn.Linear(width, (heads + 2 * kv_heads) * head_dim, bias=qkv_bias, **factory)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=o_bias, **factory)
        normed = norm_eps is not None
        self.q_norm = nn.RMSNorm(head_dim, eps=norm_eps, **factory) if normed else None
        self.k_norm = nn.RMSNorm(head_dim, eps=norm_eps, **factory) if normed else None

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        *,
        rotation: Rotation | None = None,
        sight: Sight = ALL,
        cache: KVCache | PagedCache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """[B, T, C] -> [B, T, C]; `cache` gets the keys and values as those of `layer`."""
        B, T, _ = x.shape
        sizes = [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]
        parts = self.qkv_proj(x).split(sizes, -1)
        q, k, v = (part.reshape(B, T, -1, self.head_dim).transpose(1, 2) for part in parts)  # [B, H, T, D]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        dropout = self.dropout if self.training else 0.0
        if cache is not None:
            y = cache.attend(layer, q, k, v, sight, dropout)
        else:
            y = attend(q, k, v, sight, dropout)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    """down(act(up(x))), or down(act(gate(x)) * up(x)): [B, T, C] -> [B, T, C].

    Gate and up come from one product, in this order: `gate_up_proj.weight` is [2 inner, C].
    """

    def __init__(
        self,
        width: int,
        inner: int,
        activation: str,
        *,
        gated: bool = False,
        bias: bool = True,
        **factory: Any,
    ) -> None:
        super().__init__()
        self.activation, self.gated = activation, gated
        if gated:
            self.gate_up_proj = nn.Linear(width, 2 * inner, bias=bias, **factory)
        else:
            self.up_proj = nn.Linear(width, inner, bias=bias, **factory)
        self.down_proj = nn.Linear(inner, width, bias=bias, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        if not self.gated:
            return self.down_proj(activate(self.activation, self.up_proj(x)))
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(activate(self.activation, gate) * up)
