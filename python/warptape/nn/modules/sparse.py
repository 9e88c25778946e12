"""Look-up tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warptape import core as wt
from warptape.core import Tensor

from .. import functional as F
from .. import init
from ..parameter import Parameter
from .module import Module

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["Embedding", "EmbeddingBag"]


class _Table(Module):
    """What Embedding and EmbeddingBag share: weight [num_embeddings, embedding_dim] and how rows are read."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None

    def _make(self, weight: Tensor | None, trained: bool, device: Device, dtype: wt.dtype | None) -> None:
        """Checks `padding_idx` and makes the weight, of the tensor that is given or with values drawn."""
        shape = (self.num_embeddings, self.embedding_dim)
        if self.padding_idx is not None:
            if not -self.num_embeddings <= self.padding_idx < self.num_embeddings:
                raise AssertionError("Padding_idx must be within num_embeddings")
            self.padding_idx %= self.num_embeddings
        if weight is not None and tuple(weight.shape) != shape:
            raise AssertionError("Shape of weight does not match num_embeddings and embedding_dim")
        values = wt.empty(shape, device=device, dtype=dtype) if weight is None else weight
        self.weight = Parameter(values, requires_grad=trained)
        if weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values; the padding row becomes zeros.

        All others are drawn from normal(0, 1).
        """
        init._embedding_(self.weight, self.padding_idx)

    def _options(self, *names: str) -> str:
        """The named attributes that are not at their defaults, as text."""
        usual = {"padding_idx": None, "max_norm": None, "norm_type": 2, "scale_grad_by_freq": False}
        usual["sparse"] = False
        shown = {name: getattr(self, name) for name in names}
        return "".join(f", {name}={value}" for name, value in shown.items() if value != usual[name])


class Embedding(_Table):
    """Indices [*] -> rows [*, embedding_dim] of weight [num_embeddings, embedding_dim], which starts
    normal(0, 1).

    The row `padding_idx` starts as zeros and gets no gradient. With `max_norm` the rows that are looked up
    are first scaled, in place, to a `norm_type`-norm of at most that. With `scale_grad_by_freq` a row's
    gradient is divided by how often it was looked up. With `sparse` the gradient is a sparse tensor of the
    rows that were looked up. `_weight` is a table to start from, `_freeze` leaves it untrained.

    Args:
        num_embeddings: the number of rows; indices must be less.
        embedding_dim: the size of a row.
        padding_idx: the row that is left untrained.
        max_norm, norm_type: the limit of a row's norm, and which norm.
        scale_grad_by_freq, sparse: as above.
        device, dtype: of the weight.

    Raises: AssertionError for a padding_idx outside the table and a `_weight` of another shape.

    >>> nn.Embedding(10, 4)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self._make(_weight, not _freeze, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    def extra_repr(self) -> str:
        text = self._options("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
        return f"{self.num_embeddings}, {self.embedding_dim}{text}"

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """A table of weight `embeddings` [num_embeddings, embedding_dim], left untrained if `freeze`.

        Args:
            embeddings: the table, which is not copied.
            freeze: whether the weight gets no gradient.
            padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: as of Embedding.

        Raises: AssertionError unless `embeddings` is 2-D.

        >>> nn.Embedding.from_pretrained(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))(torch.tensor([1]))
        tensor([[3., 4.]])
        """
        if embeddings.dim() != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, columns = embeddings.shape
        return cls(
            rows,
            columns,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
            _weight=embeddings,
            _freeze=freeze,
        )


class EmbeddingBag(_Table):
    """Indices [B, L], or [n] in bags that start at `offsets` [B] -> [B, embedding_dim]: the sum, mean or max
    (`mode`) over each bag of rows of weight [num_embeddings, embedding_dim], which starts normal(0, 1).

    Indices `padding_idx` do not count; their row starts as zeros. The other options are those of Embedding;
    with `include_last_offset` the last offset is the end of the last bag.

    Args:
        max_norm, norm_type: the limit of a row's norm, and which norm.
        scale_grad_by_freq: whether a row's gradient is divided by how often it was looked up.
        sparse: whether the gradient is a sparse tensor of the rows that were looked up.
        _weight: a table to start from.
        device, dtype: of the weight.

    >>> nn.EmbeddingBag(10, 3)(torch.tensor([[1, 2], [4, 5]])).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset
        self._make(_weight, True, device, dtype)

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        text = self._options("max_norm", "norm_type", "scale_grad_by_freq") + f", mode={self.mode!r}"
        return f"{self.num_embeddings}, {self.embedding_dim}{text}{self._options('padding_idx')}"

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """Bags over the weight `embeddings` [num_embeddings, embedding_dim], left untrained if `freeze`.

        Args:
            embeddings: the table, which is not copied.
            freeze: whether the weight gets no gradient.
            max_norm, norm_type, scale_grad_by_freq, mode, sparse, include_last_offset, padding_idx: as of
                EmbeddingBag.

        Raises: AssertionError unless `embeddings` is 2-D.
        """
        if embeddings.dim() != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, columns = embeddings.shape
        embedding = cls(
            rows,
            columns,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            mode=mode,
            sparse=sparse,
            _weight=embeddings,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
        )
        embedding.weight.requires_grad = not freeze
        return embedding
