"""One decoder for all architectures of DecoderConfig, that is trained and served.

B batch, T tokens, S keys seen, C width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from .. import nn
from .._C import ShapeError
from ..core import Tensor
from .cache import AttentionMask, KVCache, PagedCache, causal_mask
from .config import FULL, SLIDING, DecoderConfig
from .experts import MixtureOfMLPs
from .latent import LatentAttention
from .layers import MLP, NORMS, Attention
from .pretrained import PreTrained
from .rotary import Rotary, Rotation

if TYPE_CHECKING:
    from warptape.core.types import Device

Cache = KVCache | PagedCache


def _norm(config: DecoderConfig, **factory: Any) -> nn.Module:
    return NORMS[config.norm](config.hidden_size, eps=config.norm_eps, **factory)


def _attention(config: DecoderConfig, **factory: Any) -> Attention:
    if config.latent is not None:
        scaling = 1.0 if config.rope_scaling is None else config.rope_scaling.score_scale
        return LatentAttention(
            config.latent,
            config.hidden_size,
            config.num_attention_heads,
            bias=config.qkv_bias,
            dropout=config.attention_dropout,
            interleaved=config.rotary_interleaved,
            scale=scaling / math.sqrt(config.head_dim),
            **factory,
        )
    return Attention(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        qkv_bias=config.qkv_bias,
        o_bias=config.o_bias,
        norm=config.norm if config.qk_norm else None,
        norm_all=config.qk_norm == "all",
        norm_eps=config.norm_eps,
        dropout=config.attention_dropout,
        by_head=config.qkv_by_head,
        interleaved=config.rotary_interleaved,
        scale=config.attention_scale,
        cap=config.attention_softcap,
        sinks=config.attention_sinks,
        **factory,
    )


def _mlp(config: DecoderConfig, layer: int, **factory: Any) -> nn.Module:
    if config.experts is not None and config.experts.are_in(layer):
        return MixtureOfMLPs(config.experts, config.hidden_size, config.hidden_act, **factory)
    return MLP(
        config.hidden_size,
        config.intermediate_size,
        config.hidden_act,
        gated=config.gated,
        bias=config.mlp_bias,
        **factory,
    )


class DecoderLayer(nn.Module):
    """Attention and an MLP, each with norms and added to what came in: [B, T, C] -> [B, T, C].

    Args:
        config: sizes.
        layer: its number.
        **factory: device and dtype.
    """

    def __init__(self, config: DecoderConfig, layer: int, **factory: Any) -> None:
        super().__init__()
        before, after = config.norm_placement != "after", config.norm_placement != "before"
        self.residual_scale, self.parallel = config.residual_scale, config.parallel_residual
        self.input_layernorm = _norm(config, **factory) if before else None
        self.self_attn = _attention(config, **factory)
        self.attention_output_norm = _norm(config, **factory) if after else None
        self.post_attention_layernorm = _norm(config, **factory) if before else None
        self.mlp = _mlp(config, layer, **factory)
        self.mlp_output_norm = _norm(config, **factory) if after else None
        self.dropout = nn.Dropout(config.residual_dropout)

    def _added(self, y: Tensor, norm: nn.Module | None) -> Tensor:
        """What is added to the residual stream of an output."""
        y = self.dropout(y if norm is None else norm(y))
        return y if self.residual_scale == 1 else y * self.residual_scale

    def forward(
        self, x: Tensor, rotation: Rotation | None, attn_mask: AttentionMask, cache: Cache | None, layer: int
    ) -> Tensor:
        """[B, T, C] -> [B, T, C].

        Args:
            x: of the layer before.
            rotation: of positions; None for learned ones.
            attn_mask: what queries see.
            cache: gets keys and values, or None.
            layer: its number.
        """
        y = x if self.input_layernorm is None else self.input_layernorm(x)
        y = self.self_attn(y, rotation=rotation, attn_mask=attn_mask, cache=cache, layer=layer)
        after = x + self._added(y, self.attention_output_norm)
        y = x if self.parallel else after
        y = y if self.post_attention_layernorm is None else self.post_attention_layernorm(y)
        return after + self._added(self.mlp(y), self.mlp_output_norm)


class Decoder(PreTrained):
    """A language model: tokens [B, T] -> logits [B, T, V].

    Args:
        dtype, device: of the parameters.
    """

    config_class = DecoderConfig
    pipeline_stage: Any = None  # of a model that is split by its layers: warptape.inference

    def __init__(
        self, config: DecoderConfig, *, dtype: wt.dtype | None = None, device: Device = None
    ) -> None:
        super().__init__(config)
        factory: dict[str, Any] = {"dtype": dtype, "device": device}
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, **factory)
        self.embed_positions: nn.Embedding | None = None
        self._rotary: Rotary | None = None
        self._local_rotary: Rotary | None = None  # of layers whose attention slides
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size, **factory)
        else:
            self.limit_context(config.max_position_embeddings)
            if config.local_rope_theta is not None:
                self._local_rotary = Rotary(config.rotary_width, config.local_rope_theta, None)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, **factory) for i in range(config.num_hidden_layers)
        )
        self.norm = _norm(config, **factory)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, **factory)
        self.tie_weights()
        if not self.embed_tokens.weight.is_meta:
            self.reset_parameters()

    def tie_weights(self) -> None:
        """Gives the head the token embedding's parameter where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def limit_context(self, tokens: int) -> None:
        """Says how many tokens a sequence has at most: "longrope" turns short contexts and long ones by
        different angles, those of all tokens of a sequence alike, as what is cached must stay.

        Args:
            tokens: max_position_embeddings until this is called.
        """
        config = self.config
        if config.positions == "rotary":
            self._rotary = Rotary(config.rotary_width, config.rope_theta, config.rope_scaling, tokens)

    def _positions(self, input_ids: Tensor, cache: Cache | None, positions: Tensor | None) -> Tensor:
        """The positions of tokens, once these have proved to be of a shape for which there is room."""
        if input_ids.ndim != 2 or input_ids.shape[1] == 0:
            raise ShapeError(f"Decoder: expected tokens [B, T] with T > 0, got {list(input_ids.shape)}")
        batch, tokens = input_ids.shape
        most, reach = self.config.max_position_embeddings, tokens
        if cache is not None:
            reach = cache.check(batch, tokens)
        scaling = self.config.rope_scaling
        bounded = scaling is not None and scaling.rope_type == "dynamic"
        if (self.embed_positions is not None or bounded) and reach > most:
            raise ValueError(f"Decoder: {reach} tokens are more than max_position_embeddings, {most}")
        if positions is None:
            if cache is not None:
                return cache.positions(tokens, input_ids.device)
            return wt.arange(tokens, device=input_ids.device)
        if tuple(positions.shape) not in ((tokens,), (batch, tokens)):
            raise ShapeError(
                f"Decoder: expected positions [{tokens}] or [{batch}, {tokens}], got {list(positions.shape)}"
            )
        return positions

    def _attn_mask(self, kind: str, tokens: int, cache: Cache | None, device: Device) -> AttentionMask:
        """What tokens see in layers of a type."""
        window = self.config.sliding_window if kind == SLIDING else None
        return (
            causal_mask(tokens, 0, window, device)
            if cache is None
            else cache.attn_mask(tokens, window, device)
        )

    def hidden(
        self,
        input_ids: Tensor,
        *,
        cache: Cache | None = None,
        positions: Tensor | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        """What the head is applied to, [B, T, C]. Arguments and errors are forward()'s.

        Args:
            input_ids: [B, T].
            cache: of earlier tokens, or None.
            positions: [T] or [B, T].
            embedded: what the first layer gets in place of the tokens' embeddings, [B, T, C]; None: these.
        """
        positions = self._positions(input_ids, cache, positions)
        x = self.embed(input_ids, positions) if embedded is None else embedded
        return self.norm(self.through(x, positions, cache))

    def embed(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """What the first layer gets of tokens [B, T] at these positions, [B, T, C].

        Args:
            input_ids, positions: [B, T] and [T] or [B, T].
        """
        x = self.embed_tokens(input_ids)
        if self.config.embedding_scale != 1:
            x = x * wt.tensor(self.config.embedding_scale, dtype=x.dtype)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions)
        return self.dropout(x)

    def _rotations(self, positions: Tensor, dtype: Any) -> dict[str, Rotation | None]:
        """By types of layers."""
        if self._rotary is None:
            return {FULL: None, SLIDING: None}
        full = self._rotary(positions, dtype)
        local = full if self._local_rotary is None else self._local_rotary(positions, dtype)
        return {FULL: full, SLIDING: local}

    def through(self, x: Tensor, positions: Tensor, cache: Cache | None = None) -> Tensor:
        """What the layers make of [B, T, C], which come after what is in the cache.

        Args:
            x: of the first layer.
            positions: [T] or [B, T].
            cache: of earlier tokens, or None.
        """
        tokens = x.shape[1]
        turns = self._rotations(positions, x.dtype)
        kinds = {self.config.layer_type(i) for i in range(len(self.layers))}
        seen = {kind: self._attn_mask(kind, tokens, cache, x.device) for kind in kinds}
        for i, layer in enumerate(self.layers):
            kind = self.config.layer_type(i)
            x = layer(x, turns[kind] if self.config.is_rotary(i) else None, seen[kind], cache, i)
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
        return self.logits(self.hidden(input_ids, cache=cache, positions=positions))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [.., V] of what `hidden` gave.

        Args:
            hidden: [.., C].
        """
        logits = self.lm_head(hidden)
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        if (cap := self.config.logit_softcap) is not None:
            logits = cap * (logits / cap).tanh()
        return logits

    @wt.no_grad()
    def generate(self, input_ids: Tensor, max_new_tokens: int, *, eos_token_id: int | None = None) -> Tensor:
        """[B, T] with the likeliest tokens appended, [B, T + n]: n is max_new_tokens, or fewer once each
        sequence has had an `eos_token_id`, after which it repeats it. Dropout works in training mode.

        Raises: ShapeError for other shapes, ValueError for fewer than 1 new token, and for more than
        max_position_embeddings in all.
        """
        self._positions(input_ids, None, None)
        batch, prompt = input_ids.shape
        context = self.config.max_position_embeddings
        if max_new_tokens < 1 or prompt + max_new_tokens > context:
            raise ValueError(
                f"generate: expected 1 to {context - prompt} new tokens after {prompt}, as the context has "
                f"{context}, got {max_new_tokens}"
            )
        weight = self.embed_tokens.weight
        cache = KVCache(self.config, batch, prompt + max_new_tokens, dtype=weight.dtype, device=weight.device)
        out, step = [input_ids], input_ids
        done = wt.zeros(batch, 1, dtype=wt.bool, device=input_ids.device)
        for _ in range(max_new_tokens):
            last = self.hidden(step, cache=cache)[:, -1:]
            step = self.logits(last).argmax(-1).to(input_ids.dtype)  # [B, 1]
            if eos_token_id is not None:
                step = step.masked_fill(done, eos_token_id)
                done = done | (step == eos_token_id)
            out.append(step)
            if eos_token_id is not None and bool(done.all()):
                break
        return wt.cat(out, 1)
