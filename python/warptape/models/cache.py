"""Keys and values of the tokens that a decoder has seen, and attention to them.

B batch, T tokens, H heads, K heads of keys, D head_dim; N tokens of R sequences, P pages.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from warptape import core as wt

from .._C import _PAGE_TOKENS, _private
from ..core import Tensor
from ..nn import functional as F
from .config import DecoderConfig

if TYPE_CHECKING:
    from warptape.core.types import Device


class AttentionMask(NamedTuple):
    """Which keys a query sees.

    Args:
        mask: True where it sees one, of a shape that broadcasts to [B, H, T, S]; None: all.
        causal: those up to its own.
        window: the last of these, its own among them; None: all. Attention without pages needs it as a mask.
    """

    mask: Tensor | None = None
    causal: bool = False
    window: int | None = None


ALL = AttentionMask()


class Scoring(NamedTuple):
    """What scores are beside products of queries and keys.

    Args:
        cap: c of c * tanh(score / c) (Gemma 2); None: there is none.
        sinks: [H], a score of each head that has a weight and no value (gpt-oss); None: there are none.
    """

    cap: float | None = None
    sinks: Tensor | None = None


PLAIN = Scoring()


def causal_mask(tokens: int, past: int, window: int | None, device: Device) -> AttentionMask:
    """What each of `tokens` queries after `past` ones sees: keys up to its own, the last `window` of them.

    Args:
        tokens: of the queries.
        past: keys that are there already.
        window: None for all.
        device: of the mask.
    """
    keys = past + tokens
    if window is None or keys <= window:
        if past == 0 or tokens == 1:
            return AttentionMask(causal=tokens > 1)
        window = keys
    return AttentionMask(visible_keys(tokens, past, window, device))


def visible_keys(tokens: int, past: int, window: int, device: Device) -> Tensor:
    """True where a query sees a key, bool [T, past + T].

    Args:
        tokens, past, window, device: of causal_mask.
    """
    keys = past + tokens
    own = wt.arange(past, keys, device=device).unsqueeze(1)
    distance = own - wt.arange(keys, device=device)  # [T, S]
    return (distance >= 0) & (distance < window)


def attend(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: AttentionMask, dropout: float, scoring: Scoring = PLAIN
) -> Tensor:
    """Attention of q [B, H, T, D] to k and v [B, K, S, D]: [B, H, T, D].

    Args:
        q, k, v: H is a multiple of K.
        attn_mask: what queries see.
        dropout: probability.
        scoring: what becomes of scores.
    """
    if scoring.cap is not None or scoring.sinks is not None:
        return _attend_by_ops(q, k, v, attn_mask, dropout, scoring)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask.mask,
        dropout_p=dropout,
        is_causal=attn_mask.causal,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _attend_by_ops(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: AttentionMask, dropout: float, scoring: Scoring
) -> Tensor:
    """The same, op by op: no kernel that has a gradient knows caps and sinks."""
    group, tokens = q.shape[1] // k.shape[1], q.shape[2]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])  # [B, H, T, S]
    if scoring.cap is not None:
        scores = scoring.cap * (scores / scoring.cap).tanh()
    seen = visible_keys(tokens, 0, tokens, q.device) if attn_mask.causal else attn_mask.mask
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    if scoring.sinks is not None:
        column = scoring.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = wt.cat([scores, column], -1)
    weights = scores.softmax(-1)
    weights = weights if scoring.sinks is None else weights[..., :-1]
    return F.dropout(weights.to(v.dtype), dropout) @ v


class Texts:
    """Attention of texts that lie one behind the other in a row of tokens, each to itself. Whatever the
    others are, a text's result is the same.

    Args:
        lengths: of the texts; neighbours of one length are computed together.
        device: of the tokens.
    """

    def __init__(self, lengths: Sequence[int], device: Any = None) -> None:
        self._runs = [(length, len([*same])) for length, same in groupby(lengths)]
        self._masks: dict[tuple[int, int], Tensor] = {}
        self._device = device

    def _mask(self, length: int, window: int | None) -> Tensor | None:
        """Where a token sees another: as far as `window`, before it and behind it."""
        if window is None or window >= length - 1:
            return None
        if (length, window) not in self._masks:
            at = wt.arange(length, device=self._device)
            self._masks[length, window] = (at.unsqueeze(1) - at).abs() <= window
        return self._masks[length, window]

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: AttentionMask,
        dropout: float,
        scoring: Scoring = PLAIN,
    ) -> Tensor:
        """Attention of q [1, H, N, D], each token's to those of its own text: [1, H, N, D].

        Args:
            layer: its number.
            q, k, v: of all texts.
            attn_mask: its window alone, which holds on both sides.
            dropout: probability.
            scoring: what becomes of scores.
        """
        parts, first = [], 0
        for length, count in self._runs:
            end = first + length * count
            a, b, c = (x[0, :, first:end].unflatten(1, (count, length)).transpose(0, 1) for x in (q, k, v))
            mask = AttentionMask(self._mask(length, attn_mask.window))
            y = attend(a, b, c, mask, dropout, scoring)  # [count, H, length, D]
            parts.append(y.transpose(0, 1).flatten(1, 2))
            first = end
        return (parts[0] if len(parts) == 1 else wt.cat(parts, 1)).unsqueeze(0)


class KVCache:
    """Room for the keys and values of `capacity` tokens of each of `batch` sequences, allocated at once.

    `keys[layer]` and `values[layer]` are [B, K, capacity, D]. The first `length` positions are taken; all
    sequences have the same number. A forward pass that fails leaves it as it was.

    Raises: ValueError for sizes below 1.
    """

    def __init__(
        self,
        config: DecoderConfig,
        batch: int,
        capacity: int,
        *,
        dtype: wt.dtype | None = None,
        device: Device = None,
    ) -> None:
        if batch < 1 or capacity < 1:
            raise ValueError(f"KVCache: expected a batch and a capacity above 0, got {batch} and {capacity}")
        shape = (batch, config.num_key_value_heads, capacity, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.keys = [wt.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [wt.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.capacity, self.length = capacity, 0

    def check(self, batch: int, tokens: int) -> int:
        """How many tokens of each of so many sequences there are with so many more. ValueError unless they
        fit in."""
        if batch != self.keys[0].shape[0]:
            raise ValueError(f"KVCache: made for {self.keys[0].shape[0]} sequences, got {batch}")
        if self.length + tokens > self.capacity:
            raise ValueError(
                f"KVCache: {self.length} of {self.capacity} positions are taken, {tokens} more do not fit; "
                "make one with a larger capacity"
            )
        return self.length + tokens

    def positions(self, tokens: int, device: Device) -> Tensor:
        """Of the next tokens, [T].

        Args:
            tokens: T.
            device: of the result.
        """
        return wt.arange(self.length, self.length + tokens, device=device)

    def attn_mask(self, tokens: int, window: int | None, device: Device) -> AttentionMask:
        """What the next tokens see.

        Args:
            tokens: how many.
            window: None for all.
            device: of the mask.
        """
        return causal_mask(tokens, self.length, window, device)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Stores [B, K, T, D] of a layer after what it has; returns all: views [B, K, length + T, D].

        `length` stays until `advance`, as all layers store the same positions.
        """
        if wt.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise RuntimeError("KVCache: no gradient flows through a cache; use it under no_grad()")
        end = self.length + key.shape[2]
        self.keys[layer][:, :, self.length : end] = key
        self.values[layer][:, :, self.length : end] = value
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: AttentionMask,
        dropout: float,
        scoring: Scoring = PLAIN,
    ) -> Tensor:
        """Stores k and v [B, K, T, D]; attention of q [B, H, T, D] to all that the layer has.

        Args:
            layer: its number.
            q, k, v: of the new tokens.
            attn_mask: what queries see.
            dropout: probability.
            scoring: what becomes of scores.
        """
        k, v = self.append(layer, k, v)
        return attend(q, k, v, attn_mask, dropout, scoring)

    def advance(self, tokens: int) -> None:
        """Counts tokens that every layer has stored.

        Args:
            tokens: how many.
        """
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens. ValueError if there are fewer.

        Args:
            length: tokens to keep.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"KVCache: cannot keep {length} of {self.length} tokens")
        self.length = length


