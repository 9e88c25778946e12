"""The parameters of one module that are put together, and given back, at once.

"ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5, by parameters, as in
"PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".

Note [two tensors]: a parameter is the shard that the optimizer sees, and a leaf for the full tensor, which
modules have while it is there. The leaf stays the same tensor and only its memory comes and goes: so what the
graph saved is there again once the full tensor is gathered for backward, and nobody but the leaf keeps it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import _C, nn
from ... import core as wt
from ...core import Tensor
from ...core.placed import mark_gathered
from ...distributed import all_reduce
from ..dtensor.placement import Shard
from ..dtensor.tensor import DTensor, plain
from .annotations import Annotation
from .offload import HostShards, add_gradient
from .transport import Gathering, Scattering


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """dtypes of fully_shard; None leaves what is there.

    Args:
        param_dtype: of the full tensors, so of the module's arithmetic and of what is sent.
        reduce_dtype: in which gradients are added up; by default that of the gradients.
        output_dtype: of what forward returns.
        cast_forward_inputs: whether floating inputs of forward become `param_dtype`.
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True


class Entry:
    """One parameter: `shard` and `full` of Note [two tensors], and the modules that have it; `size` is that
    of the full tensor along `dim`, the one that is split; `device` is the full tensor's, None for the
    shard's; `annotation` is of one that model-parallel code uses as a plain tensor."""

    def __init__(
        self,
        shard: Any,
        places: Sequence[tuple[nn.Module, str]],
        dim: int = 0,
        device: Any = None,
        annotation: Annotation | None = None,
    ) -> None:
        self.shard, self.places, self.dim, self.device, self.annotation = (
            shard,
            places,
            dim,
            device,
            annotation,
        )
        values = plain(shard).detach()
        self.size = values.shape[dim]
        if device is not None and values.device.type != "meta":
            values = values.to(device)
        split = isinstance(shard, DTensor) and annotation is None  # by tensor parallelism
        self.full: Any = self.full_parameter(values, shard._spec if split else None)
        self.kept: Tensor | None = None  # a gradient that was not reduced
        self.summed: Tensor | None = None  # its shard of one that was, but not over the copies
        self.version = 0  # of the full tensor when it was put together

    def full_parameter(self, values: Tensor, spec: Any) -> Any:
        """A leaf for the full tensor.

        Args:
            values: what it has at first.
            spec: of a DTensor; None makes a plain Parameter, with the notes of the shard.
        """
        if spec is not None:
            full: Any = DTensor(values, spec, requires_grad=self.shard.requires_grad)
            full._is_param = True
            return full
        full = nn.Parameter(values, self.shard.requires_grad)
        if self.annotation is not None:
            full.__dict__.update(self.annotation.notes)
        return full

    @property
    def name(self) -> str:
        """For messages."""
        module, name = self.places[0]
        return f"{type(module).__name__}.{name}"

    def is_left(self, all_reduce: bool) -> bool:
        """Whether a gradient of it waits to be reduced.

        Args:
            all_reduce: whether copies on other ranks count.
        """
        return self.kept is not None or (all_reduce and self.summed is not None)

    def empty(self) -> None:
        """Lets go of the full tensor's memory. Whoever still uses it for backward gets an error: a version
        that no saved tensor has."""
        nothing = wt.empty(0, dtype=self.shard.dtype, device=self.full.device)
        for _ in range(5):
            nothing.zero_()
        _DATA.__set__(self.full, nothing)

    def padded_shard(self, rows: int, dtype: Any) -> Tensor:
        """This rank's shard, [rows, ...].

        Args:
            rows: as many as the longest shard has.
            dtype: of the result; None keeps it.
        """
        x = plain(self.shard).detach()
        if self.device is not None:
            x = x.to(self.device, non_blocking=True)
        x = x.to(dtype) if dtype is not None and x.is_floating_point() else x
        return self.padded(x, rows)

    def padded(self, x: Tensor, rows: int) -> Tensor:
        """What lies as the parameter does, with `dim` first, as long as `rows`.

        Args:
            x: of the parameter's layout.
            rows: as many as the longest shard has.
        """
        return _padded(x.movedim(self.dim, 0).contiguous() if self.dim else x, rows)

    def cut(self, x: Tensor, size: int) -> Tensor:
        """The inverse of padded.

        Args:
            x: with `dim` first.
            size: without padding.
        """
        return x[:size].movedim(0, self.dim).contiguous() if self.dim else x[:size]

    def write_back(self, full: Tensor, ranks: Any) -> None:
        """Sets this rank's shard to that of a full tensor.

        Args:
            full: of the parameter's shape.
            ranks: the group.
        """
        plain(self.shard).detach().copy_(Shard(self.dim).take(full, ranks.rank(), ranks.size()))

    def install(self, tensor: Any) -> None:
        """Modules have this tensor now.

        Args:
            tensor: a shard or a full tensor.
        """
        for module, name in self.places:
            module._parameters[name] = tensor


