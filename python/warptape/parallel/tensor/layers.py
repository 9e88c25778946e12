"""Layers of which each rank holds and computes a part.

"Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", section 3; sequence
parallelism (the placements Shard(1) at the borders) is "Reducing Activation Recomputation in Large
Transformer Models", section 4.2.2.

Made directly, a layer draws the whole of its weights as its unsplit twin does, in the same order, and keeps
its part: the same seed on all ranks (and in one process) gives the same start, and the memory of one whole
layer is needed for a moment.

Shapes: n ranks; B batch, T sequence, C width, H heads, K key and value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ... import nn
from ...core import Tensor
from ...distributed import DeviceMesh, functional
from ...nn import functional as F
from ..dtensor.placement import Partial, Replicate, Shard, check_mesh
from ..dtensor.tensor import place, plain
from .random import split_randomness
from .redistribute import for_split_work, redistribute

_FULL, _LAST = Replicate(), Shard(-1)
Layer = TypeVar("Layer", bound="SplitLayer")


class SplitLayer(nn.Module):
    """What the split layers share: the mesh, and where inputs and outputs lie.

    Args:
        mesh: of one axis.
        input_layouts, output_layouts: whether they are split.
        split_size: the attribute that the ranks divide.
        split_dims: by name of parameter.
    """

    mesh: DeviceMesh
    input_layouts: Shard | Replicate
    output_layouts: Shard | Replicate

    split_size: str  # the attribute that is divided
    split_dims: dict[str, int]  # of the parameters that are split; the others are replicated

    @classmethod
    def splits(cls, parts: Any = None) -> dict[str, Shard]:
        """How the parameters of an unsplit layer are split.

        Args:
            parts: sizes of matrices that are joined in one; None for one.
        """
        return {name: Shard(dim, parts) for name, dim in cls.split_dims.items()}

    @classmethod
    def check(cls, layer: Any, ranks: int, parts: Any, where: str) -> None:
        """Raises ValueError, without any change, when an unsplit layer cannot be split among `ranks`.

        Args:
            layer: unsplit.
            ranks: how many.
            parts: sizes of matrices that are joined in one.
            where: names the layer in the error.
        """
        Shard(0, parts).check(getattr(layer, cls.split_size), ranks, f"{where}: {cls.split_size}")
        for extra in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(layer, extra, None):
                raise ValueError(f"{where}: an Embedding with {extra} cannot be split; leave it out")

    @classmethod
    def take_over(
        cls: type[Layer], layer: Any, mesh: DeviceMesh, inputs: Any, outputs: Any, parts: Any = None
    ) -> Layer:
        """Turns an unsplit layer, in place, into this rank's part of it.

        Args:
            layer: unsplit, changed.
            mesh: of one axis.
            inputs, outputs: how they lie.
            parts: sizes of matrices that are joined in one.
        """
        splits = cls.splits(parts)
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                place(parameter, mesh, [splits.get(name, Replicate())])
        layer.__class__ = cls
        layer.mesh, layer.parts = mesh, parts
        layer.input_layouts, layer.output_layouts = inputs, outputs
        layer._taken_over()
        return layer

    def _taken_over(self) -> None:
        """What is left to do once the parameters are split."""

    def _made(self, name: str, mesh: DeviceMesh, inputs: Any, outputs: Any, parts: Any = None) -> None:
        """As take_over, for a layer made directly."""
        cls = type(self)
        check_mesh(mesh, name)
        cls.check(self, mesh.size(), parts, name)
        cls.take_over(self, mesh, inputs, outputs, parts)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, part {self.mesh.get_local_rank()} of {self.mesh.size()}"


class ColumnParallelLinear(SplitLayer, nn.Linear):
    """[*, in_features] -> [*, out_features / n]: weight [out_features / n, in_features] and bias are split.

    Args:
        parts: sizes along out_features (or how many of one size) of which each is split by itself: queries,
            keys and values in one matrix are parts=(H * D, K * D, K * D).
        input_layouts: where the input lies; Shard(1) is gathered along the sequence.
        output_layouts: Shard(-1), or Replicate() to gather [*, out_features].
    """

    split_size, split_dims = "out_features", {"weight": 0, "bias": 0}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        mesh: DeviceMesh,
        parts: int | tuple[int, ...] | None = None,
        input_layouts: Shard | Replicate = _FULL,
        output_layouts: Shard | Replicate = _LAST,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._made("ColumnParallelLinear", mesh, input_layouts, output_layouts, parts)

    def forward(self, input: Tensor) -> Tensor:
        x = for_split_work(input, self.input_layouts, self.mesh)
        y = F.linear(x, plain(self.weight), None if self.bias is None else plain(self.bias))
        return redistribute(y, Shard(-1, self.parts), _like(self.output_layouts, self.parts), self.mesh)


def _like(outputs: Shard | Replicate, parts: Any) -> Shard | Replicate:
    """Shard(-1) as the output of a layer of such parts."""
    return Shard(-1, parts) if outputs == Shard(-1) else outputs


class RowParallelLinear(SplitLayer, nn.Linear):
    """[*, in_features / n] -> [*, out_features]: weight [out_features, in_features / n] is split, bias is
    not: it is added once, after the sum over the ranks.

    Args:
        input_layouts: Shard(-1), or Replicate() for an input of which each rank takes its part.
        output_layouts: Replicate(), or Shard(1) to leave the sum by parts of the sequence.
    """

    split_size, split_dims = "in_features", {"weight": 1}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        mesh: DeviceMesh,
        input_layouts: Shard | Replicate = _LAST,
        output_layouts: Shard | Replicate = _FULL,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._made("RowParallelLinear", mesh, input_layouts, output_layouts)

    def _taken_over(self) -> None:
        if self.bias is not None and isinstance(self.output_layouts, Shard):
            self.bias.gradient_is_summed = True  # type: ignore[attr-defined]  # by forward; for verify

    def forward(self, input: Tensor) -> Tensor:
        x = redistribute(input, self.input_layouts, Shard(-1), self.mesh)
        y = redistribute(F.linear(x, plain(self.weight)), Partial(), self.output_layouts, self.mesh)
        return y if self.bias is None else y + self._local_bias().to(y.dtype)

    def _local_bias(self) -> Tensor:
        """Where outputs are split each rank adds it to rows of its own, and its gradients are summed."""
        bias = plain(self.bias)
        split = isinstance(self.output_layouts, Shard)
        return functional.pass_through_all_reduce(bias, self.mesh.get_group()) if split else bias


class _SplitEmbedding(SplitLayer, nn.Embedding):
    """What the split tables share; indices are replicated."""

    _outputs: Shard | Replicate  # where the output lies by default

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mesh: DeviceMesh,
        output_layouts: Shard | Replicate | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self._made(type(self).__name__, mesh, Replicate(), output_layouts or self._outputs)


class ColumnParallelEmbedding(_SplitEmbedding):
    """Indices [*] -> [*, C / n]: each rank holds a part of every row, weight [V, C / n].

    With output_layouts Replicate() [*, C] is gathered.
    """

    split_size, split_dims = "embedding_dim", {"weight": 1}
    _outputs = _LAST

    def forward(self, input: Tensor) -> Tensor:
        y = F.embedding(input, plain(self.weight), self.padding_idx)
        return redistribute(y, Shard(-1), self.output_layouts, self.mesh)


class VocabParallelEmbedding(_SplitEmbedding):
    """Indices [*] -> [*, C]: each rank holds rows of the table, weight [V / n, C].

    With output_layouts Shard(1) the rows [B, T / n, C] are left by parts of the sequence. Raises ValueError
    for a vocabulary that does not divide (pad it), IndexError for an index outside of it.
    """

    split_size, split_dims = "num_embeddings", {"weight": 0}
    _outputs = _FULL

    def forward(self, input: Tensor) -> Tensor:
        rows = self.num_embeddings // self.mesh.size()
        first = rows * self.mesh.get_local_rank()
        away = (input >= 0) & (input < self.num_embeddings) & ((input < first) | (input >= first + rows))
        padding = None if self.padding_idx is None else self.padding_idx - first
        if padding is not None and not 0 <= padding < rows:
            padding = None
        # An index outside of the vocabulary is outside of every rank's rows: all ranks refuse it.
        y = F.embedding((input - first).masked_fill(away, 0), plain(self.weight), padding)
        y = y.masked_fill(away.unsqueeze(-1), 0)
        return redistribute(y, Partial(), self.output_layouts, self.mesh)


class ParallelSelfAttention(nn.Module):
    """Self-attention [B, T, C] -> [B, T, C] whose heads are shared among ranks, with rotary or other changes
    left to a subclass's `attend`.

    Weights: qkv [(H + 2 K) * D, C], which draws and splits as one Linear of parts (H * D, K * D, K * D), and
    out [C, H * D].

    Args:
        heads, kv_heads: H and K (H if None); both must divide by n, and H by K.
        dropout: of the attention's probabilities, the same that one process drops.
        sequence_dim: with 1, input and output are parts [B, T / n, C] of the sequence.

    Raises: ValueError for numbers that do not divide.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        mesh: DeviceMesh,
        bias: bool = True,
        dropout: float = 0.0,
        is_causal: bool = True,
        sequence_dim: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shared = heads if kv_heads is None else kv_heads
        ranks = check_mesh(mesh, "ParallelSelfAttention").size()
        if width % heads or heads % shared:
            raise ValueError(
                f"ParallelSelfAttention: expected a width that divides by heads, and heads by kv_heads, got "
                f"width {width}, heads {heads}, kv_heads {shared}"
            )
        Shard(0).check(heads, ranks, "ParallelSelfAttention: heads")
        Shard(0).check(shared, ranks, "ParallelSelfAttention: kv_heads")
        size = width // heads
        self.mesh, self.head_size, self.dropout, self.is_causal = mesh, size, dropout, is_causal
        outside: Any = Replicate() if sequence_dim is None else Shard(sequence_dim)
        rows, options = (heads * size, shared * size, shared * size), {"device": device, "dtype": dtype}
        self.qkv = ColumnParallelLinear(
            width, sum(rows), bias, mesh=mesh, parts=rows, input_layouts=outside, **options
        )
        self.out = RowParallelLinear(width, width, bias, mesh=mesh, output_layouts=outside, **options)
        self.rows = [n // ranks for n in rows]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, H / n, T, D], k and v [B, K / n, T, D] -> [B, H / n, T, D].

        H and K are the heads of queries and of keys, n the ranks.

        Args:
            q, k, v: this rank's heads.
        """
        p = self.dropout if self.training else 0.0
        with split_randomness(self.mesh, heads=True):
            return F.scaled_dot_product_attention(
                q, k, v, dropout_p=p, is_causal=self.is_causal, enable_gqa=q.shape[1] != k.shape[1]
            )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for part in self.qkv(x).split(self.rows, dim=-1)
        )
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