class PagedCache:
    """Keys and values of any number of sequences in `num_pages` pages of 32 tokens, allocated at once.

    It knows no sequences: whoever owns the pages says before each forward pass, by `begin_step`, which
    sequences run and where theirs are. The pass takes the new tokens of all of them as one row, [1, N], and
    stores their keys and values before it attends. What attention gives for a token depends on its sequence
    alone, to the bit: not on the other sequences, on how its tokens are cut into steps, or on its pages.

    Pages need no clearing: what has not been stored is not read. A step whose pass failed can be repeated.

    Args:
        dtype: of the pages, the model's; or int8, with a scale for each token and head.

    Raises: ValueError for fewer than 1 page.
    """

    TOKENS: int = _PAGE_TOKENS  # of a page

    def __init__(
        self, config: DecoderConfig, num_pages: int, *, dtype: wt.dtype | None = None, device: Device = None
    ) -> None:
        if num_pages < 1:
            raise ValueError(f"PagedCache: expected at least 1 page, got {num_pages}")
        heads, width, layers = config.num_key_value_heads, config.head_dim, range(config.num_hidden_layers)

        def pages(*shape: int, dtype: wt.dtype | None = dtype) -> list[Tensor]:
            return [wt.empty(num_pages, heads, *shape, dtype=dtype, device=device) for _ in layers]

        self.num_pages = num_pages
        self.keys, self.values = pages(width, self.TOKENS), pages(self.TOKENS, width)
        self.scales: list[dict[str, Tensor]] = [{} for _ in layers]
        if dtype == wt.int8:
            both = (pages(self.TOKENS, dtype=wt.float32) for _ in range(2))
            self.scales = [{"key_scales": k, "value_scales": v} for k, v in zip(*both)]
        self._step: PagedStep | None = None

    def begin_step(self, page_table: Tensor, starts: Tensor, lengths: Tensor) -> None:
        """Says what the next forward pass is of.

        Args:
            page_table: int32 [R, max_pages], the numbers of each sequence's pages in order. Entries after its
                last token, and those that no query sees by a sliding window in any layer, may be anything.
            starts: int32 [R + 1]: sequence r has the tokens starts[r] to starts[r + 1] - 1 of the pass.
            lengths: int32 [R]: tokens of each sequence with those of the pass, which are its last.

        On the CPU they are checked without waiting for a device, and then copied to the pages'.

        Raises: ShapeError, DtypeError, ValueError for lengths that are less than the tokens of the pass, or
        more than the table has pages for; the pass raises IndexError for pages that there are not.
        """
        self.resume_step(PagedStep(page_table, starts, lengths).to(self.keys[0].device))

    def resume_step(self, step: PagedStep) -> None:
        """The same of a step that lies on the pages' device already.

        Args:
            step: of begin_step's kind.
        """
        self._step = step

    def _current(self) -> PagedStep:
        if self._step is None:
            raise RuntimeError("PagedCache: call begin_step before each forward pass")
        return self._step

    def check(self, batch: int, tokens: int) -> int:
        """The length of the longest sequence. ValueError unless the step has so many tokens.

        Args:
            batch, tokens: of the input.
        """
        step = self._current()
        if (batch, tokens) != tuple(step.positions.shape):
            raise ValueError(
                f"PagedCache: expected the step's tokens as {list(step.positions.shape)}, "
                f"got [{batch}, {tokens}]"
            )
        return step.longest

    def positions(self, tokens: int, device: Device) -> Tensor:
        """Of the step's tokens, [1, N].

        Args:
            tokens, device: not looked at.
        """
        return self._current().positions

    def attn_mask(self, tokens: int, window: int | None, device: Device) -> AttentionMask:
        """What the step's tokens see.

        Args:
            tokens, device: not looked at.
            window: None for all.
        """
        return AttentionMask(causal=True, window=window)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: AttentionMask,
        dropout: float,
        scoring: Scoring = PLAIN,
    ) -> Tensor:
        """Stores k and v [1, K, N, D]; attention of q [1, H, N, D], each token's to its own sequence.

        Args:
            layer: its number.
            q, k, v: of the step's tokens.
            attn_mask: what queries see.
            dropout: must be 0.
            scoring: what becomes of scores.
        """
        if dropout > 0:
            raise RuntimeError("PagedCache: attention to pages has no dropout; call model.eval()")
        step, pages = self._current(), (self.keys[layer], self.values[layer])
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # [N, H, D]
        _private._paged_store(*pages, k, v, step.slots, **self.scales[layer])
        metadata = (step.page_table, step.starts, step.lengths)
        more: dict[str, Any] = {"cap": scoring.cap}
        if scoring.sinks is not None:
            more["sinks"] = scoring.sinks.detach().float()
        more.update(self.scales[layer])
        y = _private._paged_attention(q, *pages, *metadata, None, attn_mask.window, **more)
        return y.transpose(0, 1).unsqueeze(0)

    def advance(self, tokens: int) -> None:
        """Ends the step.

        Args:
            tokens: not looked at.
        """
        self._step = None


