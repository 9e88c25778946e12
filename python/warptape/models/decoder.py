"""One decoder for GPT-2, Llama, Mistral and Qwen, that is trained and served.

B batch, T tokens, S keys seen, C width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import warptape

from .. import nn
from .._C import ShapeError
from .._tensor import Tensor
from .cache import KVCache, PagedCache, Sight, causal_sight
from .config import SLIDING, DecoderConfig
from .layers import MLP, Attention
from .pretrained import PreTrained
from .rotary import Rotary, Rotation

Cache = KVCache | PagedCache


def _norm(config: DecoderConfig, **factory: Any) -> nn.Module:
    kind = nn.RMSNorm if config.norm == "rms_norm" else nn.LayerNorm
    return kind(config.hidden_size, eps=config.norm_eps, **factory)


class DecoderLayer(nn.Module):
    """Attention and an MLP, each after a norm and added to what came in: [B, T, C] -> [B, T, C]."""

    def __init__(self, config: DecoderConfig, **factory: Any) -> None:
        super().__init__()
        self.input_layernorm = _norm(config, **factory)
        self.self_attn = Attention(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            qkv_bias=config.qkv_bias,
            o_bias=config.o_bias,
            norm_eps=config.norm_eps if config.qk_norm else None,
            dropout=config.attention_dropout,
            **factory,
        )
        self.post_attention_layernorm = _norm(config, **factory)
        self.mlp = MLP(
            config.hidden_size,
            config.intermediate_size,
            config.hidden_act,
            gated=config.gated,
            bias=config.mlp_bias,
            **factory,
        )
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(
        self, x: Tensor, rotation: Rotation | None, sight: Sight, cache: Cache | None, layer: int
    ) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        y = self.self_attn(self.input_layernorm(x), rotation=rotation, sight=sight, cache=cache, layer=layer)
        x = x + self.dropout(y)
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(PreTrained):
    """A language model: tokens [B, T] -> logits [B, T, V].

    Args:
        dtype, device: of the parameters.
    """

    config_class = DecoderConfig
    pipeline_stage: Any = None  # of a model that is split by its layers: warptape.inference

    def __init__(self, config: DecoderConfig, *, dtype: Any = None, device: Any = None) -> None:
        super().__init__(config)
        factory = {"dtype": dtype, "device": device}
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, **factory)
        self.embed_positions: nn.Embedding | None = None
        self._rotary: Rotary | None = None
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size, **factory)
        else:
            self._rotary = Rotary(config.head_dim, config.rope_theta, config.rope_scaling)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(DecoderLayer(config, **factory) for _ in range(config.num_hidden_layers))
        self.norm = _norm(config, **factory)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, **factory)
        self.tie_weights()
        if not self.embed_tokens.weight.is_meta:
            self.reset_parameters()

    def tie_weights(self) -> None:
        """Gives the head the token embedding's parameter where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def _positions(self, input_ids: Tensor, cache: Cache | None, positions: Tensor | None) -> Tensor:
        """The positions of tokens, once these have proved to be of a shape for which there is room."""
        if input_ids.ndim != 2 or input_ids.shape[1] == 0:
            raise ShapeError(f"Decoder: expected tokens [B, T] with T > 0, got {list(input_ids.shape)}")
        batch, tokens = input_ids.shape
        most, reach = self.config.max_position_embeddings, tokens
        if cache is not None:
            reach = cache.check(batch, tokens)
        if self.embed_positions is not None and reach > most:
            raise ValueError(f"Decoder: {reach} tokens are more than max_position_embeddings, {most}")
        if positions is None:
            if cache is not None:
                return cache.positions(tokens, input_ids.device)
            return warptape.arange(tokens, device=input_ids.device)
        if tuple(positions.shape) not in ((tokens,), (batch, tokens)):
            raise ShapeError(
                f"Decoder: expected positions [{tokens}] or [{batch}, {tokens}], got {list(positions.shape)}"
            )
        return positions

    def _sight(self, kind: str, tokens: int, cache: Cache | None, device: Any) -> Sight:
        """What tokens see in layers of a type."""
        window = self.config.sliding_window if kind == SLIDING else None
        return (
            causal_sight(tokens, 0, window, device) if cache is None else cache.sight(tokens, window, device)
        )

    def hidden(
        self, input_ids: Tensor, *, cache: Cache | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """What the head is applied to, [B, T, C]. Arguments and errors are forward()'s."""
        positions = self._positions(input_ids, cache, positions)
        return self.norm(self.through(self.embed(input_ids, positions), positions, cache))

    def embed(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """What the first layer gets of tokens [B, T] at these positions, [B, T, C]."""
        x = self.embed_tokens(input_ids)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions)
        return self.dropout(x)

    def through(self, x: Tensor, positions: Tensor, cache: Cache | None = None) -> Tensor:
        """What the layers make of [B, T, C], which come after what is in the cache."""
        tokens = x.shape[1]
        rotation = None if self._rotary is None else self._rotary(positions, x.dtype)
        kinds = {self.config.layer_type(i) for i in range(len(self.layers))}
        seen = {kind: self._sight(kind, tokens, cache, x.device) for kind in kinds}
        for i, layer in enumerate(self.layers):
            x = layer(x, rotation, seen[self.config.layer_type(i)], cache, i)
        if cache is not None:
            cache.advance(tokens)
        return x

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, *, cache: Cache | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Logits [B, T, V] of the tokens after each of [B, T].

        Args:
            cache: has the tokens before these, and gets these. Under no_grad() only. With a PagedCache the
                tokens are those of its step, [1, N].
            positions: [T] or [B, T], of these tokens; None: they follow those in the cache. A query sees the
                keys that come before it in the sequence, whatever their positions.

        Raises: ShapeError for other shapes, ValueError for tokens that the cache or the learned positions
        have no room for, IndexError for tokens beyond the vocabulary.
        """
        return self.lm_head(self.hidden(input_ids, cache=cache, positions=positions))

    @warptape.no_grad()
    def generate(self, input_ids: Tensor, max_new_tokens: int, *, eos_token_id: int | None = None) -> Tensor:
        """[B, T] with the likeliest tokens appended, [B, T + n]: n is max_new_tokens, or fewer once each
        sequence has had an `eos_token_id`, after which it repeats it. Dropout works in training mode.

        Raises: ShapeError for other shapes, ValueError for fewer than 1 new token, and for more than
        max_position_embeddings in all.
        """
        self._positions(input_ids, None, None)
        batch, given = input_ids.shape
        context = self.config.max_position_embeddings
        if max_new_tokens < 1 or given + max_new_tokens > context:
            raise ValueError(
                f"generate: expected 1 to {context - given} new tokens after {given}, as the context has "
                f"{context}, got {max_new_tokens}"
            )
        weight = self.embed_tokens.weight
        cache = KVCache(self.config, batch, given + max_new_tokens, dtype=weight.dtype, device=weight.device)
        out, step = [input_ids], input_ids
        done = warptape.zeros(batch, 1, dtype=warptape.bool, device=input_ids.device)
        for _ in range(max_new_tokens):
            last = self.hidden(step, cache=cache)[:, -1:]
            step = self.lm_head(last).argmax(-1).to(input_ids.dtype)  # [B, 1]
            if eos_token_id is not None:
                step = step.masked_fill(done, eos_token_id)
                done = done | (step == eos_token_id)
            out.append(step)
            if eos_token_id is not None and bool(done.all()):
                break
        return warptape.cat(out, 1)
