"""Encoders: BERT (Devlin et al. 2018), ModernBERT (Warner et al. 2024). B batch, T tokens, C width."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from warptape import core as wt

from .. import nn
from .._C import ShapeError
from ..core import Tensor
from ..distributed import checkpoint
from .cache import AttentionMask, Texts
from .config import FULL, SLIDING, EncoderConfig
from .layers import MLP, Attention, activate
from .pretrained import PreTrained
from .rotary import Rotary, Rotation

if TYPE_CHECKING:
    from warptape.core.types import Device


class EncoderOutput(NamedTuple):
    """What an encoder gives: each token's vector [B, T, C], the pooler's [B, C] where there is one, and the
    head's logits where there is one, [B, labels] of texts or [B, T, labels] of tokens.

    Args:
        last_hidden_state, pooler_output, logits: as above.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None
    logits: Tensor | None = None


class EncoderLayer(nn.Module):
    """Attention over all tokens and an MLP, with a norm after each: [B, T, C] -> [B, T, C].

    Args:
        config: sizes.
        **factory: device and dtype.
    """

    def __init__(self, config: EncoderConfig, **factory: Any) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.self_attn = Attention(
            width, heads, heads, width // heads, dropout=config.attention_dropout, **factory
        )
        self.post_attention_layernorm = nn.LayerNorm(width, eps=config.norm_eps, **factory)
        self.mlp = MLP(width, config.intermediate_size, config.hidden_act, **factory)
        self.post_mlp_layernorm = nn.LayerNorm(width, eps=config.norm_eps, **factory)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(
        self, x: Tensor, mask: AttentionMask, rotation: Rotation | None, texts: Texts | None
    ) -> Tensor:
        """[B, T, C] -> [B, T, C].

        Args:
            x: of the layer before.
            mask: where a token sees another.
            rotation: of positions.
            texts: that lie in one row; None: each has its own.
        """
        inside = self.self_attn(x, rotation=rotation, attn_mask=mask, cache=texts)
        x = self.post_attention_layernorm(x + self.dropout(inside))
        return self.post_mlp_layernorm(x + self.dropout(self.mlp(x)))


class PreNormEncoderLayer(nn.Module):
    """Attention and an MLP behind their norms, which add to what they read: [B, T, C] -> [B, T, C].

    Args:
        config: sizes.
        index: of the layer; the first has no norm before its attention.
        **factory: device and dtype.
    """

    def __init__(self, config: EncoderConfig, index: int, **factory: Any) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.input_layernorm = _norm(config, **factory) if index else None
        self.self_attn = Attention(
            width,
            heads,
            heads,
            width // heads,
            qkv_bias=config.qkv_bias,
            o_bias=config.o_bias,
            dropout=config.attention_dropout,
            **factory,
        )
        self.post_attention_layernorm = _norm(config, **factory)
        self.mlp = MLP(
            width,
            config.intermediate_size,
            config.hidden_act,
            gated=config.gated,
            bias=config.mlp_bias,
            **factory,
        )
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(
        self, x: Tensor, mask: AttentionMask, rotation: Rotation | None, texts: Texts | None
    ) -> Tensor:
        """[B, T, C] -> [B, T, C].

        Args:
            x: of the layer before.
            mask: where a token sees another.
            rotation: of positions.
            texts: that lie in one row; None: each has its own.
        """
        inside = x if self.input_layernorm is None else self.input_layernorm(x)
        x = x + self.dropout(self.self_attn(inside, rotation=rotation, attn_mask=mask, cache=texts))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


def _norm(config: EncoderConfig, **factory: Any) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias, **factory)


