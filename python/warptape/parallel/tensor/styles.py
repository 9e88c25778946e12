"""What a plan says of a module: torch.distributed.tensor.parallel's styles, and `divide`.

Placements of inputs and outputs are those of plain tensors. A module lies in one of three regions: what it
computes is replicated, split by features or heads, or split along the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import nn
from ...core import Tensor
from ...distributed import DeviceMesh, functional
from ..dtensor.placement import Placement, Replicate, Shard
from ..dtensor.tensor import DTensor, place, plain
from .layers import (
    ColumnParallelEmbedding,
    ColumnParallelLinear,
    RowParallelLinear,
    SplitLayer,
    VocabParallelEmbedding,
)
from .random import RandomnessHooks
from .redistribute import for_split_work, hand_over, redistribute


class ParallelStyle:
    """One thing to do to a module. A plan is checked as a whole before any module is changed.

    A style of one's own overrides `apply`, and `check` and `placements` where there is something to say.
    """

    def check(self, name: str, module: nn.Module, ranks: int) -> None:
        """Raises ValueError when the module cannot be treated so.

        Args:
            name: of the module, for the error.
            module: not changed.
            ranks: how many.
        """

    def placements(self, module: nn.Module) -> dict[str, Shard | Replicate]:
        """Where parameters of the module will lie, by name.

        Args:
            module: not changed.
        """
        return {}

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Changes the module in place.

        Args:
            module: changed.
            mesh: of one axis.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v}" for k, v in vars(self).items() if v is not None)
        return f"{type(self).__name__}({settings})"


def _local(x: Any, want: Any) -> Any:
    """What this rank holds of a DTensor, brought to a layout; other values as they are."""
    if not isinstance(x, DTensor):
        return x
    return x.to_local() if want is None else x.redistribute(placements=[want]).to_local()


def _as_dtensor(x: Any, layout: Any, mesh: DeviceMesh) -> Any:
    """A part as the DTensor that it is a part of."""
    if not isinstance(x, Tensor) or layout is None or isinstance(x, DTensor):
        return x
    return DTensor.from_local(x, mesh, [layout])


class _SplitStyle(ParallelStyle):
    """A Linear or an Embedding becomes one of the split layers. It takes DTensors, too, and returns one with
    use_local_output=False."""

    kinds: dict[type, type[SplitLayer]]
    input_layouts: Any
    output_layouts: Any
    parts: Any = None
    use_local_output = True

    def _kind(self, name: str, module: nn.Module) -> type[SplitLayer]:
        for kind, split in self.kinds.items():
            if type(module).forward is kind.forward:  # type: ignore[attr-defined]
                return split
        raise ValueError(
            f"{name}: {type(self).__name__} splits nn.Linear and nn.Embedding, got {type(module).__name__}"
            f"{', which is split already' if isinstance(module, SplitLayer) else ''}"
        )

    def check(self, name: str, module: nn.Module, ranks: int) -> None:
        kind = self._kind(name, module)
        if self.parts is not None and not issubclass(kind, ColumnParallelLinear):
            raise ValueError(f"{name}: parts are those of a Linear's columns; leave parts out")
        kind.check(module, ranks, self.parts, name)

    def placements(self, module: nn.Module) -> dict[str, Shard | Replicate]:
        splits = self._kind("", module).splits(self.parts)
        return {name: splits.get(name, Replicate()) for name, _ in module.named_parameters()}

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        self._kind("", module).take_over(module, mesh, self.input_layouts, self.output_layouts, self.parts)
        have, out = self.input_layouts, self.output_layouts
        module.register_forward_pre_hook(lambda m, args: (_local(args[0], have), *args[1:]))
        if not self.use_local_output:
            module.register_forward_hook(lambda m, args, y: _as_dtensor(y, out, mesh))


class ColwiseParallel(_SplitStyle):
    """A Linear is split by its outputs, an Embedding by the columns of its table.

    `parts` as ColumnParallelLinear's: sizes, or how many of one size, of what is joined in one Linear.
    """

    kinds = {nn.Linear: ColumnParallelLinear, nn.Embedding: ColumnParallelEmbedding}

    def __init__(
        self,
        *,
        input_layouts: Shard | Replicate | None = None,
        output_layouts: Shard | Replicate | None = None,
        use_local_output: bool = True,
        parts: int | Sequence[int] | None = None,
    ) -> None:
        self.use_local_output = use_local_output
        self.input_layouts = input_layouts or Replicate()
        self.output_layouts = output_layouts or Shard(-1)
        self.parts = tuple(parts) if isinstance(parts, Sequence) else parts


class RowwiseParallel(_SplitStyle):
    """A Linear is split by its inputs, an Embedding by the rows of its table (the vocabulary).

    The input of a Linear is Shard(-1) by default, that of an Embedding is replicated always.
    """

    kinds = {nn.Linear: RowParallelLinear, nn.Embedding: VocabParallelEmbedding}

    def __init__(
        self,
        *,
        input_layouts: Shard | Replicate | None = None,
        output_layouts: Shard | Replicate | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.use_local_output = use_local_output
        self.input_layouts = input_layouts or Shard(-1)
        self.output_layouts = output_layouts or Replicate()

    def check(self, name: str, module: nn.Module, ranks: int) -> None:
        super().check(name, module, ranks)
        if self.output_layouts == Shard(-1) and getattr(module, "bias", None) is not None:
            raise ValueError(f"{name}: a bias cannot be added to outputs that are Shard(-1)")


def _use_local(module: nn.Module, group: Any) -> None:
    """For the time of forward, parameters are plain tensors; each rank uses them for a part of the work, so
    their gradients are summed over the ranks."""
    for m in module.modules():
        for name, p in m._parameters.items():
            if isinstance(p, DTensor):
                m.__dict__.setdefault("_placed", {})[name] = p
                local = functional.pass_through_all_reduce(plain(p), group)
                m._parameters[name] = local  # type: ignore[assignment]


def _use_placed(module: nn.Module, args: Any, output: Any) -> None:
    for m in module.modules():
        m._parameters.update(m.__dict__.pop("_placed", {}))


class SequenceParallel(ParallelStyle):
    """A norm or a dropout, or any module that treats each token by itself, works on this rank's part of the
    sequence: inputs and outputs are Shard(sequence_dim). Its parameters are replicated, their gradients are
    summed; dropout inside draws this rank's part of the numbers."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = True) -> None:
        self.sequence_dim, self.use_local_output = sequence_dim, use_local_output

    def placements(self, module: nn.Module) -> dict[str, Shard | Replicate]:
        return {name: Replicate() for name, _ in module.named_parameters(remove_duplicate=False)}

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        for parameter in module.parameters():
            place(parameter, mesh, [Replicate()])
            parameter.gradient_is_summed = True  # type: ignore[attr-defined]  # by _use_local; for verify
        module.register_forward_pre_hook(lambda m, args: _use_local(m, mesh.get_group()))
        module.register_forward_hook(_use_placed, always_call=True)
        RandomnessHooks(mesh, self.sequence_dim).register(module)
        where = Shard(self.sequence_dim)
        module.register_forward_pre_hook(lambda m, args: (_local(args[0], where), *args[1:]))
        if not self.use_local_output:
            module.register_forward_hook(lambda m, args, y: _as_dtensor(y, where, mesh))


