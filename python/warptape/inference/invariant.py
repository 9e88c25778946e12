"""The engine's row computations with gradients: a trainer's forward that gives the sampler's bits.

A row of these linear layers, and a token's attention, do not depend on how many rows there are, on how they
are cut into calls, or on what else is computed. They are the kernels that LLMEngine runs. Gradients are those
of the plain formulas, whose own sums may depend on the number of rows.

B sequences of a batch, T tokens of each, C width, H heads, K heads of keys and values, D width of a head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from warptape import _C, nn
from warptape import core as wt

from ..autograd import Function, grad
from ..core import Tensor
from ..core.overrides import TorchFunctionMode
from ..func import functional_call
from ..models.adopted import decoder_of
from ..models.cache import PLAIN, AttentionMask, PagedCache, Scoring, attend, causal_mask
from ..models.pretrained import PreTrained
from ..nn.functional import linear

if TYPE_CHECKING:
    from warptape.core.types import Device

    from ..models import Decoder

_ops: Any = _C._private
_ROWS = 64  # of logits, whose softmax is in memory at a time


class _Linear(Function):
    """x weight^T + bias, packed as the engine packs it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        out: Tensor = _ops._packed_linear(x, _ops._pack_linear_weight(weight), weight.shape[0], bias)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        return (
            gradient @ weight if ctx.needs_input_grad[0] else None,
            rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


class _Chosen(Function):
    """The log-probabilities [N] of tokens by logits [N, V], as the sampler computes them: another order of
    its sum in float64 would change bits where a token is nearly certain."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor) -> Tensor:
        ctx.save_for_backward(logits, wanted)
        out: Tensor = _C._token_logprobs(logits, wanted.tolist())
        return out.to(logits.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, wanted = ctx.saved_tensors
        out = wt.empty_like(logits)
        split = zip(*(t.split(_ROWS) for t in (out, logits, wanted, gradient)))
        for part, given, token, g in split:
            part.copy_(given.softmax(-1) * -g.unsqueeze(1))
            part.scatter_add_(1, token.unsqueeze(1), g.unsqueeze(1))
        return out, None


class _Attention(Function):
    """Attention of a step's tokens to pages, each token's to its own sequence."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, pages: _Pages, mask: AttentionMask, scoring: Scoring
    ) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.bounds, ctx.window, ctx.scoring = pages.bounds, mask.window, scoring
        return PagedCache.attend(pages, 0, q, k, v, mask, 0.0, scoring)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        parts = []
        for first, end, count in _alike(ctx.bounds):
            tokens = (end - first) // count
            mask = causal_mask(tokens, 0, ctx.window, gradient.device)
            with wt.enable_grad():
                own = [_rows(t[:, :, first:end], count).detach().requires_grad_() for t in ctx.saved_tensors]
                q, k, v = own
                y = attend(q, k, v, mask, 0.0, ctx.scoring)
            of_rows = grad(y, own, _rows(gradient[:, :, first:end], count))
            parts.append([t.transpose(0, 1).flatten(1, 2).unsqueeze(0) for t in of_rows])
        return (*(wt.cat(each, 2) for each in zip(*parts)), None, None, None)


