"""The forward pass of a step: a decoder on the tokens of many requests, with keys and values in pages.

R requests of a step, N their new tokens, L rows whose logits are wanted, C width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from ..core import Tensor
from ..models import Decoder
from ..models.cache import PagedCache, PagedStep
from . import pipeline_parallel
from .decode_graphs import DecodeGraphs
from .lora import Adapters
from .pipeline_parallel import stage_of

PAGE_TOKENS = PagedCache.TOKENS
MOST_CACHE_BYTES = 4 << 30  # unless the user gives more


def page_bytes(model: Decoder, cache_dtype: wt.dtype | str) -> int:
    """Of the keys and values of PAGE_TOKENS tokens in all layers.

    Args:
        model: whole, or a stage.
        cache_dtype: of keys and values.
    """
    config, dtype = model.config, cache_dtype_of(model, cache_dtype)
    stage = stage_of(model)
    layers = config.num_hidden_layers if stage is None else stage.most_layers
    numbers = layers * config.num_key_value_heads * PAGE_TOKENS
    scales = 4 if dtype == wt.int8 else 0
    return 2 * numbers * (config.head_dim * wt.empty(0, dtype=dtype).element_size() + scales)


def cache_dtype_of(model: Decoder, cache_dtype: wt.dtype | str) -> Any:
    """The dtype of a model's keys and values. ValueError for another than it or int8.

    Args:
        model: whole, or a stage.
        cache_dtype: "auto" or None for the model's.
    """
    own = model.embed_tokens.weight.dtype
    if isinstance(cache_dtype, str):
        cache_dtype = own if cache_dtype == "auto" else getattr(wt, cache_dtype, cache_dtype)
    if cache_dtype not in (own, wt.int8):
        raise ValueError(f"kv_cache_dtype must be 'auto', {own} (the model's) or int8, got {cache_dtype!r}")
    return cache_dtype


def cache_size(models: list[Decoder], args: Any) -> tuple[int, int]:
    """The number of pages, which each of the models has, and the most tokens of a request.

    Raises: ValueError where there is no room for a request of args.max_model_len.
    """
    page = sum(page_bytes(model, args.kv_cache_dtype) for model in models)
    context, given = models[0].config.max_position_embeddings, args.max_model_len
    if given is not None and not 0 < given <= context:
        raise ValueError(f"max_model_len must be in [1, {context}], the model's context, got {given}")
    room = args.kv_cache_memory_bytes
    if room is None:
        one = -(-(given or context) // PAGE_TOKENS) * page
        room = min(args.max_num_seqs * one, max(MOST_CACHE_BYTES, one if given else 0))
    pages = room // page
    if pages < 1:
        raise ValueError(f"kv_cache_memory_bytes: {room} bytes are less than a page of {page}")
    length = given or min(context, pages * PAGE_TOKENS)
    needed = -(-length // PAGE_TOKENS) * page
    if needed > room:
        raise ValueError(
            f"max_model_len {length} needs {needed} bytes of keys and values, but kv_cache_memory_bytes is "
            f"{room}"
        )
    return pages, length


class ModelRunner:
    """A model, its adapters, and its cache of `num_pages` pages.

    Args:
        max_model_len: tokens of a request.
        capture_sizes: on CUDA, of how many requests decoding steps are captured as graphs.
    """

    def __init__(
        self,
        model: Decoder,
        num_pages: int,
        max_model_len: int,
        cache_dtype: wt.dtype | str = "auto",
        invariant: bool = True,
        capture_sizes: Sequence[int] = (),
    ) -> None:
        self.model, self.device = model, model.embed_tokens.weight.device
        dtype = cache_dtype_of(model, cache_dtype)
        model.limit_context(max_model_len)
        self.keep_states = False
        self.states: Tensor | None = None  # [N, C] of the last step, where keep_states was set
        self.adapters = Adapters(model, invariant)
        self.graphs: DecodeGraphs | None = None
        spare = 0
        # How many tokens an expert has is asked for on the host, which a graph cannot.
        if self.device.type == "cuda" and capture_sizes and model.config.experts is None:
            spare, most = 1, -(-max_model_len // PAGE_TOKENS)
            self.graphs = DecodeGraphs(self._decode, self.device, capture_sizes, num_pages, most)
        self.cache = PagedCache(model.config, num_pages + spare, dtype=dtype, device=self.device)

    @wt.inference_mode()
    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Logits [L, V], float32, of a batch of the engine (csrc/inference/engine.h).

        Args:
            batch: tokens, positions and pages, as tensors.
        """
        stage = stage_of(self.model)
        images = batch.get("images")
        graphs = None if self.keep_states or images else self.graphs
        if graphs is not None and (decoded := graphs.forward(batch)) is not None:
            return decoded
        if stage is None:
            self.cache.begin_step(batch["page_table"], batch["starts"], batch["lengths"])
            with self.adapters.step(batch["adapters"], batch["starts"]):
                given = batch["tokens"].to(self.device).unsqueeze(0)
                inside = None
                if images:
                    from .images import embedded  # which an engine without images does without

                    inside = embedded(self.model.embed_tokens, given, images)
                x = self.model.hidden(given, cache=self.cache, embedded=inside)
                self.states = x[0] if self.keep_states else None
                self.adapters.begin_head(batch["logit_rows"])
                return self._head(x, batch)
        tokens, requests = batch["tokens"].shape[0], len(batch["adapters"])
        parts = max(1, min(stage.count, requests, tokens // pipeline_parallel.ENOUGH))
        logits = [self._pass(stage, part) for part in pipeline_parallel.divided(batch, parts)]
        mine = wt.cat([each for each in logits if each is not None]) if stage.last else None
        vocabulary = self.model.config.vocab_size
        return stage.share(mine, batch["logit_rows"].shape[0], vocabulary, self.device)

    def _decode(self, tokens: Tensor, step: PagedStep) -> Tensor:
        """Logits [N, V] after each token [N] of a step; nothing waits for the device."""
        self.cache.resume_step(step)
        return self.model.logits(self.model.hidden(tokens.unsqueeze(0), cache=self.cache)[0]).float()

    def _pass(self, stage: Any, batch: dict[str, Any]) -> Tensor | None:
        """A stage's part of a forward pass; the last one's are logits [L, V]."""
        model, tokens = self.model, batch["tokens"].shape[0]
        self.cache.begin_step(batch["page_table"], batch["starts"], batch["lengths"])
        positions = self.cache.positions(tokens, self.device)
        if stage.first:
            x = model.embed(batch["tokens"].to(self.device).unsqueeze(0), positions)
        else:
            x = stage.receive(tokens, model.embed_tokens.weight)
        with self.adapters.step(batch["adapters"], batch["starts"]):
            x = model.through(x, positions, self.cache)
            if not stage.last:
                stage.send(x)
                return None
            self.adapters.begin_head(batch["logit_rows"])
            return self._head(model.norm(x), batch)

    def _head(self, x: Tensor, batch: dict[str, Any]) -> Tensor:
        """Logits [L, V] of [1, N, C]."""
        rows = x[0].index_select(0, batch["logit_rows"].to(self.device))  # [L, C]
        return self.model.logits(rows).float()