class EncoderHead(nn.Module):
    """Logits of labels of states: [.., C] -> [.., labels].

    Args:
        config: says its parts.
        **factory: device and dtype.
    """

    def __init__(self, config: EncoderConfig, **factory: Any) -> None:
        super().__init__()
        width, self.act = config.hidden_size, config.head_act
        before = config.norm_placement == "before"
        self.dense: nn.Linear | None = None
        if self.act is not None:
            self.dense = nn.Linear(width, width, bias=config.head_bias or not before, **factory)
        self.norm = _norm(config, **factory) if before and self.dense is not None else None
        self.dropout = nn.Dropout(config.residual_dropout)
        self.out = nn.Linear(width, len(config.labels), **factory)

    def forward(self, x: Tensor) -> Tensor:
        """[.., C] -> [.., labels].

        Args:
            x: states.
        """
        if self.dense is not None and self.act is not None:
            x = self.dense(x)
            x = wt.tanh(x) if self.act == "tanh" else activate(self.act, x)
        if self.norm is not None:
            x = self.norm(x)
        return self.out(self.dropout(x))


class Encoder(PreTrained):
    """Tokens [B, T] -> vectors [B, T, C], and logits where the config has a task.

    Args:
        dtype, device: of the parameters.
    """

    config_class = EncoderConfig

    def __init__(
        self, config: EncoderConfig, *, dtype: wt.dtype | None = None, device: Device = None
    ) -> None:
        super().__init__(config)
        factory: dict[str, Any] = {"dtype": dtype, "device": device}
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, **factory)
        self.embed_positions: nn.Embedding | None = None
        self.embed_token_types: nn.Embedding | None = None
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, width, **factory)
            self.embed_token_types = nn.Embedding(config.type_vocab_size, width, **factory)
        self.embed_norm = _norm(config, **factory)
        self.dropout = nn.Dropout(config.residual_dropout)
        before, layers = config.norm_placement == "before", range(config.num_hidden_layers)
        self.layers = nn.ModuleList(
            PreNormEncoderLayer(config, i, **factory) if before else EncoderLayer(config, **factory)
            for i in layers
        )
        self.norm = _norm(config, **factory) if before else None
        self.pooler = nn.Linear(width, width, **factory) if config.pooler else None
        self.head = EncoderHead(config, **factory) if config.task is not None else None
        if not self.embed_tokens.weight.is_meta:
            self.reset_parameters()

    @classmethod
    def _completed(cls, config: Any, folder: str | os.PathLike[str]) -> Any:
        return replace(config, pooler=any("pooler." in name for name in checkpoint.tensor_names(folder)))

    def _positions(self, input_ids: Tensor) -> Tensor:
        """Of tokens [B, T]."""
        if not self.config.positions_behind_padding:
            return wt.arange(input_ids.shape[1], device=input_ids.device)
        there = input_ids != self.config.pad_token_id
        return there.cumsum(1) * there + self.config.pad_token_id

    def _positions_of(self, input_ids: Tensor, ends: Sequence[int]) -> Tensor:
        """Of the tokens of several texts in one row, [1, N]."""
        every = [self._positions(input_ids[:, a:b]).flatten() for a, b in zip((0, *ends), ends)]
        return wt.cat(every).unsqueeze(0)

    def _check(self, input_ids: Tensor, lengths: Sequence[int] | None, **like: Tensor | None) -> None:
        if input_ids.ndim != 2:
            raise ShapeError(f"Encoder: expected tokens [B, T], got {list(input_ids.shape)}")
        for name, tensor in like.items():
            if tensor is not None and tensor.shape != input_ids.shape:
                raise ShapeError(
                    f"Encoder: expected {name} {list(input_ids.shape)}, got {list(tensor.shape)}"
                )
        if lengths is not None and (input_ids.shape != (1, sum(lengths)) or min(lengths, default=0) < 1):
            raise ShapeError(
                f"Encoder: texts of {list(lengths)!r:.100} tokens need a row of all, at least one of each; "
                f"got tokens {list(input_ids.shape)}"
            )
        tokens, most = max(lengths or [input_ids.shape[1]]), self.config.context
        if tokens > most:
            raise ValueError(f"Encoder: {tokens} tokens are more than its positions, {most}")

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> EncoderOutput:
        """Vectors of tokens [B, T].

        Args:
            token_type_ids: [B, T], None: all 0; models with rotary positions have none.
            attention_mask: [B, T], True or 1 where there is a token and not padding; None: everywhere.
            positions: [T] or [B, T]; None: from 0, or, where positions lie behind padding, from pad_token_id
                + 1 for the tokens that are no padding.
            lengths: of texts that lie one behind the other in the one row of `input_ids`, [1, N]; None: each
                row is a text. So no text is padded. What is of a text is then [texts, ..], what is of a token
                [1, N, ..]. Layers packed for inference give each text the bits that it gets alone.

        Raises: ShapeError for other shapes, ValueError for more tokens than there are positions, IndexError
        for numbers beyond the vocabulary, the token types and the positions.
        """
        self._check(input_ids, lengths, token_type_ids=token_type_ids, attention_mask=attention_mask)
        if lengths is not None and attention_mask is not None:
            raise ValueError("Encoder: texts in one row have no padding, and no attention_mask")
        ends = None if lengths is None else [*accumulate(lengths)]
        if positions is None:
            positions = self._positions(input_ids) if ends is None else self._positions_of(input_ids, ends)
        x = self._embedded(input_ids, token_type_ids, positions)
        there = None if attention_mask is None else attention_mask.bool()  # [B, T]
        seen = self._seen(there, positions, x.dtype, lengths is not None)
        texts = None if lengths is None else Texts(lengths, x.device)
        for layer, kind in zip(self.layers, self.config.layer_types or [FULL] * len(self.layers)):
            x = layer(x, *seen[kind], texts)
        if self.norm is not None:
            x = self.norm(x)
        pooled = None
        if self.pooler is not None:
            pooled = wt.tanh(self.pooler(self._first(x, ends)))
        return EncoderOutput(x, pooled, self._logits(x, pooled, there, ends))

    def _embedded(self, input_ids: Tensor, token_type_ids: Tensor | None, positions: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        if self.embed_positions is not None and self.embed_token_types is not None:
            types = wt.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x = x + self.embed_token_types(types) + self.embed_positions(positions)
        elif token_type_ids is not None:
            raise ValueError(f"Encoder: a {self.config.architecture} model has no token types")
        return self.dropout(self.embed_norm(x))

    @staticmethod
    def _first(x: Tensor, ends: Sequence[int] | None) -> Tensor:
        """The state of each text's first token, [texts, C]."""
        return x[:, 0] if ends is None else x[0, wt.tensor([0, *ends[:-1]], device=x.device)]

    def _logits(
        self, x: Tensor, pooled: Tensor | None, there: Tensor | None, ends: Sequence[int] | None
    ) -> Tensor | None:
        if self.head is None:
            return None
        if self.config.task == "token":
            return self.head(x)
        if pooled is not None:
            return self.head(pooled)
        if self.config.head_pooling == "cls":
            return self.head(self._first(x, ends))
        if ends is not None:
            means = wt.stack([x[0, a:b].mean(0) for a, b in zip((0, *ends), ends)])
        elif there is not None:
            weights = there.unsqueeze(-1).to(x.dtype)  # [B, T, 1]
            means = (x * weights).sum(1) / weights.sum(1)
        else:
            means = x.mean(1)
        return self.head(means)

    def _seen(
        self, there: Tensor | None, positions: Tensor, dtype: wt.dtype, in_one_row: bool
    ) -> dict[str, tuple[AttentionMask, Rotation | None]]:
        """For each type of layers what tokens see, and how heads are turned."""
        config = self.config
        turned: tuple[Rotation | None, Rotation | None] = (None, None)
        if config.positions == "rotary":
            width = config.hidden_size // config.num_attention_heads
            every = Rotary(width, config.rope_theta, config.rope_scaling, config.max_position_embeddings)
            near = Rotary(width, config.local_rope_theta, None)
            turned = every(positions, dtype), near(positions, dtype)
        mask = None if there is None else there[:, None, None, :]
        seen = {FULL: (AttentionMask(mask), turned[0])}
        if in_one_row:
            return {**seen, SLIDING: (AttentionMask(window=config.sliding_window), turned[1])}
        if config.sliding_window is not None:
            distance = (positions.unsqueeze(-1) - positions.unsqueeze(-2)).abs()  # [.., T, T]
            window = distance <= config.sliding_window
            window = window.unsqueeze(1) if window.ndim == 3 else window  # for all heads
            seen[SLIDING] = AttentionMask(window if mask is None else mask & window), turned[1]
        return seen