class PagedStep:
    """What a forward pass with pages is of: what begin_step was told, and what follows from it.

    Args, Raises: those of PagedCache.begin_step, on the CPU.

    Attributes:
        positions: int64 [1, N], of the tokens in their sequences.
        slots: int64 [N], where their keys and values go.
        longest: of the sequences, in tokens.
    """

    FIELDS = ("page_table", "starts", "lengths", "positions", "slots")

    def __init__(self, page_table: Tensor, starts: Tensor, lengths: Tensor) -> None:
        size = PagedCache.TOKENS
        rows, pages = page_table.shape
        counts = starts[1:] - starts[:-1]
        if bool(((counts < 0) | (lengths < counts) | (lengths > pages * size)).any()):
            raise ValueError(
                f"begin_step: expected rising starts, and lengths from the number of new tokens to the "
                f"{pages} pages' {pages * size}, got starts {starts.tolist()} and lengths {lengths.tolist()}"
            )
        self.page_table, self.starts, self.lengths = page_table, starts, lengths
        self.longest = int(lengths.max())
        past = (lengths - starts[1:]).long()  # a token's position is its place in the step and this
        own = wt.arange(rows, device=starts.device).repeat_interleave(counts.long())
        at = wt.arange(own.shape[0], device=starts.device) + past[own]
        self.slots = page_table[own, at // size].long() * size + at % size
        self.positions = at.unsqueeze(0)

    def to(self, device: Device) -> PagedStep:
        """The step on a device.

        Args:
            device: where all tensors shall lie.
        """
        out = copy.copy(self)
        for field in self.FIELDS:
            setattr(out, field, getattr(self, field).to(device))
        return out

    def copy_(self, other: PagedStep) -> None:
        """Becomes another step of the same shapes, in the same memory.

        Args:
            other: of the same shapes.
        """
        self.longest = other.longest
        for field in self.FIELDS:
            getattr(self, field).copy_(getattr(other, field))
