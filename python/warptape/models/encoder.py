"""An encoder as BERT is (Devlin et al. 2018). B batch, T tokens, C width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import warptape

from .. import nn
from .._C import ShapeError
from .._tensor import Tensor
from ..distributed.checkpoint import tensor_names
from .cache import Sight
from .config import EncoderConfig
from .layers import MLP, Attention
from .pretrained import PreTrained


class EncoderOutput(NamedTuple):
    """What an encoder gives: each token's vector [B, T, C], and the pooler's [B, C] where there is one."""

    last_hidden_state: Tensor
    pooler_output: Tensor | None


class EncoderLayer(nn.Module):
    """Attention over all tokens and an MLP, with a norm after each: [B, T, C] -> [B, T, C]."""

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

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]; `mask` [B, 1, 1, T] is True where there is a token."""
        x = self.post_attention_layernorm(x + self.dropout(self.self_attn(x, sight=Sight(mask))))
        return self.post_mlp_layernorm(x + self.dropout(self.mlp(x)))


class Encoder(PreTrained):
    """Tokens [B, T] -> vectors [B, T, C].

    Args:
        dtype, device: of the parameters.
    """

    config_class = EncoderConfig

    def __init__(self, config: EncoderConfig, *, dtype: Any = None, device: Any = None) -> None:
        super().__init__(config)
        factory, width = {"dtype": dtype, "device": device}, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, **factory)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, width, **factory)
        self.embed_token_types = nn.Embedding(config.type_vocab_size, width, **factory)
        self.embed_norm = nn.LayerNorm(width, eps=config.norm_eps, **factory)
        self.dropout = nn.Dropout(config.residual_dropout)
        self.layers = nn.ModuleList(EncoderLayer(config, **factory) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(width, width, **factory) if config.pooler else None
        if not self.embed_tokens.weight.is_meta:
            self.reset_parameters()

    @classmethod
    def _completed(cls, config: Any, folder: Any) -> Any:
        return replace(config, pooler=any("pooler." in name for name in tensor_names(folder)))

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> EncoderOutput:
        """Vectors of tokens [B, T].

        Args:
            token_type_ids: [B, T], None: all 0.
            attention_mask: [B, T], True or 1 where there is a token and not padding; None: everywhere.
            positions: [T] or [B, T]; None: from 0.

        Raises: ShapeError for other shapes, ValueError for more tokens than there are positions, IndexError
        for numbers beyond the vocabulary, the token types and the positions.
        """
        if input_ids.ndim != 2:
            raise ShapeError(f"Encoder: expected tokens [B, T], got {list(input_ids.shape)}")
        tokens, most = input_ids.shape[1], self.config.max_position_embeddings
        for name, given in (("token_type_ids", token_type_ids), ("attention_mask", attention_mask)):
            if given is not None and given.shape != input_ids.shape:
                raise ShapeError(f"Encoder: expected {name} {list(input_ids.shape)}, got {list(given.shape)}")
        if tokens > most:
            raise ValueError(f"Encoder: {tokens} tokens are more than max_position_embeddings, {most}")
        if positions is None:
            positions = warptape.arange(tokens, device=input_ids.device)
        types = warptape.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embed_tokens(input_ids) + self.embed_token_types(types) + self.embed_positions(positions)
        x = self.dropout(self.embed_norm(x))
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return EncoderOutput(x, None if self.pooler is None else warptape.tanh(self.pooler(x[:, 0])))