class ShardedDropout(ParallelStyle):
    """Dropout inside of this module works on tensors that are split along `dim`, as between a column-split
    and a row-split Linear (-1) or on attention's probabilities [B, H / n, T, T] (1)."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        RandomnessHooks(mesh, self.dim).register(module)


class divide(ParallelStyle):
    """Attributes of a module, such as its number of heads, become what one rank has of them.

    The module's scaled_dot_product_attention then works on a part of the heads, and its dropout draws that
    part's numbers.

    Args:
        attributes: names of int attributes.
        width_of_input: for a module that reads its width from its input (`B, T, C = x.shape`) and applies it
            to what is split: instead of its input it gets its part [.., C / n] along the last dim, in whose
            place its column-split layers take the whole. It must use the input for nothing else.
    """

    def __init__(self, *attributes: str, width_of_input: bool = False) -> None:
        self.attributes, self.width_of_input = attributes, width_of_input

    def check(self, name: str, module: nn.Module, ranks: int) -> None:
        for attribute in self.attributes:
            value = getattr(module, attribute, None)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(
                    f"{name}: divide({attribute!r}) expects an int attribute of {type(module).__name__}, "
                    f"got {value!r}"
                )
            Shard(0).check(value, ranks, f"{name}: {attribute}")

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        for attribute in self.attributes:
            setattr(module, attribute, getattr(module, attribute) // mesh.size())
        RandomnessHooks(mesh, heads=True).register(module)
        if self.width_of_input:
            module.register_forward_pre_hook(_NarrowInput(mesh))


class _NarrowInput:
    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0]
        if x.shape[-1] % self.mesh.size():
            raise ValueError(
                f"divide: the input's width {x.shape[-1]} does not divide among {self.mesh.size()} ranks"
            )
        part = x.detach().narrow(-1, 0, x.shape[-1] // self.mesh.size())
        return hand_over(part, for_split_work(x, Replicate(), self.mesh), self.mesh), *args[1:]


Layouts = Placement | Sequence[Placement | None] | None


def _listed(layouts: Layouts) -> list[Placement | None]:
    return list(layouts) if isinstance(layouts, Sequence) else [layouts]


def _changed(values: Sequence[Any], have: Layouts, want: Layouts, mesh: DeviceMesh) -> list[Any]:
    """The values as the second layouts say; None, or no layout, leaves one as it is."""
    out = list(values)
    for i, (h, w) in enumerate(zip(_listed(have), _listed(want), strict=True)):
        if i < len(out) and isinstance(out[i], DTensor):  # a DTensor knows where it lies
            out[i] = _local(out[i], w)
        elif h is not None and w is not None and i < len(out) and isinstance(out[i], Tensor):
            out[i] = redistribute(out[i], h, w, mesh)
    return out


def _check_lengths(have: Layouts, want: Layouts, where: str) -> None:
    if len(_listed(have)) != len(_listed(want)):
        raise ValueError(f"{where}: expected as many desired layouts as layouts, got {want} for {have}")


def _wrapped(values: Sequence[Any], want: Layouts, mesh: DeviceMesh) -> list[Any]:
    layouts = [*_listed(want), *[None] * len(values)]
    return [_as_dtensor(x, w, mesh) for x, w in zip(values, layouts, strict=False)]


class PrepareModuleInput(ParallelStyle):
    """Brings positional inputs from input_layouts to desired_input_layouts, inputs by name from the dicts;
    None for what is to stay as it is. With use_local_output=False the module gets DTensors."""

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        desired_input_layouts: Layouts = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.use_local_output = use_local_output
        _check_lengths(input_layouts, desired_input_layouts, "PrepareModuleInput")
        self.have, self.want = input_layouts, desired_input_layouts
        self.kwarg_have = input_kwarg_layouts or {}
        self.kwarg_want = desired_input_kwarg_layouts or {}
        if self.kwarg_have.keys() != self.kwarg_want.keys():
            raise ValueError("PrepareModuleInput: expected the same names in both dicts of layouts")

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            changed = {
                name: _changed([kwargs[name]], have, self.kwarg_want[name], mesh)[0]
                for name, have in self.kwarg_have.items()
                if isinstance(kwargs.get(name), Tensor)
            }
            out = _changed(args, self.have, self.want, mesh)
            if not self.use_local_output:
                out = _wrapped(out, self.want, mesh)
                changed = {n: _as_dtensor(x, self.kwarg_want[n], mesh) for n, x in changed.items()}
            return tuple(out), {**kwargs, **changed}

        module.register_forward_pre_hook(hook, with_kwargs=True)


class PrepareModuleOutput(ParallelStyle):
    """Brings outputs from output_layouts to desired_output_layouts; None for what is to stay as it is.

    Args:
        output_layouts: how outputs lie.
        desired_output_layouts: how they shall lie; as many.
        use_local_output: whether plain tensors come out.
    """

    def __init__(
        self, *, output_layouts: Layouts, desired_output_layouts: Layouts, use_local_output: bool = True
    ) -> None:
        self.use_local_output = use_local_output
        _check_lengths(output_layouts, desired_output_layouts, "PrepareModuleOutput")
        self.have, self.want = output_layouts, desired_output_layouts

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        def hook(_: nn.Module, args: Any, output: Any) -> Any:
            out = _changed([output] if isinstance(output, Tensor) else output, self.have, self.want, mesh)
            if not self.use_local_output:
                out = _wrapped(out, self.want, mesh)
            return out[0] if isinstance(output, Tensor) else type(output)(out)

        module.register_forward_hook(hook)


class PrepareModuleInputOutput(ParallelStyle):
    """PrepareModuleInput and PrepareModuleOutput as one.

    Args:
        input_layouts, desired_input_layouts, input_kwarg_layouts, desired_input_kwarg_layouts,
            use_local_input: of PrepareModuleInput.
        output_layouts, desired_output_layouts, use_local_output: of PrepareModuleOutput.
    """

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        desired_input_layouts: Layouts = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_input: bool = True,
        output_layouts: Layouts,
        desired_output_layouts: Layouts,
        use_local_output: bool = True,
    ) -> None:
        self.before = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.after = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        self.before.apply(module, mesh)
        self.after.apply(module, mesh)
