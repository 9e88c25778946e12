"""Decoding steps as CUDA graphs: one launch instead of some ten for each layer.

R requests of a step, each with one new token; S >= R, the number that a graph is for; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from ..core import Tensor
from ..models.cache import PagedStep

if TYPE_CHECKING:
    from warptape.core.types import Device

Forward = Callable[[Tensor, PagedStep], Tensor]


def capture_sizes(args: Any) -> list[int]:
    """The numbers of requests that graphs are for, ascending: args.cudagraph_capture_sizes; None: vLLM's 1,
    2, 4 and multiples of 8 up to max_num_seqs or 256. None at all with enforce_eager and on several ranks.

    Raises: ValueError for sizes below 1.
    """
    sizes = args.cudagraph_capture_sizes
    if sizes is not None and any(size < 1 for size in sizes):
        raise ValueError(f"cudagraph_capture_sizes must be above 0, got {list(sizes)}")
    if args.enforce_eager or args.ranks > 1:
        return []
    if sizes is None:
        most = min(args.max_num_seqs, 256)
        sizes = [size for size in (1, 2, 4, *range(8, most, 8), most) if size <= most]
    return sorted({*sizes})


class _Recorded:
    """The graph of S requests, with the memory that it reads and writes."""

    def __init__(self, forward: Forward, tokens: Tensor, step: PagedStep, pool: Any) -> None:
        from warptape import cuda  # what runs on a CPU does without it

        self.tokens, self.step = tokens, step
        forward(tokens, step)  # libraries set themselves up outside of a capture
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph, pool=pool):
            self.logits = forward(tokens, step)

    def replay(self, tokens: Tensor, step: PagedStep) -> Tensor:
        self.tokens.copy_(tokens)
        self.step.copy_(step)
        self.graph.replay()
        return self.logits


class DecodeGraphs:
    """Runs decoding steps by graphs, each recorded when it is first needed.

    Args:
        forward: logits [N, V] of tokens [N] of a step on the device. It must do the same kernels whatever
            their values are.
        sizes: numbers of requests, ascending; a step takes the least that is large enough.
        spare_page: a page that no request has. Tokens that fill a step up are stored there; by the kernels'
            invariance they change nothing for the others.
        max_pages: of a request.
    """

    def __init__(
        self,
        forward: Forward,
        device: Device,
        sizes: Sequence[int],
        spare_page: int,
        max_pages: int,
    ) -> None:
        self._forward, self._device, self._sizes = forward, device, sizes
        self._spare_page, self._max_pages = spare_page, max_pages
        self._recorded: dict[int, _Recorded] = {}
        self._pool: tuple[int, int] | None = None
        self.replays = 0

    def forward(self, batch: dict[str, Any]) -> Tensor | None:
        """Logits [R, V] of a batch of the engine, valid until the next call; None for one that has no graph:
        a request with more than one new token, or with an adapter, or more requests than any graph is for.

        Raises: RuntimeError for a forward pass that cannot be captured.
        """
        requests = batch["lengths"].shape[0]
        size = next((size for size in self._sizes if size >= requests), None)
        plain = batch["tokens"].shape[0] == batch["logit_rows"].shape[0] == requests
        if size is None or not plain or any(batch["adapters"]):
            return None
        tokens, step = self._padded(batch, size)
        if size not in self._recorded:
            self._record(size, tokens, step)
        self.replays += 1
        return self._recorded[size].replay(tokens, step)[:requests]

    def _padded(self, batch: dict[str, Any], size: int) -> tuple[Tensor, PagedStep]:
        """Tokens and step of S requests."""
        requests, pages = batch["page_table"].shape
        table = wt.full((size, self._max_pages), self._spare_page, dtype=wt.int32)
        table[:requests, :pages] = batch["page_table"]
        lengths = wt.ones(size, dtype=wt.int32)
        lengths[:requests] = batch["lengths"]
        tokens = wt.zeros(size, dtype=batch["tokens"].dtype)
        tokens[:requests] = batch["tokens"]
        return tokens, PagedStep(table, wt.arange(size + 1, dtype=wt.int32), lengths)

    def _record(self, size: int, tokens: Tensor, step: PagedStep) -> None:
        try:
            recorded = _Recorded(self._forward, tokens.to(self._device), step.to(self._device), self._pool)
        except RuntimeError as error:
            raise RuntimeError(
                f"the model's forward pass cannot be captured as a CUDA graph ({error}); use "
                "enforce_eager=True"
            ) from error
        self._pool = self._pool or recorded.graph.pool()
        self._recorded[size] = recorded
