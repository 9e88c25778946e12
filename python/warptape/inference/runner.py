"""The forward pass of a step: a decoder on the tokens of many requests, with keys and values in pages.

R requests, N their new tokens, L rows whose logits are wanted, C width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import warptape

from .._tensor import Tensor
from ..models import Decoder
from ..models.cache import PagedCache

PAGE_TOKENS = PagedCache.TOKENS
MOST_CACHE_BYTES = 4 << 30  # unless the user gives more


def _page_bytes(config: Any, itemsize: int) -> int:
    """Of the keys and values of PAGE_TOKENS tokens in all layers."""
    return (
        2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize * PAGE_TOKENS
    )


class ModelRunner:
    """A model and its cache.

    Args:
        args: the engine's limits.

    Raises: ValueError where the cache has no room for a request of max_model_len.
    """

    def __init__(self, model: Decoder, args: Any) -> None:
        config, weight = model.config, model.embed_tokens.weight
        self.model, self.device = model, weight.device
        dtype = weight.dtype if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
        self.page_bytes = page = _page_bytes(config, warptape.empty(0, dtype=dtype).element_size())
        context = config.max_position_embeddings
        given = args.max_model_len
        if given is not None and not 0 < given <= context:
            raise ValueError(f"max_model_len must be in [1, {context}], the model's context, got {given}")
        room = args.kv_cache_memory_bytes
        if room is None:
            most = args.max_num_seqs * -(-(given or context) // PAGE_TOKENS) * page
            room = min(most, max(MOST_CACHE_BYTES, -(-(given or 0) // PAGE_TOKENS) * page))
        self.num_pages = room // page
        if self.num_pages < 1:
            raise ValueError(f"kv_cache_memory_bytes: {room} bytes are less than a page of {page}")
        self.max_model_len = given or min(context, self.num_pages * PAGE_TOKENS)
        if -(-self.max_model_len // PAGE_TOKENS) > self.num_pages:
            raise ValueError(
                f"max_model_len {self.max_model_len} needs {-(-self.max_model_len // PAGE_TOKENS) * page} bytes of "
                f"keys and values, but kv_cache_memory_bytes is {room}"
            )
        self.cache = PagedCache(config, self.num_pages, dtype=dtype, device=self.device)
        self._salts: dict[tuple[int, str | None], int] = {}

    def adapter(self, lora_request: Any) -> int:
        """The number of an adapter; 0: none."""
        if lora_request is None:
            return 0
        raise NotImplementedError("LoRA adapters")

    def salt(self, adapter: int, text: str | None) -> int:
        """A number for those who may share keys and values."""
        return self._salts.setdefault((adapter, text), len(self._salts))

    @warptape.inference_mode()
    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Logits [L, V], float32, of a batch of the engine (csrc/inference/engine.h)."""
        on = {name: value.to(self.device) for name, value in batch.items() if isinstance(value, Tensor)}
        self.cache.begin_step(on["page_table"], on["starts"], on["lengths"])
        x = self.model.hidden(on["tokens"].unsqueeze(0), cache=self.cache)
        rows = x[0].index_select(0, on["logit_rows"])  # [L, C]
        return self.model.lm_head(rows).float()
