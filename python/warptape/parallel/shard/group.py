"""The parameters of one module that are put together, and given back, at once.

"ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5, by parameters, as in
"PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".

Note [two tensors]: a parameter is the part that the optimizer sees, and a leaf for the whole, which modules
have while it is there. The leaf stays the same tensor and only its memory comes and goes: so what the graph
saved is there again once the whole is put together for backward, and nobody but the leaf keeps it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import warptape

from ... import nn
from ..._tensor import Tensor
from ..tensor.placement import ParallelParameter
from .offload import HostParts, add_gradient
from .transport import Gathering, Scattering


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """dtypes of fully_shard; None leaves what is there.

    Args:
        param_dtype: of the wholes, so of the module's arithmetic and of what is sent.
        reduce_dtype: in which gradients are added up; by default that of the gradients.
        output_dtype: of what forward returns.
        cast_forward_inputs: whether floating inputs of forward become `param_dtype`.
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True


class Entry:
    """One parameter: `part` and `whole` of Note [two tensors], and the modules that have it; `size` is that
    of the whole along `dim`, the one that is split; `device` is the whole's, None for the part's."""

    def __init__(
        self, part: Any, places: Sequence[tuple[nn.Module, str]], dim: int = 0, device: Any = None
    ) -> None:
        self.part, self.places, self.dim, self.device = part, places, dim, device
        self.size = part.shape[dim]
        values = part.detach()
        if device is not None and part.device.type != "meta":
            values = values.to(device)
        # One that tensor parallelism splits has a hook and a layout there; it is made with them.
        self.whole: Any = (
            part._moved(values.clone())
            if isinstance(part, ParallelParameter)
            else nn.Parameter(values, part.requires_grad)
        )
        self.kept: Tensor | None = None  # a gradient that was not reduced
        self.version = 0  # of the whole when it was put together

    @property
    def name(self) -> str:
        """For messages."""
        module, name = self.places[0]
        return f"{type(module).__name__}.{name}"

    def empty(self) -> None:
        """Lets go of the whole's memory. Whoever still uses it for backward gets an error: a version that no
        saved tensor has."""
        nothing = warptape.empty(0, dtype=self.part.dtype, device=self.whole.device)
        for _ in range(5):
            nothing.zero_()
        self.whole.data = nothing

    def padded_part(self, rows: int, dtype: Any) -> Tensor:
        """This rank's part, [rows, ...]."""
        x = self.part.detach()
        if self.device is not None:
            x = x.to(self.device, non_blocking=True)
        x = x.to(dtype) if dtype is not None and x.is_floating_point() else x
        return self.padded(x, rows)

    def padded(self, x: Tensor, rows: int) -> Tensor:
        """What lies as the parameter does, with `dim` first, as long as `rows`."""
        return _padded(x.movedim(self.dim, 0).contiguous() if self.dim else x, rows)

    def cut(self, x: Tensor, size: int) -> Tensor:
        """The inverse of padded."""
        return x[:size].movedim(0, self.dim).contiguous() if self.dim else x[:size]

    def install(self, tensor: Any) -> None:
        """Modules have this tensor now."""
        for module, name in self.places:
            module._parameters[name] = tensor


