"""Batches of sequences of different length, padded or packed. Legend: T the longest length, B sequences.

A packed batch holds the rows of all sequences step after step, longest sequence first, and no padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partialmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """data [N, *], the rows of all sequences; batch_sizes [T], an int64 tensor on the CPU: how many sequences
    take part in each step; sorted_indices and unsorted_indices [B]: the order they were given in, or None.

    Made by pack_padded_sequence and pack_sequence.
    """

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        """Also takes the pair (data, batch_sizes) as `data`."""
        if batch_sizes is None:
            data, batch_sizes = data
        elif batch_sizes.device.type != "cpu":
            raise _C.DeviceError(
                f"batch_sizes should always be on CPU, got {batch_sizes.device}. Packed sequences are made "
                "by pack_sequence and pack_padded_sequence."
            )
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """With the data converted as Tensor.to does, and the indices on its device.

        Args:
            *args, **kwargs: a device, a dtype or both, as of Tensor.to.
        """
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        indices = (i if i is None else i.to(data.device) for i in self[2:])
        return type(self)(data, self.batch_sizes, *indices)

    def cuda(self, device: Device = "cuda", non_blocking: bool = False) -> PackedSequence:
        """On a CUDA device.

        Args:
            device: of the kind "cuda".
            non_blocking: whether the copy may run beside the program.
        """
        return self.to(device, non_blocking=non_blocking)

    def cpu(self) -> PackedSequence:
        """The sequences on the CPU.

        Returns:
            A PackedSequence; this one where it lies there.
        """
        return self.to("cpu")

    def pin_memory(self) -> PackedSequence:
        """The sequences in page-locked memory, from which copies to a GPU are faster.

        Returns:
            A new PackedSequence.
        """
        indices = (i if i is None else i.pin_memory() for i in self[2:])
        return type(self)(self.data.pin_memory(), self.batch_sizes, *indices)

    def is_pinned(self) -> bool:
        """Whether the data is in page-locked memory."""
        return self.data.is_pinned()

    @property
    def is_cuda(self) -> bool:
        """Whether the data is on a CUDA device."""
        return self.data.is_cuda

    double = partialmethod(to, wt.float64)
    float = partialmethod(to, wt.float32)
    half = partialmethod(to, wt.float16)
    long = partialmethod(to, wt.int64)
    int = partialmethod(to, wt.int32)
    short = partialmethod(to, wt.int16)
    char = partialmethod(to, wt.int8)
    byte = partialmethod(to, wt.uint8)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """[B]: where each number of the permutation stands; None for None.

    Args:
        permutation: each of 0 .. B - 1 once.

    >>> nn.utils.rnn.invert_permutation(torch.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    if permutation is None:
        return None
    order = wt.arange(permutation.numel(), device=permutation.device, dtype=permutation.dtype)
    return wt.empty_like(permutation).scatter_(0, permutation, order)


def _real(lengths: Tensor, steps: int) -> Tensor:
    """[T, B]: whether a sequence of that length has the step."""
    return wt.arange(steps).unsqueeze(1) < lengths


def _rows(real: Tensor, device: Device) -> Tensor:
    """The packed rows' numbers among the T * B padded ones."""
    return wt.nonzero(real.reshape(-1)).squeeze(1).to(device)


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Packs input [T, B, *], or [B, T, *] with `batch_first`, of which sequence b has lengths[b] >= 1 steps.

    lengths: ints, or an int64 tensor on the CPU; in decreasing order unless `enforce_sorted` is false, which
    sorts them.

    >>> packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 1), [3, 2], batch_first=True)
    >>> packed.batch_sizes
    tensor([2, 2, 1])
    """
    lengths = wt.as_tensor(lengths, dtype=wt.int64)
    if lengths.dim() != 1 or lengths.device.type != "cpu":
        raise _C.ShapeError(
            "'lengths' argument should be a 1D CPU int64 tensor, "
            f"but got {lengths.dim()}D {lengths.device} {lengths.dtype} tensor"
        )
    order = None
    if not enforce_sorted:
        lengths, order = wt.sort(lengths, descending=True)
        order = order.to(input.device)
        input = input.index_select(0 if batch_first else 1, order)
    if batch_first:
        input = input.transpose(0, 1)
    if input.numel() == 0:
        raise _C.ShapeError("Cannot pack empty tensors.")
    steps, batch = input.shape[:2]
    each = lengths.tolist()
    if len(each) != batch:
        raise _C.ShapeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(each)} (batch_size={batch})"
        )
    if min(each) <= 0:
        raise _C.ShapeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if each != sorted(each, reverse=True):
        raise _C.ShapeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence."
        )
    if each[0] > steps:
        raise _C.ShapeError(f"Expected lengths of at most {steps}, the steps of the input, got {each[0]}")
    real = _real(lengths, each[0])
    rows = input[: each[0]].reshape(each[0] * batch, *input.shape[2:])
    return PackedSequence(rows.index_select(0, _rows(real, input.device)), real.sum(1), order)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The padded batch [T, B, *], or [B, T, *] with `batch_first`, and the lengths [B]; the opposite of
    pack_padded_sequence. `total_length`: T, at least the longest length (ValueError)."""
    data, batch_sizes, _, back = sequence
    longest = len(batch_sizes)
    steps = longest if total_length is None else total_length
    if steps < longest:
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {longest}"
        )
    batch = int(batch_sizes[0])
    lengths = (batch_sizes.unsqueeze(1) > wt.arange(batch)).sum(0)
    padded = wt.full((steps * batch, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    padded = padded.index_copy(0, _rows(_real(lengths, steps), data.device), data)
    padded = padded.view(steps, batch, *data.shape[1:])
    if batch_first:
        padded = padded.transpose(0, 1)
    if back is None:
        return padded, lengths
    return padded.index_select(0 if batch_first else 1, back), lengths[back.cpu()]


def pad_sequence(
    sequences: Tensor | Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences [length, *] as one tensor [T, B, *], or [B, T, *] with `batch_first`; what is missing at
    `padding_side`, "right" or "left", is `padding_value`.

    >>> nn.utils.rnn.pad_sequence([torch.tensor([1, 2]), torch.tensor([3])], batch_first=True)
    tensor([[1, 2],
            [3, 0]])
    """
    if not isinstance(sequences, Iterable):
        raise RuntimeError(
            f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}"
        )
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    listed = tuple(sequences)
    if not listed:
        raise RuntimeError("pad_sequence: received an empty list of sequences")
    longest = max(s.shape[0] for s in listed)
    padded = []
    for s in listed:
        missing = longest - s.shape[0]
        if missing:
            gap = wt.full((missing, *s.shape[1:]), padding_value, dtype=s.dtype, device=s.device)
            s = wt.cat([s, gap] if padding_side == "right" else [gap, s])
        padded.append(s)
    return wt.stack(padded, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The opposite of pad_sequence: [T, B, *] to B tensors [lengths[b], *].

    Args:
        padded_sequences: [T, B, *], or [B, T, *] if batch_first.
        lengths: [B].
        batch_first: whether B comes first.

    >>> nn.utils.rnn.unpad_sequence(torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]))
    [tensor([1, 3]), tensor([2])]
    """
    each = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [s[:n] for s, n in zip(each, lengths.tolist(), strict=True)]


def pack_sequence(sequences: list[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Packs sequences [length, *], longest first unless `enforce_sorted` is false.

    Args:
        sequences: B tensors of equal trailing dimensions.
        enforce_sorted: whether lengths must fall; without it they are sorted, and the order is kept in the
            result.

    >>> nn.utils.rnn.pack_sequence([torch.tensor([1, 2]), torch.tensor([3])]).data
    tensor([1, 3, 2])
    """
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch, in the order they were given.

    >>> packed = nn.utils.rnn.pack_sequence([torch.tensor([1, 2]), torch.tensor([3])])
    >>> nn.utils.rnn.unpack_sequence(packed)
    [tensor([1, 2]), tensor([3])]
    """
    return unpad_sequence(*pad_packed_sequence(packed_sequences, batch_first=True), batch_first=True)