def _alike(bounds: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """First row, one after the last, and number of sequences of one length that follow each other."""
    out: list[tuple[int, int, int]] = []
    for first, end in bounds:
        if out and (out[-1][1] - out[-1][0]) // out[-1][2] == end - first:
            before, _, count = out.pop()
            out.append((before, end, count + 1))
        else:
            out.append((first, end, 1))
    return out


def _rows(t: Tensor, count: int) -> Tensor:
    """[1, H, B T, D] as [B, H, T, D]."""
    return t[0].unflatten(1, (count, -1)).transpose(0, 1)


class _Pages(PagedCache):
    """The pages of one layer, which every layer uses anew: keys and values are read in their own layer alone.

    Args:
        lengths: tokens of each sequence.
    """

    def __init__(self, config: Any, lengths: Sequence[int], dtype: Any, device: Device) -> None:
        counts = [-(-n // self.TOKENS) for n in lengths]
        one: Any = SimpleNamespace(
            num_key_value_heads=config.num_key_value_heads, head_dim=config.head_dim, num_hidden_layers=1
        )
        super().__init__(one, sum(counts), dtype=dtype, device=device)
        ends = list(accumulate(lengths))
        self.bounds = list(zip([0, *ends], ends))
        table = wt.zeros(len(lengths), max(counts), dtype=wt.int32)
        for row, (end, count) in enumerate(zip(accumulate(counts), counts)):
            table[row, :count] = wt.arange(end - count, end, dtype=wt.int32)
        starts, all_lengths = wt.tensor([0, *ends], dtype=wt.int32), wt.tensor([*lengths], dtype=wt.int32)
        self.begin_step(table, starts, all_lengths)

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
        """PagedCache's, with gradients of q, k and v.

        Args:
            layer, q, k, v, attn_mask, dropout, scoring: as there.
        """
        if dropout > 0:
            raise ValueError(
                "invariant: the engine has no dropout; the model must have none, or be in eval()"
            )
        if scoring.sinks is not None and scoring.sinks.requires_grad and wt.is_grad_enabled():
            raise NotImplementedError("invariant: gradients of attention's sinks")
        return _Attention.apply(q, k, v, self, attn_mask, scoring)


class invariant(TorchFunctionMode):
    """Within it `nn.functional.linear` is what the engine computes, and has gradients.

    A row of its result is the same to the bit for any number of rows. It holds for float32 and bfloat16 on
    the CPU, where input, weight and bias have one dtype; other calls are left as they are. The weight is
    packed anew in each call.

    Example::

        >>> with invariant():
        ...     y = model(x)
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls the engine's kernel in the place of `linear`."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "linear" and not types:
            bound = dict(zip(("input", "weight", "bias"), args)) | kwargs
            x, weight, bias = bound["input"], bound["weight"], bound.get("bias")
            one = {t.dtype for t in (x, weight, bias) if t is not None}
            if one <= {wt.float32} or one <= {wt.bfloat16}:
                return _Linear.apply(x, weight, bias)
        return func(*args, **kwargs)


def _sum_of_parts(layer: nn.Linear, ranks: int) -> Callable[[Tensor], Tensor]:
    """A linear layer as so many ranks of an engine compute it, each with a part of its inputs."""

    def forward(x: Tensor) -> Tensor:
        of_ranks = [t.contiguous() for t in layer.weight.chunk(ranks, 1)]
        products = [linear(part, weight) for part, weight in zip(x.chunk(ranks, -1), of_ranks)]
        out = reduce(wt.add, products)
        return out if layer.bias is None else out + layer.bias

    return forward


@contextlib.contextmanager
def _in_parts(decoder: Any, ranks: int) -> Iterator[None]:
    """In it the layers whose inputs an engine on several ranks splits add as these ranks do."""
    layers = [x for each in decoder.layers for x in (each.self_attn.o_proj, each.mlp.down_proj)]
    if any(type(layer) is not nn.Linear for layer in layers):
        raise NotImplementedError("token_logprobs: tensor_parallel_size of layers in few bits")
    for layer in layers:
        layer.forward = _sum_of_parts(layer, ranks)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Logits(nn.Module):
    """Logits [N, V] of a decoder's tokens in pages."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor, pages: _Pages) -> Tensor:
        """Of tokens [N].

        Args:
            tokens: of all sequences.
            pages: where these lie.
        """
        hidden = self.decoder.hidden(tokens.unsqueeze(0), cache=pages)
        return self.decoder.logits(hidden[0]).float()


def _check(model: Any, lengths: Sequence[int]) -> None:
    if not lengths or min(lengths) < 2:
        raise ValueError(f"token_logprobs: expected sequences of at least 2 tokens, got lengths {lengths}")
    dtype, config = model.embed_tokens.weight.dtype, model.config
    if dtype not in (wt.float32, wt.bfloat16):
        raise ValueError(f"token_logprobs: expected weights in float32 or bfloat16, got {dtype}")
    if config.latent is not None or config.experts is not None:
        raise NotImplementedError("token_logprobs: models with latent attention or experts")
    if model.training and max(config.embedding_dropout, config.residual_dropout, config.attention_dropout):
        raise ValueError("token_logprobs: the engine has no dropout; call model.eval(), or train without")


def token_logprobs(
    model: Any, sequences: Sequence[Sequence[int] | Tensor], *, tensor_parallel_size: int = 1
) -> list[Tensor]:
    """The log-probability of each token of some sequences but the first, with gradients: the engine's bits.

    What LLMEngine gives as logprobs of tokens that it drew, at temperature 1 and without penalties, is what
    this gives for them, however the sequences are put together. The softmax is the sampler's, in float64.

    Args:
        model: a Decoder, not packed, its weights in float32 or bfloat16; without dropout, or in evaluation
            mode. Its layers may be in int8 or int4 (`quantize_`), and have attached adapters. Or a model of
            transformers whose architecture Decoder has: see `models.decoder_of`.
        sequences: tokens of each, prompt and answer.
        tensor_parallel_size: the engine's, whose ranks add in another order than one does. The model is whole
            and in one process all the same.

    Returns:
        For a sequence of T tokens a float32 tensor [T - 1].

    Raises:
        ValueError: no sequence, one of less than two tokens, weights of another dtype, or dropout.
        NotImplementedError: a model with latent attention or experts, and gradients of attention's sinks.

    >>> from warptape.models import Decoder, DecoderConfig
    >>> sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    >>> model = Decoder(DecoderConfig(num_attention_heads=2, max_position_embeddings=8, **sizes))
    >>> [t.shape for t in token_logprobs(model, [[1, 2, 3], [4, 5]])]
    [torch.Size([2]), torch.Size([1])]
    """
    rows = [wt.as_tensor(each, dtype=wt.int64).flatten() for each in sequences]
    lengths = [row.shape[0] for row in rows]
    decoder, weights = model, None
    if not isinstance(model, PreTrained):
        decoder, weights = decoder_of(model)
    _check(decoder, lengths)
    weight = decoder.embed_tokens.weight if weights is None else weights["embed_tokens.weight"]
    pages = _Pages(decoder.config, lengths, weight.dtype, weight.device)
    reads, tokens = _Logits(decoder), wt.cat(rows).to(weight.device)
    parts = _in_parts(decoder, tensor_parallel_size) if tensor_parallel_size > 1 else contextlib.nullcontext()
    with invariant(), parts:
        if weights is None:
            logits = reads(tokens, pages)
        else:
            named: dict[str, Any] = {f"decoder.{name}": t for name, t in weights.items()}
            logits = functional_call(reads, named, (tokens, pages))
    wanted = wt.cat([wt.cat([row[1:], row[:1]]) for row in rows]).to(weight.device)  # the last is left out
    values = _Chosen.apply(logits, wanted)
    return [values[first : end - 1] for first, end in pages.bounds]