def _padded(x: Tensor, rows: int) -> Tensor:
    if x.shape[0] == rows:
        return x
    out = warptape.zeros((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
    out[: x.shape[0]].copy_(x)
    return out


class ParameterGroup:
    """The entries of one module, in one of two states: in parts, or whole (`is_whole`).

    Args:
        ranks: the group of ranks among which parameters are split.
        copies: the group of ranks that have the same parts, or None.
        host: where parts lie on the CPU, else None.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        ranks: Any,
        copies: Any,
        policy: MixedPrecisionPolicy,
        host: HostParts | None = None,
    ) -> None:
        self.entries, self.ranks, self.copies, self.policy = list(entries), ranks, copies, policy
        self.host = host
        self.reshard_after_forward = self.reshard_after_backward = True
        self.sync = True
        self.divisor: float | None = None
        self.is_whole = self.fresh = False  # fresh: made whole by unshard(), for the next forward
        self.gathering: Gathering | None = None
        self.arrived: set[int] = set()  # entries whose gradient came in this backward pass
        self.reducing: tuple[list[Entry], Scattering] | None = None
        self.progress: Any = None  # the Progress that is told of gradients
        for i in range(len(self.entries)):
            self._watch(i)

    def _watch(self, i: int) -> None:
        """Lets the whole of an entry tell of its gradient, and go until it is needed."""
        entry = self.entries[i]
        entry.part.reduced_by_group = entry.whole.is_gathered = True
        if entry.whole.dtype.is_floating_point:
            trained = entry.whole.requires_grad
            entry.whole.requires_grad_().register_post_accumulate_grad_hook(_Arrival(weakref.ref(self), i))
            entry.whole.requires_grad_(trained)
        entry.empty()

    def take_moved(self) -> None:
        """Takes the Parameters that modules have got in place of the parts, from the meta device or to it."""
        for i, entry in enumerate(self.entries):
            module, name = entry.places[0]
            part: Any = module._parameters[name]
            if part is not entry.part:
                nothing = warptape.empty(0, dtype=part.dtype, device=entry.device or part.device)
                split = isinstance(entry.whole, ParallelParameter)
                whole = entry.whole._moved(nothing) if split else nn.Parameter(nothing, part.requires_grad)
                entry.part, entry.whole = part, whole
                entry.install(part)
                self._watch(i)
            if self.host is not None:
                self.host.keep(entry.part)

    def rows(self, entry: Entry) -> int:
        """Of the longest part."""
        return -(-entry.size // self.ranks.size())

    def start(self, async_op: bool = True) -> None:
        """Begins to put the parameters together."""
        if not self.is_whole and self.gathering is None and self.entries:
            dtype = self.policy.param_dtype
            with self.host.going_up() if self.host is not None else contextlib.nullcontext():
                parts = [e.padded_part(self.rows(e), dtype) for e in self.entries]
                self.gathering = Gathering(parts, self.ranks, async_op)

    def _gathered(self) -> list[Tensor]:
        """The wholes that were begun, taken apart where they came up."""
        gathering, self.gathering = self.gathering, None
        if gathering is None:
            return []
        with self.host.upload_stream() if self.host is not None else contextlib.nullcontext():
            return gathering.wait()

    def make_whole(self) -> None:
        """Modules have whole parameters now."""
        if self.is_whole:
            return
        self.start(async_op=False)
        wholes = self._gathered()
        self.is_whole = True
        for entry, whole in zip(self.entries, wholes, strict=True):
            if self.host is not None:
                self.host.take(whole)
            entry.whole.data = entry.cut(whole, entry.size)
            entry.version = entry.whole._version
            if entry.whole.requires_grad != entry.part.requires_grad:
                entry.whole.requires_grad_(entry.part.requires_grad)
            entry.install(entry.whole)

    def reshard(self) -> None:
        """Modules have their parts again, and the memory of the wholes is free."""
        self._gathered()
        self.fresh = False
        if self.host is not None:
            self.host.wait_uploaded()
        if self.is_whole:
            self.is_whole = False
            written = [entry.name for entry in self.entries if entry.whole._version != entry.version]
            for entry in self.entries:
                entry.install(entry.part)
                entry.empty()
            if written:
                raise RuntimeError(
                    f"fully_shard: {', '.join(written)} was changed in place while gathered, a change that "
                    "goes with the gathered copy; make it between passes, when this rank has its part, or "
                    "leave the parameter out by ignored_params"
                )

    def trained(self) -> int:
        """How many are not frozen."""
        return sum(e.part.requires_grad for e in self.entries)

    def reduce(self) -> None:
        """Begins to average the gradients that came, or keeps them for a later pass that does."""
        entries = [self.entries[i] for i in sorted(self.arrived)]
        self.arrived.clear()
        for entry in entries:
            gradient = entry.whole.grad.detach()
            entry.whole.grad = None
            if self.policy.reduce_dtype is not None:
                gradient = gradient.to(self.policy.reduce_dtype)
            entry.kept = gradient if entry.kept is None else entry.kept.add_(gradient)
        if not self.sync:
            return
        entries = [e for e in self.entries if e.kept is not None]
        n = self.ranks.size()
        wholes: list[Any] = []
        for entry in entries:
            wholes.append(entry.padded(entry.kept, n * self.rows(entry)))  # type: ignore[arg-type]
            entry.kept = None
        self.reducing = entries, Scattering(wholes, self.ranks, self.copies, self.divisor)

    def finish_reducing(self) -> None:
        """Adds the averages to the gradients of the parts."""
        if self.reducing is None:
            return
        entries, scattering = self.reducing
        self.reducing = None
        for entry, gradient in zip(entries, scattering.wait(), strict=True):
            part = entry.part
            gradient = entry.cut(gradient, part.shape[entry.dim]).to(part.dtype)
            if self.host is not None:
                self.host.send_down(part, gradient)
                continue
            add_gradient(part, gradient)

    def settle(self) -> None:
        """At the end of backward: gradients are where the parts are."""
        if self.host is not None:
            self.host.settle()


class _Arrival:
    """The hook on a whole: its gradient is complete for this backward pass."""

    def __init__(self, group: weakref.ref[ParameterGroup], index: int) -> None:
        self.group, self.index = group, index

    def __call__(self, whole: Tensor) -> None:
        group = self.group()
        if group is not None and group.progress is not None:
            group.arrived.add(self.index)
            group.progress.arrived(group)
