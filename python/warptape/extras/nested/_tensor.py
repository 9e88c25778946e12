"""The class NestedTensor: an object that is the values of all sequences, and answers for the batch of them.

Its memory and its history are those of the values, [rows of all sequences, ..], so that autograd works on it
as on any tensor; what it says of itself, and every op on it, is taken over by `HANDLERS` (core/by_name.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from warptape import _C
from warptape import core as wt

from ...core import Tensor
from ...core.by_name import HandledTensor, Handlers
from ...core.protocols import OwnGradients
from ._ragged import Ragged

HANDLERS = Handlers(again=False)
handles = HANDLERS.handles


class NestedTensor(OwnGradients, HandledTensor):
    """A batch of sequences of several lengths, in the jagged layout: one behind the other, without padding.

    Made by torch.nested. Of its dims the first is the batch and one of the others ragged; ops run on the
    values, and are recorded. An op that is not taken over raises NotImplementedError.
    """

    handlers = HANDLERS
    _ragged: Ragged
    _ragged_idx: int
    is_nested = True
    layout = property(lambda self: wt.jagged, doc="torch.jagged.")  # type: ignore[assignment]

    def __new__(
        cls, values: Tensor, offsets: Tensor, *, lengths: Tensor | None = None, **more: Any
    ) -> NestedTensor:
        """Of parts, as torch.nested.nested_tensor_from_jagged; a leaf."""
        nested: NestedTensor = Tensor._make_subclass(cls, values, more.get("requires_grad", False))
        return attach(nested, Ragged(offsets, lengths), more.get("_ragged_idx", 1))

    @staticmethod
    def autograd_grad(grad: Any, outputs: Any, inputs: Any, *more: Any) -> Any:
        """autograd.grad, whose results are nested as the inputs are."""
        with _C.DisableTorchFunctionSubclass():
            grads = grad(outputs, inputs, *more)
        return tuple(
            wrap(g, i) if isinstance(i, NestedTensor) and g is not None else g for g, i in zip(grads, inputs)
        )

    # ---- the parts ----

    def values(self) -> Tensor:
        """The values of all sequences, with their history."""
        return plain(self)

    def offsets(self) -> Tensor:
        """[B + 1]: where in the values the sequences begin, and the last ends."""
        return self._ragged.offsets

    def lengths(self) -> Tensor | None:
        """[B], where sequences end before the next begins; else None."""
        return self._ragged.lengths

    _lengths = property(lengths)
    _offsets = property(offsets)
    _values = property(lambda self: plain(self).detach())
    _size = property(lambda self: self.shape)
    _max_seqlen = _maybe_max_seqlen = property(lambda self: self._ragged.most)
    _min_seqlen = _maybe_min_seqlen = property(lambda self: self._ragged.least)

    def _get_max_seqlen(self) -> int:
        return self._ragged.most

    def _get_min_seqlen(self) -> int:
        return self._ragged.least

    def to_padded_tensor(
        self, padding: float, output_size: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """As torch.nested.to_padded_tensor."""
        with _C.DisableTorchFunctionSubclass():
            padded = padded_tensor(self, padding, output_size)
        return padded if out is None else out.copy_(padded)

    # ---- what Python asks of an object ----

    def __len__(self) -> int:
        return self._ragged.count

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        more = f", requires_grad={self.requires_grad}" if self.requires_grad else ""
        if self.grad_fn is not None:
            more = f", grad_fn={self.grad_fn}"
        return (
            f"NestedTensor(size={tuple(self.shape)}, offsets={self._ragged.offsets}{more}, "
            f"contiguous={self.is_contiguous()})"
        )

    def tolist(self) -> Any:
        """Not available: RuntimeError."""
        raise RuntimeError(".tolist() is not supported for NestedTensor; take unbind() first")

    def numpy(self, *, force: bool = False) -> Any:
        """Not available: RuntimeError."""
        raise RuntimeError(".numpy() is not supported for NestedTensor; take values() or unbind() first")

    def to_sparse(
        self, sparse_dim: int | None = None, *, layout: wt.layout | None = None, **more: Any
    ) -> Any:
        """Not available: NotImplementedError."""
        raise unsupported("to_sparse")

    def __copy__(self) -> NestedTensor:
        return wrap(plain(self), self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            if not self.is_leaf:
                raise RuntimeError("deepcopy: only a leaf can be copied; use detach().clone()")
            copy = self.detach().clone()
            memo[id(self)] = copy.requires_grad_() if self.requires_grad else copy
        return memo[id(self)]

    def _parts(self) -> dict[str, Any]:
        """What a file has of it, under PyTorch's names."""
        return {
            "values": plain(self).detach(),
            "offsets": self._ragged.offsets,
            "lengths": self._ragged.lengths,
            "_ragged_idx": self._ragged_idx,
            "_metadata_cache": {},
            "requires_grad": self.requires_grad,
        }

    @staticmethod
    def from_parts(parts: dict[str, Any]) -> NestedTensor:
        """A nested tensor of what a file has: "values", "offsets", maybe "lengths" and "_ragged_idx"."""
        values, offsets, lengths = parts["values"], parts["offsets"], parts.get("lengths")
        at = parts.get("_ragged_idx", 1)
        return NestedTensor(
            values, offsets, lengths=lengths, _ragged_idx=at, requires_grad=bool(parts.get("requires_grad"))
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return _rebuild_njt, (self._parts(),)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What PyTorch's files have besides is in the parts."""

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """hook(gradient) -> gradient or None, of nested tensors."""

        def of_values(g: Tensor) -> Any:
            return hook(g if isinstance(g, NestedTensor) else wrap(g, self))

        return super().register_hook(of_values)


def plain(t: Tensor) -> Tensor:
    """The values with their history, as a plain tensor."""
    return _C._as_subclass(t, Tensor) if isinstance(t, NestedTensor) else t  # type: ignore[no-any-return]


def attach(made: Any, ragged: Ragged, ragged_idx: int) -> NestedTensor:
    """The object, with its structure."""
    made._ragged, made._ragged_idx = ragged, ragged_idx
    return made  # type: ignore[no-any-return]


def wrap(values: Tensor, like: NestedTensor, ragged_idx: int | None = None) -> NestedTensor:
    """Values, with their history, as a nested tensor of the structure that another has."""
    ragged = like._ragged.to(values.device)
    nested = _C._as_subclass(values, NestedTensor)
    return attach(nested, ragged, like._ragged_idx if ragged_idx is None else ragged_idx)


def shape_of(t: NestedTensor) -> tuple[int, ...]:
    """Its sizes, with the symbol in place of the ragged one."""
    with _C.DisableTorchFunctionSubclass():
        inner: tuple[int, ...] = tuple(t.shape)
    at = t._ragged_idx - 1
    return (t._ragged.count, *inner[:at], t._ragged.symbol, *inner[at + 1 :])


def packed(t: NestedTensor) -> NestedTensor:
    """The same sequences one behind the other; where there were rows between, of another structure."""
    ragged = t._ragged
    if ragged.lengths is None:
        return t
    sums = wt.cumsum(ragged.lengths, 0).to(wt.int64)
    offsets = wt.cat([sums.new_zeros(1), sums])
    values = ragged.packed_rows(plain(t), t._ragged_idx - 1)
    return attach(_C._as_subclass(values, NestedTensor), Ragged(offsets, None), t._ragged_idx)


def padded_tensor(t: NestedTensor, padding: float, output_size: Sequence[int] | None = None) -> Tensor:
    """The dense tensor [B, .., longest, ..]."""
    ragged, at = t._ragged, t._ragged_idx
    most = ragged.most
    if output_size is None:
        return ragged.to_padded(plain(t), at - 1, padding, most)
    inner = plain(t).shape
    natural = (ragged.count, *inner[: at - 1], most, *inner[at:])
    if len(output_size) != len(natural) or any(n < m for n, m in zip(output_size, natural)):
        raise RuntimeError(
            "Value in output_size is less than NestedTensor padded size. Truncation is not supported: "
            f"expected at least {list(natural)}, got {list(output_size)}"
        )
    padded = ragged.to_padded(plain(t), at - 1, padding, output_size[at])
    for dim, n in enumerate(output_size):
        if n > padded.size(dim):
            rest = padded.new_full(
                (*padded.shape[:dim], n - padded.size(dim), *padded.shape[dim + 1 :]), padding
            )
            padded = wt.cat([padded, rest], dim)
    return padded


def unsupported(name: str) -> NotImplementedError:
    """That there is no form of an op, and what to do."""
    return NotImplementedError(
        f"{name}: not supported for nested tensors of the jagged layout; torch.nested.to_padded_tensor makes "
        "a dense tensor, unbind() a tensor of each sequence"
    )


def _rebuild_njt(parts: dict[str, Any]) -> NestedTensor:
    """What pickles call."""
    return NestedTensor.from_parts(parts)
