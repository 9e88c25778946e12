"""The layers of "Attention Is All You Need", section 3. Legend: N batch, S source, T target, E features;
sequences are [S, N, E], [N, S, E] with `batch_first`, or lack N.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor

from .. import functional as F
from .. import init
from .activation import GELU, ReLU
from .container import ModuleList
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .multihead import MultiheadAttention
from .normalization import LayerNorm

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]


def _square_mask(size: int, device: Device = None, dtype: wt.dtype | None = None) -> Tensor:
    return wt.full((size, size), -math.inf, dtype=dtype, device=device).triu(1)


def _is_causal(mask: Tensor | None, said: bool | None, x: Tensor, batch_first: bool) -> bool:
    """What the caller said, else whether the mask hides exactly the later positions of `x`."""
    if said is not None or mask is None:
        return said is True
    size = int(x.shape[1 if batch_first and x.dim() == 3 else 0])
    causal = _square_mask(size, mask.device, mask.dtype)
    return mask.shape == causal.shape and bool((mask == causal).all())


def _activation(name: str | Callable[[Tensor], Tensor]) -> Any:
    if not isinstance(name, str):
        return name
    if name not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {name}")
    return getattr(F, name)


def _copies(module: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(module) for _ in range(count)])


class _Layer(Module):
    """What both kinds of layer share: each of `_blocks` is added to its input, normalised before or after."""

    _blocks: int

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """A layer of random weights.

        Args:
            d_model: width of the input and of the output.
            nhead: heads of attention; they divide d_model.
            dim_feedforward: width between the two linear layers.
            dropout: probability with which elements are zeroed.
            activation: "relu", "gelu" or a function of a tensor, between the two linear layers.
            layer_norm_eps: `eps` of the norms.
            batch_first: whether inputs are [N, S, d_model].
            norm_first: whether norms stand before the parts, not behind.
            bias: whether linear layers and norms have one.

        Args:
            device, dtype: of the parameters.
        """
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        names = ("self_attn", "multihead_attn")[: self._blocks - 1]
        for name in names:
            setattr(
                self,
                name,
                MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **factory),
            )
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **factory)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **factory)
        self.norm_first = norm_first
        for i in range(1, self._blocks + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory))
        for i in range(1, self._blocks + 1):
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = act = _activation(activation)
        is_relu, is_gelu = act is F.relu or isinstance(act, ReLU), act is F.gelu or isinstance(act, GELU)
        self.activation_relu_or_gelu = 1 if is_relu else 2 if is_gelu else 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"activation": F.relu, **state})

    def _attended(self, attention: Module, drop: Module, x: Tensor, memory: Tensor, *masks: Any) -> Tensor:
        mask, padding, is_causal = masks
        out = attention(
            x,
            memory,
            memory,
            attn_mask=mask,
            key_padding_mask=padding,
            is_causal=is_causal,
            need_weights=False,
        )[0]
        return drop(out)

    def _sa_block(
        self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool = False
    ) -> Tensor:
        return self._attended(self.self_attn, self.dropout1, x, x, attn_mask, key_padding_mask, is_causal)

    def _ff(self, x: Tensor, drop: Module) -> Tensor:
        return drop(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoderLayer(_Layer):
    """[S, N, d_model] -> the same: self-attention, then two linear layers around `activation`.

    Each is added to its input; layer normalisation follows, or goes first with `norm_first` ("On Layer
    Normalization in the Transformer Architecture", section 3.1).

    >>> nn.TransformerEncoderLayer(8, 2, batch_first=True)(torch.ones(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    _blocks = 2

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        names = ("src_key_padding_mask", "src_mask")
        padding = _C._private._additive_mask(src_key_padding_mask, names[0], src_mask, names[1], src.dtype)
        mask = _C._private._additive_mask(src_mask, names[1], None, "", src.dtype)
        if self.norm_first:
            x = src + self._sa_block(self.norm1(src), mask, padding, is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(src + self._sa_block(src, mask, padding, is_causal))
        return self.norm2(x + self._ff_block(x))

    def _ff_block(self, x: Tensor) -> Tensor:
        return self._ff(x, self.dropout2)


class TransformerDecoderLayer(_Layer):
    """[T, N, d_model] and memory [S, N, d_model] -> [T, N, d_model]: self-attention, attention to the
    memory, then two linear layers; each is added to its input and normalised as in the encoder's layer.

    >>> layer, memory = nn.TransformerDecoderLayer(8, 2, batch_first=True), torch.ones(2, 7, 8)
    >>> layer(torch.ones(2, 5, 8), memory).shape
    torch.Size([2, 5, 8])
    """

    _blocks = 3

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        other = (memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        if self.norm_first:
            x = tgt + self._sa_block(self.norm1(tgt), *own)
            x = x + self._mha_block(self.norm2(x), *other)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(tgt + self._sa_block(tgt, *own))
        x = self.norm2(x + self._mha_block(x, *other))
        return self.norm3(x + self._ff_block(x))

    def _mha_block(
        self,
        x: Tensor,
        mem: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        masks = (attn_mask, key_padding_mask, is_causal)
        return self._attended(self.multihead_attn, self.dropout2, x, mem, *masks)

    def _ff_block(self, x: Tensor) -> Tensor:
        return self._ff(x, self.dropout3)


def _why_not_nested(layer: Module) -> str:
    """Why PyTorch would not turn padded batches of this layer into nested tensors; "" where it would."""
    name = "encoder_layer"
    if not isinstance(layer, TransformerEncoderLayer):
        return f"{name} was not TransformerEncoderLayer"
    attention = layer.self_attn
    reasons = [
        (layer.norm_first, f"{name}.norm_first was True"),
        (
            not attention.batch_first,
            f"{name}.self_attn.batch_first was not True(use batch_first for better inference performance)",
        ),
        (not attention._qkv_same_embed_dim, f"{name}.self_attn._qkv_same_embed_dim was not True"),
        (attention.in_proj_bias is None, f"{name}.self_attn was passed bias=False"),
        (not layer.activation_relu_or_gelu, f"{name}.activation_relu_or_gelu was not True"),
        (layer.norm1.eps != layer.norm2.eps, f"{name}.norm1.eps was not equal to {name}.norm2.eps"),
        (attention.num_heads % 2 == 1, f"{name}.self_attn.num_heads is odd"),
    ]
    return next((reason for holds, reason in reasons if holds), "")


class TransformerEncoder(Module):
    """`num_layers` copies of a layer, one after the other, then `norm`; [S, N, E] -> [S, N, E].

    The copies start with the same weights. `enable_nested_tensor` and `mask_check` are accepted: padded
    positions are always computed, and hidden by the mask.

    Args:
        encoder_layer: the layer that is copied.
        num_layers: how many copies there are.
        norm: a last module, as LayerNorm(E) where layers normalise first.
        enable_nested_tensor, mask_check: without effect.

    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 3, enable_nested_tensor=False)
    >>> encoder(torch.ones(5, 2, 8)).shape
    torch.Size([5, 2, 8])
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm
        why_not = _why_not_nested(encoder_layer)
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check
        self.use_nested_tensor = enable_nested_tensor and not why_not
        if enable_nested_tensor and why_not:
            warnings.warn(
                "enable_nested_tensor is True, but self.use_nested_tensor is False because " + why_not,
                stacklevel=2,
            )

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        padding = _C._private._additive_mask(
            src_key_padding_mask, "src_key_padding_mask", mask, "mask", src.dtype
        )
        mask = _C._private._additive_mask(mask, "mask", None, "", src.dtype)
        first = self.layers[0] if len(self.layers) else None
        batch_first = first is not None and first.self_attn.batch_first
        causal = _is_causal(mask, is_causal, src, batch_first)
        for layer in self.layers:
            src = layer(src, src_mask=mask, is_causal=causal, src_key_padding_mask=padding)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """`num_layers` copies of a layer, which all see one memory, then `norm`; [T, N, E] -> the same.

    The copies start with the same weights.

    Args:
        decoder_layer: the layer that is copied.
        num_layers: how many copies there are.
        norm: a last module, as LayerNorm(E) where layers normalise first.

    >>> decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2), 3)
    >>> decoder(torch.ones(5, 2, 8), torch.ones(7, 2, 8)).shape
    torch.Size([5, 2, 8])
    """

    def __init__(
        self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None
    ) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        batch_first = len(self.layers) > 0 and self.layers[0].self_attn.batch_first
        causal = _is_causal(tgt_mask, tgt_is_causal, tgt, batch_first)
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=causal,
                memory_is_causal=memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder of src [S, N, d_model] and a decoder of tgt [T, N, d_model] that sees what the encoder
    returns -> [T, N, d_model]. All matrices start xavier_uniform.

    Args:
        d_model: width of all inputs and outputs.
        nhead: heads of attention; they divide d_model.
        num_encoder_layers, num_decoder_layers: how many layers each half has.
        dim_feedforward: width between the two linear layers.
        dropout: probability with which elements are zeroed.
        activation: "relu", "gelu" or a function of a tensor.
        custom_encoder, custom_decoder: modules in place of the halves.
        layer_norm_eps: `eps` of the norms.
        batch_first: whether N is the first dimension.
        norm_first: whether norms stand before the parts, not behind.
        bias: whether linear layers and norms have one.
        device, dtype: of the parameters.

    >>> model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    >>> mask = nn.Transformer.generate_square_subsequent_mask(5)
    >>> model(torch.ones(2, 7, 8), torch.ones(2, 5, 8), tgt_mask=mask).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        custom_encoder: Any | None = None,
        custom_decoder: Any | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__()
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first)
        more = (norm_first, bias, device, dtype)
        norm: dict[str, Any] = {"eps": layer_norm_eps, "bias": bias, "device": device, "dtype": dtype}
        if custom_encoder is not None:
            self.encoder = custom_encoder
        else:
            encoder_layer = TransformerEncoderLayer(*layer, *more)
            self.encoder = TransformerEncoder(encoder_layer, num_encoder_layers, LayerNorm(d_model, **norm))
        if custom_decoder is not None:
            self.decoder = custom_decoder
        else:
            decoder_layer = TransformerDecoderLayer(*layer, *more)
            self.decoder = TransformerDecoder(decoder_layer, num_decoder_layers, LayerNorm(d_model, **norm))
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        batch = 0 if self.batch_first else 1
        if src.dim() == 3 and src.shape[batch] != tgt.shape[batch]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: Device = None, dtype: wt.dtype | None = None
    ) -> Tensor:
        """[sz, sz]: minus infinity above the diagonal, 0 elsewhere: no position sees a later one.

        Args:
            sz: the number of positions, T.
            device, dtype: of the mask.

        >>> nn.Transformer.generate_square_subsequent_mask(2)
        tensor([[0., -inf],
                [0., 0.]])
        """
        return _square_mask(sz, device, dtype)

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.dim() > 1:
                init.xavier_uniform_(parameter)