_DATA: Any = Tensor.data
_GATHERED = 3  # the version of a full tensor, which must not depend on how its memory came about


def _padded(x: Tensor, rows: int) -> Tensor:
    if x.shape[0] == rows:
        return x
    out = wt.zeros((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
    out[: x.shape[0]].copy_(x)
    return out


class ParameterGroup:
    """The entries of one module, in one of two states: in shards, or gathered (`is_unsharded`).

    Args:
        ranks: the group of ranks among which parameters are split.
        copies: the group of ranks that have the same shard, or None.
        host: where shards lie on the CPU, else None.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        ranks: Any,
        copies: Any,
        policy: MixedPrecisionPolicy,
        host: HostShards | None = None,
    ) -> None:
        self.entries, self.ranks, self.copies, self.policy = list(entries), ranks, copies, policy
        self.host = host
        self.reshard_after_forward = self.reshard_after_backward = True
        self.sync = self.all_reduce = True
        self.divisor: float | None = None
        self.all_reduce_hook: Any = None
        self.comms: tuple[Any, Any] = (None, None)  # that gather and reduce, in place of the group's own
        self.near: Any = None  # the ranks that keep a whole between them after forward
        self.near_shards: list[Tensor] | None = None
        self.unshard_in_backward = True
        self.reduces_unused = False  # gradients that did not come are reduced as zeros
        self.is_unsharded = self.fresh = False  # fresh: gathered by unshard(), for the next forward
        self.gathering: Gathering | None = None
        self.arrived: set[int] = set()  # entries whose gradient came in this backward pass
        self.reducing: tuple[list[Entry], Scattering] | None = None
        self.progress: Any = None  # the Progress that is told of gradients
        for i in range(len(self.entries)):
            self._watch(i)

    def _watch(self, i: int) -> None:
        """Lets the whole of an entry tell of its gradient, and go until it is needed."""
        entry = self.entries[i]
        entry.shard.reduced_by_group = True
        mark_gathered(entry.full)
        if entry.full.dtype.is_floating_point:
            trained = entry.full.requires_grad
            entry.full.requires_grad_().register_post_accumulate_grad_hook(_Arrival(weakref.ref(self), i))
            entry.full.requires_grad_(trained)
        entry.empty()

    def take_moved(self) -> None:
        """Takes the Parameters that modules have got in place of the shards, from or to the meta device."""
        for i, entry in enumerate(self.entries):
            module, name = entry.places[0]
            shard: Any = module._parameters[name]
            if shard is not entry.shard:
                nothing = wt.empty(0, dtype=shard.dtype, device=entry.device or shard.device)
                entry.shard = shard
                entry.full = entry.full_parameter(nothing, getattr(entry.full, "_spec", None))
                entry.install(shard)
                self._watch(i)
            if self.host is not None:
                self.host.keep(entry.shard)

    def rows(self, entry: Entry) -> int:
        """Of the longest shard.

        Args:
            entry: one of the group.
        """
        return -(-entry.size // self.ranks.size())

    def start(self, async_op: bool = True) -> None:
        """Begins to put the parameters together.

        Args:
            async_op: whether the call returns at once.
        """
        if not self.is_unsharded and self.gathering is None and self.entries:
            dtype, ranks = self.policy.param_dtype, self.ranks
            with self.host.going_up() if self.host is not None else contextlib.nullcontext():
                if self.near_shards is not None:
                    shards, ranks = self.near_shards, self.near
                else:
                    shards = [e.padded_shard(self.rows(e), dtype) for e in self.entries]
                self.gathering = Gathering(shards, ranks, async_op, self.comms[0])

    def _gathered(self) -> list[Tensor]:
        """The full tensors that were begun, taken apart where they came up."""
        gathering, self.gathering = self.gathering, None
        if gathering is None:
            return []
        with self.host.upload_stream() if self.host is not None else contextlib.nullcontext():
            return gathering.wait()

    def unshard(self) -> None:
        """Modules have full parameters now."""
        if self.is_unsharded:
            return
        self.start(async_op=False)
        full_tensors = self._gathered()
        self.is_unsharded = True
        for entry, full in zip(self.entries, full_tensors, strict=True):
            if self.host is not None:
                self.host.take(full)
            _DATA.__set__(entry.full, entry.cut(full, entry.size))
            while entry.full._version < _GATHERED:
                _C._increment_version(entry.full)
            entry.version = entry.full._version
            if entry.full.requires_grad != entry.shard.requires_grad:
                entry.full.requires_grad_(entry.shard.requires_grad)
            entry.install(entry.full)

    def leave_forward(self) -> None:
        """As reshard(), but a whole stays among the ranks of `near`, for backward."""
        shards = None
        if self.near is not None and self.is_unsharded:
            n, rank = self.near.size(), self.near.rank()
            rows = [-(-entry.size // n) for entry in self.entries]
            shards = [
                entry.padded(plain(entry.full).detach(), n * most)[rank * most :][:most].clone()
                for entry, most in zip(self.entries, rows, strict=True)
            ]
        self.reshard()
        self.near_shards = shards

    def reshard(self) -> None:
        """Modules have their shards again, and the memory of the full tensors is free."""
        self._gathered()
        self.fresh, self.near_shards = False, None
        if self.host is not None:
            self.host.wait_uploaded()
        if self.is_unsharded:
            self.is_unsharded = False
            written = [entry.name for entry in self.entries if entry.full._version != entry.version]
            for entry in self.entries:
                entry.install(entry.shard)
                entry.empty()
            if written:
                raise RuntimeError(
                    f"fully_shard: {', '.join(written)} was changed in place while gathered, a change that "
                    "goes with the gathered copy; make it between passes, when this rank has its part, or "
                    "leave the parameter out by ignored_params"
                )

    def trained(self) -> int:
        """How many are not frozen, of those that modules have had last."""
        return sum(e.full.requires_grad for e in self.entries)

    def reduce(self) -> None:
        """Begins to average the gradients that came, or keeps them for a later pass that does."""
        entries = [self.entries[i] for i in sorted(self.arrived)]
        self.arrived.clear()
        for entry in entries:
            gradient = plain(entry.full.grad).detach()
            entry.full.grad = None
            if self.policy.reduce_dtype is not None:
                gradient = gradient.to(self.policy.reduce_dtype)
            entry.kept = gradient if entry.kept is None else entry.kept.add_(gradient)
        if not self.sync:
            return
        entries = [e for e in self.entries if e.is_left(self.all_reduce) or self._is_unused(e)]
        n = self.ranks.size()
        full_tensors: list[Any] = []
        for entry in entries:
            rows = n * self.rows(entry)
            if entry.kept is None and entry.summed is None:
                zero = (
                    plain(entry.shard)
                    .detach()
                    .new_zeros(())
                    .to(self.policy.reduce_dtype or entry.shard.dtype)
                )
                shape = list(plain(entry.shard).shape)
                del shape[entry.dim]
                full_tensors.append(zero.expand(rows, *shape).contiguous())
            elif entry.kept is None:
                full_tensors.append(entry.summed.new_zeros((rows, *entry.summed.shape[1:])))  # type: ignore[union-attr]
            else:
                full_tensors.append(entry.padded(entry.kept, rows))
            entry.kept = None
        more = {"hook": self.all_reduce_hook, "comm": self.comms[1]}
        options = {name: value for name, value in more.items() if value is not None}
        self.reducing = entries, Scattering(full_tensors, self.ranks, self.copies, self.divisor, **options)

    def _is_unused(self, entry: Entry) -> bool:
        return self.reduces_unused and entry.full.requires_grad

    def has_left(self) -> bool:
        """Whether gradients of earlier passes wait for one that reduces."""
        return any(e.is_left(self.all_reduce) or self._is_unused(e) for e in self.entries)

    def finish_reducing(self) -> None:
        """Adds the averages to the gradients of the shards."""
        if self.reducing is None:
            return
        entries, scattering = self.reducing
        self.reducing = None
        before, last = [entry.summed for entry in entries], self.all_reduce
        for entry, gradient in zip(entries, scattering.wait(before, last), strict=True):
            entry.summed = None if last else gradient
            if not last:
                continue
            shard, held = entry.shard, plain(entry.shard)
            for group in entry.annotation.summands if entry.annotation is not None else ():
                all_reduce(gradient, group=group)
            gradient = entry.cut(gradient, held.shape[entry.dim]).to(held.dtype)
            if self.host is not None:
                self.host.send_down(shard, gradient)
                continue
            add_gradient(shard, gradient)

    def settle(self) -> None:
        """At the end of backward: gradients are where the shards are."""
        if self.host is not None:
            self.host.settle()


class _Arrival:
    """The hook on a full tensor: its gradient is complete for this backward pass."""

    def __init__(self, group: weakref.ref[ParameterGroup], index: int) -> None:
        self.group, self.index = group, index

    def __call__(self, full: Tensor) -> None:
        group = self.group()
        if group is not None and group.progress is not None:
            group.arrived.add(self.index)
            group.progress.arrived(group)
