"""Parts that decoders and encoders share.

B batch, T tokens, S keys, C width, H heads, K key heads, D head_dim.
"""

from __future__ import annotations

import math
from typing import Any

from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..nn import functional as F
from .cache import ALL, PLAIN, AttentionMask, KVCache, PagedCache, Scoring, Texts, attend
from .rotary import Rotation, rotate


def activate(name: str, x: Tensor) -> Tensor:
    """The activation of that name, one of config.ACTIVATIONS.

    Args:
        name: as "silu".
        x: any shape.

    >>> from warptape.models.layers import activate
    >>> activate("relu", torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    if name == "silu":
        return F.silu(x)
    if name == "relu":
        return F.relu(x)
    if name == "quick_gelu":
        return x * wt.sigmoid(1.702 * x)
    return F.gelu(x, approximate="none" if name == "gelu" else "tanh")


class PlusOneRMSNorm(nn.Module):
    """An RMSNorm that multiplies by 1 + weight, in float32, as Gemma's does.

    Args:
        size: of the last dim.
        eps: added to the mean square.
        factory: device and dtype of the weight.
    """

    def __init__(self, size: int, eps: float = 1e-6, **factory: Any) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(wt.zeros(size, **factory))

    def forward(self, x: Tensor) -> Tensor:
        """The norm, of x's dtype.

        Args:
            x: [.., size].
        """
        weight = self.weight.float() + 1
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)


#: Kinds of norms by the names that a config has for them.
NORMS = {"rms_norm": nn.RMSNorm, "rms_norm_plus_one": PlusOneRMSNorm, "layer_norm": nn.LayerNorm}


class Attention(nn.Module):
    """Self-attention with grouped heads: [B, T, C] -> [B, T, C].

    Queries, keys and values come from one product, in this order: `qkv_proj.weight` is [(H + 2 K) D, C].

    Args:
        norm: a kind of NORMS, for the queries and keys of each head; None: there are none.
        norm_all: whether a norm is over all heads at once.
        norm_eps: of these norms.
        dropout: of the probabilities, in training.
        by_head: whether the rows of qkv_proj are sorted by heads.
        interleaved: which numbers of a head rotary positions turn together: see `rotate`.
        scale: what scores are multiplied by; None: 1 / sqrt(D).
        cap: c of c * tanh(score / c); None: there is none.
        sinks: whether each head has a score more, `sinks` [H], that has a weight and no value.
        factory: device and dtype of the parameters.
    """

    cap: float | None
    sinks: nn.Parameter | None

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool = True,
        o_bias: bool = True,
        norm: str | None = None,
        norm_all: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        by_head: bool = False,
        interleaved: bool = False,
        scale: float | None = None,
        cap: float | None = None,
        sinks: bool = False,
        **factory: Any,
    ) -> None:
        super().__init__()
        self._attends(heads, kv_heads, head_dim, dropout, interleaved, scale)
        self.norm_all, self.by_head, self.cap = norm_all, by_head, cap
        self.sinks = nn.Parameter(wt.zeros(heads, **factory)) if sinks else None
        self.qkv_proj = nn.Linear(width, (heads + 2 * kv_heads) * head_dim, bias=qkv_bias, **factory)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=o_bias, **factory)
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        if norm is not None:
            self.q_norm = NORMS[norm](head_dim * (heads if norm_all else 1), eps=norm_eps, **factory)
            self.k_norm = NORMS[norm](head_dim * (kv_heads if norm_all else 1), eps=norm_eps, **factory)

    def _attends(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dropout: float,
        interleaved: bool,
        scale: float | None,
    ) -> None:
        """Says how queries meet keys, whatever these are made by."""
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.dropout, self.interleaved = dropout, interleaved
        # Kernels divide by the root of D, so that queries are multiplied by the rest.
        self.query_scale = 1.0 if scale is None else scale * math.sqrt(head_dim)
        self.cap = self.sinks = None

    def _heads(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, D] of [B, T, C], normed and turned."""
        B, T, _ = x.shape
        if self.by_head:
            q, k, v = self.qkv_proj(x).reshape(B, T, self.heads, 3, self.head_dim).unbind(3)
        else:
            sizes = [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]
            q, k, v = self.qkv_proj(x).split(sizes, -1)
        if self.norm_all and self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.reshape(B, T, -1, self.head_dim).transpose(1, 2) for part in (q, k, v))
        if not self.norm_all and self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotate(q, rotation, self.interleaved), rotate(k, rotation, self.interleaved)
        return q, k, v

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        *,
        rotation: Rotation | None = None,
        attn_mask: AttentionMask = ALL,
        cache: KVCache | PagedCache | Texts | None = None,
        layer: int = 0,
    ) -> Tensor:
        """[B, T, C] -> [B, T, C]; `cache` gets the keys and values as those of `layer`.

        Args:
            x: of the layer before.
            rotation: of positions; None for learned ones.
            attn_mask: what queries see.
            cache: None for none; Texts for several texts in one row.
            layer: its number.
        """
        q, k, v = self._heads(x, rotation)
        if self.query_scale != 1:
            q = q * self.query_scale
        dropout = self.dropout if self.training else 0.0
        plain = self.cap is None and self.sinks is None
        scoring = PLAIN if plain else Scoring(self.cap, self.sinks)
        if cache is not None:
            y = cache.attend(layer, q, k, v, attn_mask, dropout, scoring)
        else:
            y = attend(q, k, v, attn_mask, dropout, scoring)
        return self.o_proj(self._joined(y))

    def _joined(self, y: Tensor) -> Tensor:
        """[B, H, T, D] -> [B, T, H D]"""
        return y.transpose(1, 2).flatten(2)


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
        """[B, T, C] -> [B, T, C].

        Args:
            x: of the layer before.
        """
        if not self.gated:
            return self.down_proj(activate(self.activation, self.up_proj(x)))
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(activate(self.activation, gate) * up)
